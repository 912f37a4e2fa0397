from contextlib import nullcontext

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, TransformerConv

import fgai.kernels.pyg
import fgai.kernels.subset
from fgai import Reader, accelerated, backbones, datasets, read
from fgai.graph import add_nodes
from fgai.modes import frozen_params
from fgai.rows import append_rows
from fgai.seeding import seeded
from loose import loose


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    monkeypatch.setattr(fgai.kernels.pyg, "MIN_EDGES", 0)


@pytest.fixture(name="counted")
def _counted(monkeypatch):
    """How often the kernel ran."""
    calls = []
    plain = fgai.kernels.subset.aggregate
    monkeypatch.setattr(fgai.kernels.subset, "aggregate", lambda *args: calls.append(1) or plain(*args))
    return calls


def step(layer, *inputs):
    layer.zero_grad()
    with seeded(0):
        out = layer(*inputs)
    out.square().sum().backward()
    return [out.detach(), *(p.grad.clone() for p in layer.parameters() if p.grad is not None)]


LAYERS = {
    "gat": lambda **s: GATConv(4, 3, **s),
    "gatv2": lambda **s: GATv2Conv(4, 3, **s),
    "transformer": lambda **s: TransformerConv(4, 3, **{k: v for k, v in s.items() if k != "add_self_loops"}),
}


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20),
    st.sampled_from(sorted(LAYERS)),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_outputs_and_gradients_are_pygs_in_training_mode_too(edges, name, heads, concat, loops):
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t().contiguous()
    with seeded(1):
        layer = LAYERS[name](heads=heads, concat=concat, add_self_loops=loops, dropout=0.4).double()
        x = torch.randn(8, 4, dtype=torch.double)  # node 7 is isolated
    expected = step(layer, x, edge_index)
    with accelerated(layer):
        found = step(layer, x, edge_index)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["gat", "gatv2", "gt"])
def test_our_backbones_run_on_the_kernels_and_are_read_by_a_tap(name, counted):
    data = backbones.GT.prepare(datasets.synthetic(nodes=100, edges=600))
    model = backbones.build(name, data).double().eval()
    data.x, data.pe = data.x.double(), data.pe.double()
    read = Reader(model)
    plain = read(data)
    assert not counted
    with accelerated(model):
        fast = read(data)
    assert len(counted) == 2
    torch.testing.assert_close(fast.logits, plain.logits, rtol=0, atol=1e-10)
    for site, attention in plain.attention.items():
        assert torch.equal(fast.attention[site].edge_index, attention.edge_index)
        torch.testing.assert_close(fast.attention[site].weight, attention.weight, rtol=0, atol=1e-12)


def test_perturbations_reach_the_kernels(counted):
    data = datasets.synthetic(nodes=100, edges=600)
    model = backbones.build("gat", data).eval()
    read = Reader(model)
    delta = {"conv2": torch.rand_like(read(data).attention["conv2"].weight).requires_grad_()}
    expected = read(data, weight_delta=delta).logits
    with accelerated(model):
        found = read(data, weight_delta=delta).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    ours, theirs = (torch.autograd.grad(y.square().sum(), delta["conv2"])[0] for y in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


class OwnMessage(GATConv):
    def message(self, x_j, alpha):
        return 2 * super().message(x_j, alpha)


class OwnPropagate(GATConv):
    def propagate(self, edge_index, size=None, **inputs):
        return 3 * super().propagate(edge_index, size=size, **inputs)


class OwnName(GATConv):
    pass


X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


@pytest.mark.parametrize(
    ("layer", "runs"),
    [
        (GATConv(4, 3), True),
        (OwnName(4, 3), True),
        (OwnMessage(4, 3), False),
        (OwnPropagate(4, 3), False),
        (GATConv(4, 3, aggr="max"), False),
        (GATConv(4, 3, flow="target_to_source"), False),
        (GCNConv(4, 3), False),
    ],
    ids=["gat", "subclass", "own message", "own propagate", "max", "other way", "no attention"],
)
def test_only_what_is_pygs_own_is_replaced(layer, runs, counted):
    expected = layer(X, EDGES)
    with accelerated(layer):
        found = layer(X, EDGES)
    torch.testing.assert_close(found, expected)
    assert bool(counted) == runs


def test_edge_features_are_handled_or_left_to_pyg():
    attributes = torch.randn(4, 2)
    for layer in (GATConv(4, 3, edge_dim=2), GATv2Conv(4, 3, edge_dim=2), TransformerConv(4, 3, edge_dim=2)):
        expected = layer(X, EDGES, attributes)
        with accelerated(layer):
            torch.testing.assert_close(layer(X, EDGES, attributes), expected)


def test_bipartite_inputs_keep_their_sizes():
    layer = GATConv((4, 4), 3, add_self_loops=False)
    expected = layer((X, X[:4]), EDGES)
    with accelerated(layer):
        torch.testing.assert_close(layer((X, X[:4]), EDGES), expected)


def test_a_changed_edge_tensor_is_not_taken_for_the_old_one():
    layer, edges = GATConv(4, 3), EDGES.clone()
    with accelerated(layer):
        layer(X, edges)
        edges[0] = edges[0].flip(0)
        found = layer(X, edges)
    torch.testing.assert_close(found, layer(X, edges))


def test_nothing_is_left_on_the_model_after_an_exception():
    layer = GATConv(4, 3)
    before = sorted(vars(layer))
    with pytest.raises(ZeroDivisionError), accelerated(layer):
        _ = 1 / 0
    assert type(layer) is GATConv
    assert sorted(vars(layer)) == before


class Mine(nn.Module):
    """A user's model, in PyG and torch alone."""

    def __init__(self, layer, features, classes):
        super().__init__()
        self.conv1, self.conv2 = layer(features, 8, heads=4, dropout=0.6), layer(32, classes, dropout=0.6)

    def forward(self, x, edge_index):
        x = self.conv1(nn.functional.dropout(x, 0.6, self.training), edge_index)
        return self.conv2(nn.functional.dropout(x.relu(), 0.6, self.training), edge_index)


def loss_curve(model, data, epochs=20):
    """A plain training loop."""
    optimizer, losses = torch.optim.Adam(model.parameters(), 0.01), []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv, TransformerConv])
def test_a_users_own_loop_has_the_same_loss_curve(layer, counted):
    data = datasets.load("synthetic")
    curves = []
    for block in (accelerated, lambda _: nullcontext()):
        with seeded(0):
            model = Mine(layer, data.num_features, int(loose(data).y.max()) + 1)
            with block(model):
                curves.append(loss_curve(model, data))
    assert len(counted) == 40
    assert curves[0] == pytest.approx(curves[1], abs=1e-5)
    assert curves[0][-1] < curves[0][0]


def test_other_masks_are_drawn_from_torchs_generator(counted):
    data = datasets.load("synthetic")
    model = Mine(GATConv, data.num_features, 4)
    with accelerated(model, exact=False):
        runs = []
        for seed in (0, 0, 1):
            with seeded(seed):
                runs.append(model(data.x, data.edge_index))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("name", ["gat", "gatv2", "gt"])
def test_sparse_features_give_the_gradients_of_dense_ones(name):
    data = backbones.GT.prepare(datasets.synthetic(nodes=60, edges=300, features=40))
    data.x = (data.x * (data.x.abs() > 1)).double()
    data.pe = data.pe.double()
    model = backbones.build(name, data).double().eval()
    sparse = datasets.compact(data)
    assert sparse.x.is_sparse
    with accelerated(model):
        (dense_step, sparse_step) = (
            step(model, *(given[name] for name in ("x", "edge_index", *["pe"] * (name == "gt"))))
            for given in (data, sparse)
        )
    for ours, theirs in zip(sparse_step, dense_step, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_rows_below_get_gradients_and_the_rows_above_are_not_multiplied_again(kind, monkeypatch):
    layer, old = nn.Linear(4, 3), X if kind == "dense" else X.to_sparse().coalesce()
    new = torch.randn(2, 4, requires_grad=True)
    calls = []
    plain = fgai.kernels.pyg.sparse_linear
    monkeypatch.setattr(fgai.kernels.pyg, "sparse_linear", lambda *args: calls.append(1) or plain(*args))
    expected = nn.functional.linear(torch.cat([X, new]), layer.weight, layer.bias)
    (slope,) = torch.autograd.grad(expected.square().sum(), new)
    layer.requires_grad_(False)
    with accelerated(layer):
        for _ in range(2):
            found = layer(append_rows(old, new))
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(torch.autograd.grad(found.square().sum(), new)[0], slope)
        assert len(calls) == (kind == "sparse")
        with torch.no_grad():
            layer.weight.mul_(2)  # then the product is another
        torch.testing.assert_close(layer(append_rows(old, new)) - layer.bias, 2 * (expected - layer.bias))


def test_parameters_get_their_gradients_from_both_parts():
    layer, new = nn.Linear(4, 3), torch.randn(2, 4)
    expected = step(layer, torch.cat([X, new]))
    with accelerated(layer):
        found = step(layer, append_rows(X.to_sparse(), new))
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", ["gat", "gatv2", "gt"])
def test_another_order_of_the_edges_says_the_same(name):
    data = backbones.GT.prepare(datasets.synthetic(nodes=100, edges=600))
    model = backbones.build(name, data).double().eval()
    data.x, data.pe = data.x.double(), data.pe.double()
    read = Reader(model)
    plain = read(data)
    with accelerated(model, exact=False):
        fast = read(data)
    torch.testing.assert_close(fast.logits, plain.logits, rtol=0, atol=1e-10)
    for site, attention in plain.attention.items():
        torch.testing.assert_close(
            fast.attention[site].coalesce().weight, attention.coalesce().weight, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("name", ["gat", "gatv2", "gt"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_while_an_injection_climbs_only_what_it_reaches_is_made_again(name, kind, monkeypatch):
    data = backbones.GT.prepare(datasets.synthetic(nodes=100, edges=600))
    model = backbones.build(name, data).double().eval()
    data.x, data.pe = data.x.double(), data.pe.double()
    if kind == "sparse":
        data.x = data.x.to_sparse().coalesce()
    links = torch.tensor([[100, 101, 101, 3, 7], [3, 7, 8, 100, 101]])
    read, edges, plain = Reader(model), [], fgai.kernels.subset.aggregate
    spy = lambda weight, value, order: edges.append(len(weight)) or plain(weight, value, order)  # noqa: E731
    monkeypatch.setattr(fgai.kernels.subset, "aggregate", spy)

    def look(x, **nudged):
        x = x.clone().requires_grad_()
        reading = read(add_nodes(data, x, links), **nudged)
        terms = [reading.logits.square().sum(), *(a.weight.square().sum() for a in reading.attention.values())]
        return reading, torch.autograd.grad(torch.stack(terms).sum(), x)[0]

    with frozen_params(model):
        for scale in (1.0, 1.0, 2.0):  # the second time nothing has moved, and then the weights have
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(scale)
            points = [torch.randn(2, data.num_features, dtype=torch.double) for _ in range(3)]
            expected = [look(x) for x in points]
            first = next(iter(expected[0][0].attention))
            nudge = {first: torch.rand_like(expected[0][0].attention[first].weight)}
            nudged = [look(points[0], score_delta=nudge), look(points[0], weight_delta=nudge)]
            with accelerated(model):
                found = [look(x) for x in points]
                found += [look(points[0], score_delta=nudge), look(points[0], weight_delta=nudge), look(points[0])]
            for (ours, slope), (theirs, theirs_slope) in zip(found, [*expected, *nudged, expected[0]], strict=True):
                torch.testing.assert_close(slope, theirs_slope, rtol=0, atol=1e-9)
                torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=1e-10)
                for site, attention in theirs.attention.items():
                    torch.testing.assert_close(ours.attention[site].weight, attention.weight, rtol=0, atol=1e-12)
    every, reached = max(edges), min(edges)
    assert reached < every / 10


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_what_an_injection_does_not_reach_is_made_again_when_any_parameter_changes(name):
    data = datasets.synthetic(nodes=100, edges=600)
    model, x = backbones.build(name, data).eval(), torch.randn(1, data.num_features)
    graph = add_nodes(data, x, torch.tensor([[100, 3], [3, 100]]))
    read = Reader(model)
    with torch.no_grad(), frozen_params(model):
        for parameter in loose(model).conv1.parameters():
            with accelerated(model):
                read(graph)
                parameter.add_(0.5)
                found = read(graph).logits
            torch.testing.assert_close(found, read(graph).logits)


def test_a_frozen_projection_leaves_the_other_parameters_their_gradients():
    data, conv = datasets.synthetic(nodes=100, edges=600), GATv2Conv(32, 2)
    for part in (conv.lin_l, conv.lin_r):
        part.requires_grad_(False)
    graph = add_nodes(data, torch.randn(1, 32), torch.tensor([[100, 3], [3, 100]]))
    expected = step(conv, graph.x + 0, graph.edge_index)
    with accelerated(conv):
        found = step(conv, graph.x, graph.edge_index)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_features_that_were_changed_in_place_are_read_as_they_are():
    data, conv = datasets.synthetic(nodes=100, edges=600), GATConv(32, 2).eval()
    graph = add_nodes(data, torch.ones(1, 32), torch.tensor([[100, 3], [3, 100]]))
    graph.x[-1] = -5
    with accelerated(conv), torch.no_grad():
        torch.testing.assert_close(conv(graph.x, graph.edge_index), conv(graph.x + 0, graph.edge_index))
    data.x[0] = 7
    graph = add_nodes(data, torch.ones(1, 32), torch.tensor([[100, 3], [3, 100]]))
    data.x[1] = 7  # afterwards: the graph has its own copy
    with accelerated(conv), torch.no_grad():
        torch.testing.assert_close(conv(graph.x, graph.edge_index), conv(graph.x + 0, graph.edge_index))


def test_two_graphs_that_differ_in_their_targets_alone_are_two():
    conv, nodes = TransformerConv(4, 2).eval().requires_grad_(False), torch.arange(40)
    x = torch.randn(40, 4)
    with accelerated(conv), torch.no_grad():
        for far in (1, 2):  # each node has one neighbour, so every weight is 1
            ring = Data(x=x, edge_index=torch.stack([nodes, (nodes + far) % 40]))
            graph = add_nodes(ring, torch.ones(1, 4), torch.tensor([[3], [40]]))
            torch.testing.assert_close(conv(graph.x, graph.edge_index), conv(graph.x + 0, graph.edge_index))


def test_a_hook_that_changes_what_is_propagated_has_its_effect():
    data, conv = datasets.synthetic(nodes=100, edges=600), GATConv(32, 2, bias=False).eval()
    conv.register_propagate_forward_pre_hook(
        lambda _, told: (*told[:2], {**told[2], "alpha": torch.zeros_like(told[2]["alpha"])})
    )
    with accelerated(conv):
        assert not conv(data.x, data.edge_index).any()


def test_inference_mode_is_no_obstacle():
    data = datasets.synthetic(nodes=400, edges=6_000)
    model = backbones.build("gat", data).eval()
    with torch.inference_mode():
        found = read(model, data).logits
    torch.testing.assert_close(found, read(model, data).logits)
