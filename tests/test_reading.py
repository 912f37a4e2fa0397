import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, HANConv

import fgai
from fgai.errors import CallError, TapError
from fgai.reading import Reader, read
from loose import loose
from worlds import community, trained

GRAPH = loose(Data(x=torch.randn(4, 3), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), edge_attr=torch.randn(3, 2)))


class TakesData(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GATConv(3, 2)

    def forward(self, data):
        return self.conv(data.x, data.edge_index)


class NeedsMore(TakesData):
    def forward(self, x, edge_index, curvature):  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.conv(x, edge_index)


def test_the_parameters_of_forward_are_filled_by_name():
    conv = GATConv(3, 2, edge_dim=2).eval()
    expected = conv(GRAPH.x, GRAPH.edge_index, GRAPH.edge_attr)
    assert torch.equal(Reader(conv)(GRAPH).logits, expected)


def test_a_model_that_takes_the_graph_itself_is_given_it():
    net = TakesData().eval()
    assert torch.equal(Reader(net)(GRAPH).logits, net(GRAPH))


def test_a_parameter_that_the_graph_lacks_is_named_with_the_remedy():
    with pytest.raises(CallError, match=r"curvature.*call=lambda model, data"):
        read(NeedsMore(), GRAPH)


def test_weights_of_links_under_another_name_are_not_left_out_without_a_word():
    class Weighted(TakesData):
        def forward(self, x, edge_index, weight=None, return_attention_weights=None):  # pyright: ignore
            return self.conv(x, edge_index, weight)

    graph = Data(x=GRAPH.x, edge_index=GRAPH.edge_index)
    read(Weighted(), graph)
    graph.edge_weight = torch.rand(3)
    with pytest.raises(CallError, match=r"\['weight'\], and the graph has `edge_weight` instead"):
        read(Weighted(), graph)


def test_a_call_says_how_a_model_is_called():
    net = NeedsMore().eval()
    reading = Reader(net, call=lambda model, data: model(2 * data.x, data.edge_index, None))(GRAPH)
    assert torch.equal(reading.logits, net(2 * GRAPH.x, GRAPH.edge_index, None))


def test_an_answer_that_is_not_one_tensor_is_refused():
    with pytest.raises(CallError, match="tuple"):
        Reader(GATConv(3, 2), call=lambda model, d: model(d.x, d.edge_index, return_attention_weights=True))(GRAPH)


def test_a_heterogeneous_graph_is_read_with_a_call_that_picks_the_answer():
    data = HeteroData()
    data["a"].x, data["b"].x = torch.randn(3, 4), torch.randn(2, 4)
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 2], [0, 0, 1]])
    data["b", "to", "a"].edge_index = torch.tensor([[0, 1], [0, 1]])
    model = HANConv(4, 6, data.metadata(), heads=2)
    with pytest.raises(CallError, match="dict"):
        read(model, data)
    reading = read(model, data, call=lambda m, d: m(d.x_dict, d.edge_index_dict)["b"])
    assert reading.logits.shape == (2, 6) and list(reading.attention) == ["", "@1"]


def test_reading_evaluates_without_gradients_and_gives_every_module_its_mode_back():
    net = TakesData().train()
    net.conv.eval()
    reading = read(net, GRAPH)
    assert not reading.logits.requires_grad
    assert net.training and not net.conv.training


def test_one_logit_is_a_binary_answer():
    reading = read(GATConv(3, 1), GRAPH)
    torch.testing.assert_close(reading.probs[:, 1], reading.logits[:, 0].sigmoid())
    torch.testing.assert_close(reading.probs.sum(1), torch.ones(4))


def test_detached_readings_have_no_history():
    reading = Reader(GATConv(3, 2))(GRAPH).detach()
    assert not reading.logits.requires_grad
    assert not reading.explanation.weight.requires_grad and not reading.explanation.score.requires_grad


class Auxiliary(nn.Module):
    """Two layers, and a third one beside them that does not reach the logits."""

    def __init__(self):
        super().__init__()
        self.first, self.last, self.other = GATConv(16, 4, heads=2), GATConv(8, 3), GATConv(8, 16)

    def forward(self, x, edge_index):
        hidden = self.first(x, edge_index).relu()
        logits = self.last(hidden, edge_index)
        self.reconstruction = self.other(hidden, edge_index)
        return logits


def test_attention_that_does_not_reach_the_logits_does_not_explain_them():
    graph, model = community(), Auxiliary()
    reading = fgai.read(model, graph)
    assert list(reading.attention) == ["first", "last", "other"]
    assert [site for site, attention in reading.attention.items() if attention.idle] == ["other"]
    assert reading.explanation is reading.attention["last"]
    assert {edge.hop for edge in reading.explain(5).top(10**6)} == {1, 2}
    attack = fgai.NodeInjection(nodes=1, edges=2, steps=1)
    report = fgai.audit(model, graph, attack, explanation="last", seeds=1, sample=5)
    assert any("no effect on the logits" in note and "other" in note for note in report.notes)
    assert fgai.certify(model, graph, k=3, steps=1).site == "last"


class Branches(nn.Module):
    """Two layers side by side, one hop deep; of features, or of ids that they embed."""

    def __init__(self, ids=0):
        super().__init__()
        self.embed = nn.Embedding(ids, 16) if ids else nn.Identity()
        self.left, self.right, self.out = GATConv(16, 4), GATConv(16, 4), nn.Linear(8, 3)

    def forward(self, x, edge_index):
        x = self.embed(x)
        return self.out(torch.cat([self.left(x, edge_index), self.right(x, edge_index)], 1))


def test_parallel_layers_are_no_chain_and_have_no_tree():
    reading = fgai.read(Branches(), community())
    assert [site for site, attention in reading.attention.items() if attention.parallel] == ["right"]
    with pytest.raises(TapError, match="'right' does not depend on the attention of the layer before it"):
        reading.explain(5)
    assert {edge.hop for edge in reading.explain(5, explanation="last").top(10**6)} == {1}


@pytest.mark.parametrize("kinds", [150, 2])
def test_parallel_layers_of_ids_or_types_are_no_chain(kinds):
    graph = community().clone().update({"x": torch.arange(150) % kinds})
    reading = fgai.read(Branches(ids=kinds), graph)
    assert [site for site, attention in reading.attention.items() if attention.parallel] == ["right"]


def test_attention_that_explains_is_not_marked():
    graph = community()
    for model in (trained("gat"), GATConv(16, 3)):
        sites = fgai.read(model, graph).attention.values()
        assert not any(attention.idle or attention.parallel for attention in sites)
