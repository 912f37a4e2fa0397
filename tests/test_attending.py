from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric import nn as nn_pyg
from torch_geometric.data import Batch, Data
from torch_geometric.nn import (
    AttentionalAggregation,
    AttentiveFP,
    DenseGATConv,
    GATConv,
    GeneralConv,
    MessagePassing,
    Sequential,
    Set2Set,
    TopKPooling,
)
from torch_geometric.utils import softmax

import fgai
from fgai import attending
from fgai.attending import attention_not_read
from fgai.errors import TapError
from loose import loose

EDGES = torch.tensor([[0, 1, 2, 0, 3, 4], [1, 2, 0, 2, 4, 3]])


def two() -> Any:
    draw = torch.Generator().manual_seed(0)
    one = Data(x=torch.randn(3, 4, generator=draw), edge_index=EDGES[:, :4], y=torch.tensor([0]))
    other = Data(x=torch.randn(2, 4, generator=draw), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([1]))
    for graph in (one, other):
        graph.edge_attr = torch.rand(graph.num_edges, 2, generator=draw)
    return loose(Batch.from_data_list([one, other]))


def by_edges(model, graph):
    return model(graph.x, graph.edge_index)


class Own(nn.Module):
    """A user's own attention, written with torch."""

    def forward(self, x):
        return self.weights(x) @ x

    def weights(self, x):
        return torch.softmax(x @ x.t(), -1)

    def predict(self, x):
        return x.softmax(-1)


class Loose(nn.Module):
    """A user's own layer that calls PyG's softmax outside of message passing."""

    def forward(self, x, edge_index):
        weight = softmax(x[edge_index[0]].sum(-1), edge_index[1], num_nodes=len(x))
        return torch.zeros_like(x).index_add(0, edge_index[1], weight[:, None] * x[edge_index[0]])


def normalised(score, index, nodes):
    return softmax(score, index, num_nodes=nodes)


class Helped(MessagePassing):
    """A user's own layer whose `message` calls a function that calls PyG's softmax."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, index, size_i):  # pyright: ignore[reportIncompatibleMethodOverride]
        return x_j * normalised(x_j.sum(-1, keepdim=True), index, size_i)


class Scattered(MessagePassing):
    """A user's own message-passing layer that calls PyG's softmax in `forward`, without `propagate`."""

    def forward(self, x, edge_index):
        weight = softmax(x[edge_index[0]].sum(-1), edge_index[1], num_nodes=len(x))
        return torch.zeros_like(x).index_add(0, edge_index[1], weight[:, None] * x[edge_index[0]])


def scatter_softmax(score, index, nodes):
    """As torch_scatter computes it."""
    top = score.new_full((nodes,), -1e9).scatter_reduce(0, index, score, "amax")
    weight = (score - top[index]).exp()
    return weight / weight.new_zeros(nodes).index_add(0, index, weight)[index]


class Renamed(Helped):
    """A softmax over edges of another library, and of another name."""

    def message(self, x_j, index, size_i):  # pyright: ignore[reportIncompatibleMethodOverride]
        return x_j * scatter_softmax(x_j.sum(-1), index, size_i)[:, None]


class Unnamed(Helped):
    """A softmax over edges, written out."""

    def message(self, x_j, index, size_i):  # pyright: ignore[reportIncompatibleMethodOverride]
        weight = x_j.sum(-1).exp()
        return x_j * (weight / weight.new_zeros(size_i).index_add(0, index, weight)[index])[:, None]


class Kernel(Helped):
    """Weights that no sum over the edges divides, and a `log_softmax` of the answer."""

    use_softmax = False

    def forward(self, x, edge_index):
        return super().forward(x, edge_index).log_softmax(-1) if not self.use_softmax else x

    def message(self, x_i, x_j):  # pyright: ignore[reportIncompatibleMethodOverride]
        return x_j * (-(x_i - x_j).norm(dim=-1, keepdim=True) / 2).exp()


class Predicts(nn.Linear):
    """A softmax that `forward` does not reach."""

    def predict(self, x):
        return self(x).softmax(-1)


def test_attention_of_another_kind_is_named():
    parts = [Own(), Loose(), Predicts(2, 2), DenseGATConv(2, 2), TopKPooling(2), TopKPooling(2, min_score=0.1)]
    assert attention_not_read(nn.ModuleList([*parts, GATConv(2, 2)])) == ("0", "1", "3", "5.select")


def test_of_pygs_layers_judged_as_a_users_those_that_call_a_softmax_have_the_code_of_one(monkeypatch):
    monkeypatch.setattr(attending, "LIBRARIES", ("torch",))
    layers = [kind for kind in vars(nn_pyg).values() if isinstance(kind, type) and issubclass(kind, MessagePassing)]
    found = {kind for kind in layers if attending._computes_softmax(attending._reached(kind))}
    assert GATConv in found and found <= {kind for kind in layers if attending.softmax_methods(kind)}


@pytest.mark.parametrize("kind", [Helped, Scattered, Renamed, Unnamed])
def test_a_layer_whose_attention_has_no_known_edges_is_named(kind):
    model, call = Sequential("x, e", [(GATConv(4, 4), "x, e -> x"), (kind(), "x, e -> x")]), by_edges
    reading = fgai.read(model, two(), call)
    assert list(reading.attention) == ["module_0"] and reading.unread == ("module_1",)
    with pytest.raises(TapError, match="AttentionPoint"):
        fgai.read(Sequential("x, e", [(kind(), "x, e -> x")]), two(), call)


def test_exponentials_and_log_softmax_are_no_attention():
    assert attention_not_read(nn.ModuleList([Kernel(), GATConv(2, 2)])) == ()


def test_a_layer_that_can_attend_and_does_not_is_passed_over():
    torch.manual_seed(0)
    layers = [(GeneralConv(4, 4), "x, e -> x"), (GATConv(4, 2), "x, e -> x")]
    model = Sequential("x, e", layers)
    data = two()
    reading = fgai.read(model, data, by_edges)
    assert list(reading.attention) == ["module_1"] and reading.unread == ()


class Pooled(nn.Module):
    def __init__(self, pool, width=4):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.pool, self.out = GATConv(4, 4), pool, nn.Linear(width, 2)

    def forward(self, x, edge_index, batch):
        return self.out(self.pool(self.conv(x, edge_index), batch))


def test_the_weights_of_a_pooling_are_those_of_the_formula():
    gate = nn.Linear(4, 1)
    model, data = Pooled(AttentionalAggregation(gate)).eval(), two()
    reading = fgai.read(model, data)
    pool, hidden = reading.attention["pool"], model.conv(data.x, data.edge_index)
    expected = torch.cat([gate(hidden[part]).softmax(0) for part in (slice(0, 3), slice(3, 5))])
    assert torch.allclose(pool.weight, expected, atol=1e-6) and pool.over == "graphs" and pool.num_targets == 2
    assert reading.explanation is reading.attention["conv"]
    assert any("left out: pool" in note for note in reading.attribution("tree").notes)


def test_a_pooling_that_attends_twice_has_two_sites():
    reading = fgai.read(Pooled(Set2Set(4, 2), 8), two())
    assert list(reading.attention) == ["conv", "pool", "pool@1"]


def test_nodes_of_an_unsorted_batch_keep_their_ids_and_graphs_theirs():
    model, data = AttentiveFP(4, 4, 2, 2, 2, 1).eval(), two()
    order = torch.tensor([4, 0, 3, 1, 2])
    mixed = Data(x=data.x[order], edge_index=order.argsort()[data.edge_index], edge_attr=data.edge_attr, num_graphs=2)
    mixed.batch = data.batch[order]
    before, after = (fgai.read(model, graph).attention["mol_conv"] for graph in (data, mixed))
    assert before.over == after.over == "graphs" and set(after.target.tolist()) == {0, 1}
    moved = torch.stack([order[after.source], after.target])
    assert torch.allclose(before.weights_at(moved), after.weight, atol=1e-6)


@pytest.mark.parametrize("ratio", [0.5, 0.9])
def test_attention_after_nodes_were_dropped_is_named_and_not_read(ratio):
    class Coarse(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.pool, self.after = GATConv(4, 4), TopKPooling(4, ratio), GATConv(4, 2)

        def forward(self, x, edge_index, batch):
            x, edge_index, _, batch, *_ = self.pool(self.conv(x, edge_index), edge_index, batch=batch)
            return torch.zeros(2, 2).index_add(0, batch, self.after(x, edge_index))

    reading = fgai.read(Coarse(), two())
    assert list(reading.attention) == ["conv"] and reading.unread == ("after",)
