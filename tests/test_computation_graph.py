import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data
from torch_geometric.nn.norm import PairNorm
from torch_geometric.utils import to_networkx

from fgai import audit, computation_graph, deletion, measure_faithfulness
from fgai.adversaries import NodeInjection
from fgai.computation_graph import large_part
from fgai.deletion import DeletionCurves
from fgai.reading import open_reader
from worlds import community, links, model_of, small, trained


@given(st.integers(0, 39))
@settings(max_examples=20)
def test_it_has_the_edges_into_nodes_that_are_fewer_hops_away(node):
    graph = small()
    distance = nx.single_source_shortest_path_length(to_networkx(graph).reverse(), node)
    for hops in (1, 2, 3):
        part = computation_graph.computation_graph(graph, torch.tensor([node]), hops)
        expected = [edge for edge in links(graph.edge_index) if distance.get(edge[1], 99) < hops]
        assert links(graph.edge_index[:, part.columns]) == expected
        assert torch.equal(part.graph.x[part.roots[0]], graph.x[node])
        assert torch.equal(part.graph.x[part.graph.edge_index], graph.x[graph.edge_index[:, part.columns]])


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(computation_graph, "LARGE", 0)


@pytest.mark.parametrize("backbone", ["gat", "gatv2"])
def test_predictions_on_it_are_those_on_the_whole_graph(backbone, all_are_large):
    graph = small()
    with open_reader(model_of(backbone, graph)) as read:
        logits = read.checked(graph).logits
        part = large_part(read, graph, logits, torch.tensor([3, 5]), 2)
        assert part is not None and part.graph.num_nodes < graph.num_nodes
        assert large_part(read, graph, logits, torch.tensor([3, 5]), 1) is None, "one hop is not enough"


def test_a_model_that_looks_further_is_tested_on_the_whole_graph(all_are_large):
    class Normal(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gat, self.norm = model_of("gat", small()), PairNorm()

        def forward(self, x, edge_index):
            return self.norm(self.gat(x, edge_index))

    graph = small()
    with open_reader(Normal().eval()) as read:
        assert large_part(read, graph, read.checked(graph).logits, torch.tensor([3]), 2) is None


@pytest.mark.parametrize("among", ["graph", "node"])
def test_curves_of_a_part_are_those_of_the_whole_graph_for_its_nodes(among, monkeypatch):
    graph = community()
    with open_reader(trained()) as read:
        now = read.checked(graph)
        correct = now.probs.argmax(-1) == graph.y
        whole = DeletionCurves(read, graph, graph.y, correct, now).curve(now.explanation, "most", among)
        monkeypatch.setattr(computation_graph, "LARGE", 0)
        curves = DeletionCurves(read, graph, graph.y, correct, now)
        assert curves.part is not None
        assert curves.curve(now.explanation, "most", among) == whole
        monkeypatch.setattr(deletion, "MAX_NODES", 20)
        few = DeletionCurves(read, graph, graph.y, correct, now)
        assert few.part is not None
        alone = torch.zeros_like(correct).index_fill(0, few.part.nodes, True)
        whole = DeletionCurves(read, graph, graph.y, alone).curve(now.explanation, "most", among)
        assert len(few.part.nodes) == 20
        assert few.curve(now.explanation, "most", among) == whole


def test_faithfulness_on_a_part_is_that_on_the_whole_graph(monkeypatch):
    graph = community()
    nodes = torch.arange(40)
    before = measure_faithfulness(trained(), graph, nodes=nodes, draws=30)
    monkeypatch.setattr(computation_graph, "LARGE", 0)
    after = measure_faithfulness(trained(), graph, nodes=nodes, draws=30)
    assert after.nodes == before.nodes
    assert after.against_least.mean == pytest.approx(before.against_least.mean, abs=1e-4)  # no randomness but ties
    assert after.necessity.mean == pytest.approx(before.necessity.mean, abs=0.05)


def test_an_audit_of_a_large_graph_says_what_it_sampled(monkeypatch):
    graph: Data = community()
    attack = NodeInjection(nodes=2, edges=5, steps=2)
    assert not [note for note in audit(trained(), graph, attack, seeds=1, sample=20).notes if "F-slopes" in note]
    monkeypatch.setattr(computation_graph, "LARGE", 0)
    monkeypatch.setattr(deletion, "MAX_NODES", 30)
    (note,) = (note for note in audit(trained(), graph, attack, seeds=1, sample=20).notes if "F-slopes" in note)
    assert note == "F-slopes and deletion curves are over 30 random test nodes, of a large graph"
