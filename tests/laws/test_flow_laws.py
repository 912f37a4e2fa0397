"""Laws of the direction of messages: `flow="target_to_source"` is the default flow on the graph with reversed edges."""

import pytest
import torch
from torch import nn
from torch.nn.functional import elu
from torch_geometric.explain import Explainer
from torch_geometric.nn import GATConv

import fgai
from fgai import NodeInjection
from fgai.certificates import Deletions, certify
from fgai.errors import DataError, TapError
from fgai.explanations import EXPLANATIONS
from fgai.seeding import seeded
from worlds import community


class Net(nn.Module):
    def __init__(self, **settings):
        super().__init__()
        with seeded(0):
            self.first, self.last = GATConv(16, 8, heads=2, **settings), GATConv(16, 3, **settings)

    def forward(self, x, edge_index):
        return self.last(elu(self.first(x, edge_index)), edge_index)


class Flipping(Net):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index.flip(0))


def directed():
    """A graph of community with six of ten directed edges."""
    graph = community().clone()
    graph.edge_index = graph.edge_index[:, torch.rand(graph.num_edges, generator=torch.Generator()) < 0.6]
    return graph


@pytest.fixture(name="pairs", params=["directed", "undirected"])
def _pairs(request):
    """A graph of community for each flow: both models compute the same function on theirs."""
    graph = directed() if request.param == "directed" else community()
    other = graph.clone()
    other.edge_index = graph.edge_index.flip(0)
    against, plain = Net(flow="target_to_source").eval(), Net().eval()
    torch.testing.assert_close(against(graph.x, graph.edge_index), plain(other.x, other.edge_index))
    return (against, graph), (plain, other)


def test_faithfulness_does_not_depend_on_how_the_flow_is_written(pairs):
    one, other = (fgai.measure_faithfulness(*pair, nodes=40) for pair in pairs)
    assert one.necessity.mean == pytest.approx(other.necessity.mean, abs=1e-4)
    assert one.against_least.mean == pytest.approx(other.against_least.mean, abs=1e-4)
    assert one.nodes == other.nodes > 0


@pytest.mark.parametrize("explanation", ["tree", "last"])
def test_an_audit_does_not_depend_on_how_the_flow_is_written(pairs, explanation):
    attack = NodeInjection(nodes=2, edges=3, steps=2)
    settings = {"by": attack, "explanation": explanation, "seeds": 1, "sample": 20}
    one, other = (fgai.audit(*pair, **settings) for pair in pairs)
    assert one.clean == pytest.approx(other.clean, abs=1e-3)
    assert one.baselines == pytest.approx(other.baselines, abs=1e-3)
    for first in ("most", "least"):
        assert one.curves.clean[first] == pytest.approx(other.curves.clean[first])


def test_a_proof_does_not_depend_on_how_the_flow_is_written(pairs):
    one, other = (certify(*pair, against=Deletions(1)) for pair in pairs)
    assert one.how == other.how == "bound" and torch.equal(one.budget, other.budget)


def test_the_mask_of_an_explainer_does_not_depend_on_how_the_flow_is_written(pairs):
    masks = []
    for model, graph in pairs:
        settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
        how = {"explanation_type": "model", "edge_mask_type": "object", "model_config": settings}
        explain = Explainer(model, fgai.AttentionExplainer(), **how)  # pyright: ignore[reportArgumentType]
        masks.append(explain(graph.x, graph.edge_index, index=3).edge_mask)
    torch.testing.assert_close(*masks)
    assert masks[0].sum() > 0


def test_a_mask_on_edges_against_the_messages_is_refused():
    graph, other = directed(), directed()
    other.edge_index = graph.edge_index.flip(0)
    found, expected = (
        fgai.read(model.eval(), one).explain(3)
        for model, one in ((Net(flow="target_to_source"), graph), (Net(), other))
    )
    with pytest.raises(DataError, match=r"model reverses its edges.*edge_index\.flip\(0\)"):
        found.to_pyg(graph)
    torch.testing.assert_close(found.mask(other.edge_index), expected.mask(other.edge_index))
    assert expected.mask(other.edge_index).sum() > 0


class BothFlows(Net):
    """A first layer with the given flow and a last layer with the other."""

    def __init__(self, first, last):
        super().__init__(flow=first)
        self.last.flow = last


@pytest.fixture(name="both")
def _both():
    """A directed graph for each order of the flows: both models compute the same function on theirs."""
    graph = directed()
    other = graph.clone()
    other.edge_index = graph.edge_index.flip(0)
    flows = ("source_to_target", "target_to_source")
    one, two = BothFlows(*flows).eval(), BothFlows(*flows[::-1]).eval()
    torch.testing.assert_close(one(graph.x, graph.edge_index), two(other.x, other.edge_index))
    return (one, graph), (two, other)


@pytest.mark.parametrize("site", ["first", "last"])
def test_a_layer_of_a_model_with_both_flows_is_explained_in_its_own_direction(both, site):
    one, other = (fgai.measure_faithfulness(*pair, explanation=f"layer:{site}", nodes=40) for pair in both)
    assert one.necessity.mean == pytest.approx(other.necessity.mean, abs=1e-4)
    assert one.against_least.mean == pytest.approx(other.against_least.mean, abs=1e-4)
    assert not any("not edges of the graph" in note for note in one.notes + other.notes)


@pytest.mark.parametrize("explanation", [*EXPLANATIONS, EXPLANATIONS["tree"]])
def test_a_model_with_both_flows_has_no_explanation_by_several_layers(both, explanation):
    (model, graph), _ = both
    with pytest.raises(TapError, match=r"both values of `flow`.*'layer:first'"):
        fgai.audit(model, graph, NodeInjection(nodes=2, edges=3, steps=1), explanation=explanation, seeds=1)


def test_a_model_that_reverses_the_edges_itself_is_noted():
    graph = community().clone()
    graph.edge_index = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]
    tested = fgai.measure_faithfulness(Flipping().eval(), graph, nodes=20)
    assert any("not edges of the graph" in note for note in tested.notes)
    assert not any("not edges of the graph" in note for note in fgai.measure_faithfulness(Net(), graph, nodes=20).notes)
