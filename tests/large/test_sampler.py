import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.utils import k_hop_subgraph

from fgai import FGAI, NodeInjection, datasets
from fgai.backbones import build
from fgai.errors import DataError, SettingError
from fgai.large import Loader, NeighbourSampler, full_neighbour_loader, write_store
from fgai.large.loader import ShardedBatches
from fgai.large.permutation import Permutation
from fgai.large.sampler import CSC, sample_distinct
from fgai.registry import import_file
from loose import loose

GRAPH = loose(datasets.synthetic(300, 4_000, features=4, seed=1))
GRAPH.edge_attr = torch.arange(GRAPH.num_edges)


def test_every_subset_is_equally_likely():
    draws = sample_distinct(torch.full((20_000,), 6), 3, torch.Generator().manual_seed(0)).sort(1).values
    subsets = list(itertools.combinations(range(6), 3))
    counts = [int((draws == torch.tensor(subset)).all(1).sum()) for subset in subsets]
    assert sum(counts) == 20_000
    assert chisquare(counts).pvalue > 1e-3


def test_neighbours_are_drawn_with_equal_frequency_whatever_the_degree():
    csc = CSC.of(GRAPH)
    hub = int(csc.degree(torch.arange(300)).argmax())
    sampler, degree = NeighbourSampler(csc, [5]), int(csc.degree(torch.tensor([hub])))
    counts = torch.zeros(degree)
    for epoch in range(4_000):
        sampler.epoch = epoch
        found = sampler.sample_from_nodes(NodeSamplerInput(None, torch.tensor([hub])))
        counts[found.edge - csc.start[hub]] += 1
    assert degree > 30 and counts.sum() == 20_000
    assert chisquare(counts.numpy()).pvalue > 1e-3


@given(st.integers(0, 10_000), st.lists(st.sampled_from([1, 2, 5, 20, -1]), min_size=1, max_size=3))
def test_a_batch_is_part_of_the_graph_and_no_edge_comes_twice(seed, fanout):
    batch = next(iter(Loader(GRAPH, fanout, batch=7, seed=seed)))
    assert len(batch.n_id.unique()) == len(batch.n_id) and len(batch.e_id.unique()) == len(batch.e_id)
    assert torch.equal(batch.n_id[batch.edge_index], GRAPH.edge_index[:, batch.e_id])
    assert torch.equal(batch.edge_attr, batch.e_id) and torch.equal(batch.x, GRAPH.x[batch.n_id])
    assert torch.equal(batch.n_id[: batch.batch_size], batch.input_id) and batch.batch_size == 7
    assert sum(batch.num_sampled_nodes) == batch.num_nodes and sum(batch.num_sampled_edges) == batch.num_edges
    arriving = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
    whole = torch.bincount(GRAPH.edge_index[1], minlength=300)[batch.n_id]
    reached = batch.num_sampled_nodes[0]
    first = whole if fanout[0] == -1 else whole.clamp(max=fanout[0])
    assert torch.equal(arriving[:reached], first[:reached])


def test_the_whole_neighbourhood_is_pygs():
    for batch in full_neighbour_loader(GRAPH, hops=2, batch=100):
        nodes, _, _, edges = k_hop_subgraph(batch.input_id, 2, GRAPH.edge_index, num_nodes=300)
        assert torch.equal(batch.n_id.sort().values, nodes)
        inner = k_hop_subgraph(batch.input_id, 1, GRAPH.edge_index, num_nodes=300)[0]
        want = torch.isin(GRAPH.edge_index[1], inner).nonzero().flatten()
        assert torch.equal(batch.e_id.sort().values, want) and int(edges.sum()) >= len(want)


def test_a_batch_depends_on_seed_epoch_and_seeds_alone():
    one, two = (Loader(GRAPH, (3, 3), batch=16, seed=5) for _ in range(2))
    for loader in (one, two):
        loader.set_epoch(3)
    assert all(torch.equal(a.e_id, b.e_id) for a, b in zip(one, two, strict=True))
    before = next(iter(one)).e_id
    one.set_epoch(4)
    assert not torch.equal(before, next(iter(one)).e_id)


def test_batches_made_by_workers_are_the_same():
    alone, helped = (Loader(GRAPH, (3, 3), batch=64, workers=workers) for workers in (0, 2))
    assert all(torch.equal(a.e_id, b.e_id) for a, b in zip(alone, helped, strict=True))


def test_an_epoch_visits_every_seed_once():
    loader = Loader(GRAPH, (2,), batch=32, seed_nodes=GRAPH.y == 1)
    seen = torch.cat([batch.input_id for batch in loader])
    assert torch.equal(seen.sort().values, torch.arange(len(seen)))
    nodes = torch.cat([batch.n_id[: batch.batch_size] for batch in loader])
    assert torch.equal(nodes.sort().values, (GRAPH.y == 1).nonzero().flatten())


def test_pygs_own_loader_takes_the_sampler():
    loader = NodeLoader(GRAPH, NeighbourSampler(CSC.of(GRAPH), [4, 4]), batch_size=10, shuffle=False)
    batch = next(iter(loader))
    assert torch.equal(batch.n_id[batch.edge_index], GRAPH.edge_index[:, batch.e_id])


def test_a_large_seed_is_a_seed():
    first, again = (next(iter(Loader(GRAPH, (5, 5), batch=8, seed=20261115))).n_id for _ in range(2))
    assert torch.equal(first, again)


def test_a_node_without_neighbours_is_a_batch():
    lonely = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0], [1]]))
    batch = next(iter(Loader(lonely, (2, 2), seed_nodes=torch.tensor([2]))))
    assert batch.num_edges == 0 and batch.num_nodes == 1


@pytest.mark.parametrize("fanout", [[], [0], [-2]])
def test_a_fanout_without_meaning_is_refused(fanout):
    with pytest.raises(SettingError, match="fanout"):
        Loader(GRAPH, fanout)


@given(st.integers(1, 3_000), st.integers(-(2**70), 2**70))
def test_a_keyed_permutation_is_a_bijection(count, key):
    order = Permutation(count, key)(torch.arange(count))
    assert torch.equal(order.sort().values, torch.arange(count))


def test_a_permutation_of_more_numbers_than_memory_holds_is_computed_where_it_is_asked_for():
    positions = torch.arange(10**12 - 50_000, 10**12)
    order = Permutation(10**12, key=7)(positions)
    assert len(order.unique()) == 50_000 and 0 <= int(order.min()) <= int(order.max()) < 10**12
    assert chisquare(torch.histc(order.double(), 50, 0, 10**12).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("count", [5, 12])
def test_each_position_goes_anywhere_with_equal_frequency(count):
    positions = torch.tensor([0, 1, count - 1])
    found = torch.stack([Permutation(count, key)(positions) for key in range(1_500)])
    for column in range(3):
        assert chisquare(torch.bincount(found[:, column], minlength=count).numpy()).pvalue > 1e-3
    apart = (found[:, 1] - found[:, 0]) % count  # of two positions side by side; never 0
    assert chisquare(torch.bincount(apart, minlength=count)[1:].numpy()).pvalue > 1e-3


@pytest.mark.parametrize(("count", "batch", "ranks"), [(300, 32, 2), (1_000, 7, 3), (64, 16, 4)])
def test_the_parts_of_the_ranks_are_disjoint_and_complete(monkeypatch, count, batch, ranks):
    monkeypatch.setattr("fgai.distributed.world_size", lambda: ranks)
    parts = []
    for rank in range(ranks):
        monkeypatch.setattr("fgai.distributed.rank", lambda rank=rank: rank)
        parts.append(list(ShardedBatches(count, batch, shuffle=True, seed=3)))
    seen = [node for part in parts for nodes in part for node in nodes]
    assert len(set(seen)) == len(seen) and set(seen) <= set(range(count))
    assert len(seen) > count - ranks * batch, "at most the batches that do not go around are left out"
    assert len({len(part) for part in parts}) == 1, "each rank takes the same number of steps"


def test_a_loader_of_all_nodes_holds_no_list_of_them(tmp_path):
    store = write_store(tmp_path / "graph", 10**6, lambda: [np.array([[0], [1]])], {"x": [np.ones((10**6, 1), "f4")]})
    loader = Loader(store, (2,), batch=4)
    batch = next(iter(loader))
    assert torch.equal(batch.n_id[:4], batch.input_id) and len(batch.input_id.unique()) == 4
    held = [*vars(loader).values(), *vars(loader.input_data).values()]
    assert sum(value.untyped_storage().nbytes() for value in held if isinstance(value, torch.Tensor)) < 100


def test_blocks_of_a_stand_in_are_batches_of_the_graph():
    """examples/with_blocks.py: a loader with the interface of DGL's, which is a stand-in, gives FGAI its batches."""
    example: Any = import_file(Path(__file__).parents[2] / "examples/with_blocks.py")
    pairs = {tuple(pair) for pair in GRAPH.edge_index.t().tolist()}
    batches = example.Batches(example.StandIn(GRAPH, (3, 2), batch=70), GRAPH)
    seen = []
    for batch in batches:
        ends = batch.n_id[batch.edge_index].t().tolist()
        assert {tuple(pair) for pair in ends} <= pairs and torch.equal(batch.x, GRAPH.x[batch.n_id])
        arriving = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
        degree = torch.bincount(GRAPH.edge_index[1], minlength=300)[batch.n_id]
        assert torch.equal(arriving[: batch.batch_size], degree.clamp(max=3)[: batch.batch_size]), "one sample a node"
        assert (arriving <= 3).all() and len(batch.n_id.unique()) == batch.num_nodes
        seen += batch.n_id[: batch.batch_size].tolist()
    assert sorted(seen) == list(range(300))
    method, model = FGAI(epochs=2, adversary=NodeInjection(nodes=2, edges=4, steps=1)), build("gat", GRAPH)
    service = list(batches)
    for batch in service:  # as GiGL and GraphLearn-Torch have them: the ids of the seed nodes
        batch.batch = batch.n_id[: batch.batch_size]
    fixed = [method.fit(model, given).history for given in (list(batches), service)]
    assert fixed[0] == fixed[1] and len(method.fit(model, batches).history) == 2


def test_pairs_of_nodes_are_refused_as_their_ids_are_those_of_the_whole_graph():
    graph = datasets.load("synthetic")
    graph.edge_label_index = graph.edge_index[:, :10]
    with pytest.raises(DataError, match="a batch of seed nodes renumbers its nodes"):
        Loader(graph)
    del graph.edge_label_index
    assert next(iter(Loader(graph, batch=8))).batch_size == 8
