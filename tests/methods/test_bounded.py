"""Attention layers with bounded influence: what no injected row can do, whatever its size."""

import copy
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv
from torch_geometric.nn.models import GAT

from fgai import FGAI, AdversarialTraining, NodeInjection, backbones, datasets
from fgai.calling import call_by_signature
from fgai.datasets.split import split_nodes
from fgai.errors import SettingError
from fgai.large import Loader
from fgai.methods.bounded import LEAST, BoundedInfluence
from fgai.training import loop as training
from killing import killed_in_epoch

DATA = split_nodes(datasets.synthetic(120, 500, features=12, seed=1), seed=1)
SMALL = NodeInjection(nodes=2, edges=3, steps=1, step=0.5)
LAYERS = {"gat": GATConv, "gatv2": GATv2Conv}


def fitted(backbone, **settings):
    start = backbones.build(backbone, DATA)
    return FGAI(bounded=True, adversary=SMALL, epochs=6, **settings).fit(start, DATA).model


def parts(layer):
    """The rows of each head [H, D, F] without their signs, and the attention parameters of the sources [H, D]."""
    linear, att = (layer.lin, layer.att_src) if isinstance(layer, GATConv) else (layer.lin_l, layer.att)
    rows = linear.weight.detach().view(layer.heads, layer.out_channels, -1).clone()
    if isinstance(layer, GATv2Conv):
        rows[:, (layer.out_channels + 1) // 2 :] *= -1
    return rows, att[0].detach()


def random_layer(kind, seed=0):
    torch.manual_seed(seed)
    layer = kind(12, 4, heads=3).requires_grad_(False)
    BoundedInfluence("").start(layer)
    return layer.double()


def linked(x, edges, row, target):
    """The graph with one injected node, linked to a node."""
    new = len(x)
    ends = torch.tensor([[new, target], [target, new]])
    return torch.cat([x, row[None]]), torch.cat([edges, ends], 1)


def rows_with(layer, values):
    """A row of features whose value in each head is the one given."""
    weight = parts(layer)[0][:, 0]
    return torch.linalg.pinv(weight) @ values


@pytest.mark.parametrize("backbone", LAYERS)
def test_every_step_keeps_the_weights_allowed(backbone, monkeypatch):
    plain, seen = training._step, []

    def checked(run, *args):
        result = plain(run, *args)
        rows, att = parts(run.model.conv1)
        seen.append(float((rows - rows[:, :1]).abs().max()))
        assert (att <= -LEAST / att.size(1)).all()
        return result

    monkeypatch.setattr(training, "_step", checked)
    model = fitted(backbone)
    assert len(seen) == 6 and max(seen) == 0
    assert type(model) is backbones.BACKBONES[backbone]
    assert list(model.state_dict()) == list(backbones.build(backbone, DATA).state_dict())
    rows, _ = parts(model.conv1)
    assert rows[:, 0].abs().max() > 0


@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_a_large_row_does_nothing_or_takes_the_least_value(size):
    """In GATConv a value of +inf is as if the row were not there; one of -inf leaves ReLU at 0 and ELU at -1."""
    layer: Any = random_layer(GATConv)
    x, edges = DATA.x.double(), DATA.edge_index
    clean = layer(x, edges)
    signs = torch.tensor([1.0, -1.0, 1.0], dtype=torch.double)
    for target in (0, 7, 50):
        out = layer(*linked(x, edges, rows_with(layer, size * signs), target))[: len(x)]
        others = torch.arange(len(x)) != target
        assert torch.allclose(out[others], clean[others])
        heads, before = out[target].view(3, 4), clean[target].view(3, 4)
        assert torch.allclose(heads[signs > 0], before[signs > 0], atol=1e-6)
        assert (nn.functional.elu(heads[signs < 0]) < -0.999).all() and (heads[signs < 0].relu() == 0).all()


@pytest.mark.parametrize("units", [2, 3, 4])
@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("size", [1e4, 1e9])
def test_a_large_row_does_nothing_in_gatv2(units, share, size):
    """In both directions it is as if the row were not there, and the row itself sees its neighbours only."""
    torch.manual_seed(1)
    layer: Any = GATv2Conv(12, units, heads=3, share_weights=share).requires_grad_(False)
    BoundedInfluence("").start(layer)
    if not share:
        layer.lin_r.weight.copy_(-3 * layer.lin_l.weight)
        BoundedInfluence("").after_step(layer)
    layer, x, edges = layer.double(), DATA.x.double(), DATA.edge_index
    clean = layer(x, edges)
    for signs in product((1.0, -1.0), repeat=3):
        row = rows_with(layer, size * torch.tensor(signs, dtype=torch.double))
        for target in (0, 7, 50):
            out = layer(*linked(x, edges, row, target))
            assert torch.allclose(out[: len(x)], clean, atol=1e-6)
            assert torch.allclose(out[-1], value_alone(layer, x[target]), atol=1e-6)


def value_alone(layer, row):
    """The output of a node with the one neighbour that is given."""
    return layer(row[None], torch.empty(2, 0, dtype=torch.long))[0]


def test_no_row_lifts_the_output_of_gat_above_the_bound():
    """Against a grid of values: with z > 0 the weight is at most e^(-0.2 LEAST z) times that of the node itself."""
    layer: Any = random_layer(GATConv)
    x, edges = DATA.x.double(), DATA.edge_index
    weight, att = parts(layer)
    z, bias = x @ weight[:, 0].t(), layer.bias.view(3, 4)
    slope = -0.2 * att.sum(1)
    for target in (3, 20):
        near = torch.cat([edges[0, edges[1] == target], torch.tensor([target])])
        top = z[near].amax(0)
        bound = top + (1 / slope) * torch.exp(slope * top.clamp(min=0) - 1)  # max over z of z e^(slope (top - z))
        for value in torch.logspace(-2, 4, 60, dtype=torch.double):
            row = rows_with(layer, value.expand(3))
            out = layer(*linked(x, edges, row, target))[target].view(3, 4) - bias
            assert (out <= bound[:, None].clamp(min=0) + 1e-9).all()


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_scores_of_gatv2_fall_on_both_sides(side):
    """By the formula of the module: from a point on they fall by 0.4 a D for each unit of |z|."""
    layer: Any = random_layer(GATv2Conv)
    weight, att = parts(layer)
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0], dtype=torch.double)
    k = -(layer.lin_r.weight.view(3, 4, -1)[:, 0] / weight[:, 0])[:, 0]
    assert (k <= 0.4 + 1e-9).all()
    assert torch.allclose(layer.lin_r.weight.view(3, 4, -1), -(k.view(3, 1, 1) * signs.view(1, 4, 1) * weight))
    own = DATA.x[5].double() @ weight[:, 0].t()
    shift = (layer.lin_l.bias + layer.lin_r.bias).view(3, 4)
    values = side * torch.logspace(2, 4, 9, dtype=torch.double)[:, None, None]
    inside = signs * (values - (k * own).view(1, 3, 1)) + shift
    scores = (nn.functional.leaky_relu(inside, 0.2) * att).sum(-1)
    falls = (scores[1:] - scores[:-1]) / (values[1:] - values[:-1]).abs().squeeze(-1)
    assert torch.allclose(falls, (0.4 * att.sum(1)).expand_as(falls))
    assert (falls <= -0.4 * LEAST + 1e-9).all()


def test_a_plain_layer_grows_with_the_row():
    torch.manual_seed(0)
    layer, x, edges = GATConv(12, 4, heads=3).double(), DATA.x.double(), DATA.edge_index
    with torch.no_grad():
        row = torch.randn(12, dtype=torch.double)
        out = [
            max(layer(*linked(x, edges, sign * size * row, 0))[0].abs().max() for sign in (-1, 1))
            for size in (1e3, 1e6)
        ]
    assert out[1] > 100 * out[0]


@pytest.mark.parametrize("method", [FGAI, AdversarialTraining])
def test_the_preset_trains_a_model_of_pyg(method):
    torch.manual_seed(0)
    model = GAT(12, 16, num_layers=2, out_channels=4, heads=4)
    bounded = method.preset("bounded", adversary=SMALL, epochs=3).fit(model, DATA).model
    rows, att = parts(bounded.convs[0])
    assert torch.equal(rows, rows[:, :1].expand_as(rows)) and (att.sum(1) <= -LEAST + 1e-6).all()


def test_batches_of_a_loader_keep_the_weights_allowed():
    loader = Loader(DATA, (5, 5), batch=60)
    model = FGAI(bounded=True, adversary=SMALL, epochs=2).fit(backbones.build("gat", DATA), loader).model
    rows, _ = parts(model.conv1)
    assert torch.equal(rows, rows[:, :1].expand_as(rows))


def test_a_killed_run_resumes(tmp_path, monkeypatch):
    method, start = FGAI(bounded=True, adversary=SMALL, epochs=14), backbones.build("gat", DATA)
    whole, file = method.fit(start, DATA), tmp_path / "run.safetensors"
    with killed_in_epoch(13, monkeypatch):
        method.fit(start, DATA, checkpoint=file)
    assert file.exists()
    again = method.fit(start, DATA, checkpoint=file)
    assert all(torch.equal(a, b) for a, b in zip(*(f.model.state_dict().values() for f in (whole, again)), strict=True))


class Net(nn.Module):
    def __init__(self, first, act: Any, skip=False):
        super().__init__()
        self.first, self.last, self.act = first, GATConv(12, 4), act
        self.skip = nn.Linear(12, 12) if skip else nn.Identity()

    def forward(self, x, edge_index):
        hidden = self.act(self.first(x, edge_index))
        return self.last(hidden + self.skip(x) if isinstance(self.skip, nn.Linear) else hidden, edge_index)


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (Net(TransformerConv(12, 4, heads=3), torch.relu), "first attention layer"),
        (Net(GATConv(12, 12, heads=3, concat=False), torch.relu), "concat=True"),
        (Net(GATConv(12, 4, heads=3, residual=True), torch.relu), "without residual"),
        (Net(GATConv(12, 4, heads=3), nn.functional.leaky_relu), "not bounded below"),
        (Net(GATv2Conv(12, 1, heads=12), torch.relu), "two or more units"),
        (Net(GATConv(12, 4, heads=3, negative_slope=0.0), torch.relu), "negative_slope above 0"),
        (nn.Sequential(nn.Linear(12, 4)), "first attention layer"),
    ],
)
def test_a_model_that_cannot_be_bounded_is_refused(net, words):
    call = None if isinstance(net, Net) else lambda model, data: model(data.x)
    before = copy.deepcopy(net.state_dict())
    with pytest.raises(SettingError, match=words):
        FGAI(bounded=True, adversary=SMALL, epochs=1).fit(net, DATA, call=call)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.parametrize("seed", range(20))
def test_another_path_of_the_features_is_found_whatever_the_weights(seed):
    """The last layer may give no weight to a row, and then all its weight to the negative of this row."""
    torch.manual_seed(seed)
    net = Net(GATConv(12, 4, heads=3), torch.relu, skip=True)
    with pytest.raises(SettingError, match="another path"):
        FGAI(bounded=True, adversary=SMALL, epochs=1).fit(net, DATA)


def test_the_first_weights_keep_the_scores_along_the_first_direction():
    """A head whose weight has one direction keeps its scores, by SVD."""
    torch.manual_seed(1)
    layer: Any = GATConv(6, 4, heads=2)
    left, right = torch.randn(2, 4, 1), torch.randn(2, 1, 6)
    with torch.no_grad():
        layer.lin.weight.copy_((3 * left @ right).view(8, 6))
        layer.att_src.mul_(5)
    x = torch.randn(9, 6)
    before = (layer.lin(x).view(9, 2, 4) * layer.att_src).sum(-1)
    BoundedInfluence("").start(layer)
    after = (layer.lin(x).view(9, 2, 4) * layer.att_src).sum(-1)
    steep = layer.att_src[0].detach().sum(1) < -1.001
    assert steep.any()
    assert torch.allclose(before[:, steep], after[:, steep], atol=1e-4)


def test_the_logits_of_a_trained_model_do_not_grow():
    model, largest = fitted("gat"), []
    for size in (1e4, 1e12):
        row = size * torch.sign(torch.randn(12, generator=torch.Generator().manual_seed(0)))
        x, edges = linked(DATA.x, DATA.edge_index, row, 5)
        with torch.no_grad():
            largest.append(float(call_by_signature(model, Data(x=x, edge_index=edges)).abs().max()))
    assert largest[1] < 1.01 * largest[0] + 1e-3
