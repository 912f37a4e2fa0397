import torch
from torch_geometric.data import Data

from fgai import datasets
from fgai.computation_graph import computation_graph
from fgai.large.probes import MAX_EDGES, PROBES, probe_nodes
from fgai.large.sampler import CSC


def distance(data, node):
    """The largest number of steps against the edges to another node, by hops until nothing is added."""
    sizes = [computation_graph(data, torch.tensor([node]), hops).graph.num_nodes for hops in range(12)]
    return next(hop for hop in range(11) if sizes[hop] == sizes[hop + 1])


def test_probes_have_nodes_further_away_than_the_hops():
    data = datasets.synthetic(200, 300, seed=0)
    data.edge_index = data.edge_index[:, data.edge_index[0] < data.edge_index[1]]
    for hops in (1, 2, 3):
        found = probe_nodes(CSC.of(data), hops).tolist()
        assert len(set(found)) == PROBES and all(distance(data, node) > hops for node in found)


def test_a_few_deep_nodes_are_found_among_many_shallow_ones():
    pairs, path = torch.arange(0, 6_000, 2), torch.arange(6_000, 6_030)
    ends = torch.cat([torch.stack([pairs, pairs + 1]), torch.stack([path[:-1], path[1:]])], dim=1)
    data = Data(edge_index=torch.cat([ends, ends.flip(0)], dim=1), num_nodes=6_030)
    assert (probe_nodes(CSC.of(data), hops=3) >= 6_000).all()


def test_graphs_without_deep_nodes_have_probes_too():
    none = Data(edge_index=torch.zeros(2, 0, dtype=torch.long), num_nodes=3)
    assert sorted(probe_nodes(CSC.of(none), hops=2).tolist()) == [0, 1, 2]
    ring = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])  # two hops lack the edges into the node across
    lone = Data(edge_index=torch.cat([ring, ring.flip(0)], dim=1), num_nodes=50)
    assert set(probe_nodes(CSC.of(lone), hops=2).tolist()) == {0, 1, 2, 3}


def test_a_probe_with_a_small_neighbourhood_is_preferred():
    sources = 5 + torch.arange(2 * MAX_EDGES) % 1_000  # of node 0, which is the source of node 1
    edges = torch.cat([torch.stack([sources, torch.zeros_like(sources)]), torch.tensor([[0], [1]])], dim=1)
    assert probe_nodes(CSC.of(Data(edge_index=edges, num_nodes=1_005)), hops=1).tolist() == [1]
    edges = torch.cat([edges, torch.tensor([[2, 3], [3, 4]])], dim=1)
    assert probe_nodes(CSC.of(Data(edge_index=edges, num_nodes=1_005)), hops=1).tolist() == [4]
