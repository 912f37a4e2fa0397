import importlib
import os
from itertools import pairwise
from pathlib import Path

import networkx
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch_geometric.data import Data
from torch_geometric.utils import k_hop_subgraph, to_networkx

from fgai import datasets
from fgai.errors import DataError
from fgai.faithfulness import truth_scores
from loose import loose
from strategies import generators

MOTIFS = {"ba-shapes": (5, 12), "ba-grids": (9, 24), "ba-cycles": (6, 12)}  # nodes and directed edges of one


def hops(data, node):
    """How far from the node each edge ends, by NetworkX; 0 from 3 on."""
    far = networkx.single_source_shortest_path_length(to_networkx(data).reverse(), node, cutoff=1)
    return torch.tensor([far.get(target, -1) + 1 for target in data.edge_index[1].tolist()])


@pytest.mark.parametrize("name", MOTIFS)
def test_the_reasons_of_a_motif_are_its_own_edges(name):
    before = generators()
    data = datasets.load(name, seed=1)
    assert generators() == before
    nodes, edges = MOTIFS[name]
    assert data.motif.max() >= 79 and int((data.motif >= 0).sum()) == 80 * nodes
    assert int(data.edge_mask.sum()) == 80 * edges
    node = int((data.motif >= 0).nonzero()[-1])
    true = datasets.true_edges(data, node, torch.ones(data.num_edges, dtype=torch.long))
    assert int(true.sum()) == edges
    members = set(data.edge_index[:, true].flatten().tolist())
    assert len(members) == nodes and node in members
    near = datasets.true_edges(data, node, hops(data, node))
    assert 0 < int(near.sum()) <= edges and not (near & ~true).any()
    assert not datasets.true_edges(data, 0, hops(data, 0)).any()


def test_the_reasons_of_an_infection_are_its_shortest_paths():
    data = loose(datasets.load("infection", seed=0))
    graph = to_networkx(data)
    sick = (data.y == 0).nonzero().flatten().tolist()
    assert torch.equal(data.x[:, 1] > 0, data.y == 0)
    for node in [*range(0, 1000, 29)]:
        true = set(map(tuple, data.edge_index[:, datasets.true_edges(data, node, hops(data, node))].T.tolist()))
        distance = int(data.y[node])
        paths = set()
        for one in sick if 0 < distance <= 2 else []:
            if networkx.has_path(graph, one, node) and networkx.shortest_path_length(graph, one, node) == distance:
                for path in networkx.all_shortest_paths(graph, one, node):
                    paths |= set(pairwise(path))
        assert true == paths


def test_a_graph_without_reasons_is_refused():
    graph = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
    with pytest.raises(DataError, match="true edges of this graph are not known"):
        datasets.true_edges(graph, 0, torch.ones(1))


def test_scores_are_scikit_learns():
    generator = torch.Generator().manual_seed(0)
    mask, true = torch.randn(50, generator=generator), torch.rand(50, generator=generator) < 0.3
    found = truth_scores(mask, true)
    assert abs(found.auroc - roc_auc_score(true.numpy(), mask.numpy())) < 1e-6
    count = int(true.sum())
    assert abs(found.precision - float(true[mask.topk(count).indices].float().mean())) < 1e-6
    assert truth_scores(torch.zeros(50), true).auroc == 0.5
    with pytest.raises(DataError, match="both kinds"):
        truth_scores(mask, torch.ones(50, dtype=torch.bool))


def test_outside_the_subgraph_of_its_hops_no_edge_affects_a_node(monkeypatch):
    """The benchmark explains a node on this subgraph with the slow explainers; the logits are those of the graph."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    benchmark = importlib.import_module("known_reasons")
    setting = benchmark.SETTINGS["3 layers, as GAtt"]
    data = setting.load("ba-shapes", 0)
    model = setting.build(data.num_features, 4).eval()
    assert data.num_features == 50 and int(data.edge_mask.sum()) == 80 * 12
    whole = model(data.x, data.edge_index)
    for node in (0, 300, 650):
        near, edges, at, _ = k_hop_subgraph(node, 3, data.edge_index, relabel_nodes=True, num_nodes=data.num_nodes)
        assert len(near) < data.num_nodes
        torch.testing.assert_close(model(data.x[near], edges)[int(at)], whole[node], atol=1e-5, rtol=1e-4)


def test_released_pickles_run_no_code(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    benchmark = importlib.import_module("released_gatt")

    class Malicious:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"weight": torch.ones(2), "other": Malicious()}, tmp_path / "model.pt")
    assert benchmark.load_tensors(tmp_path / "model.pt")["weight"].tolist() == [1, 1]
    assert not (tmp_path / "ran").exists()
