import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric.nn import GATConv, GATv2Conv, SAGEConv, TransformerConv

from fgai import backbones, certify, datasets
from fgai.attention import Attention
from fgai.certificates import interval_bounds
from fgai.certificates.intervals import Box, _weighted_sum, softmax_bounds
from fgai.reading import Reader
from loose import loose

NORMS = {"l1": lambda v: v.abs().sum(), "l2": lambda v: v.norm(), "linf": lambda v: v.abs().max()}


class Chain(nn.Module):
    def __init__(self, layer, widths, heads, concat=True, between=nn.functional.elu, **settings):
        super().__init__()
        self.between = between
        scale = heads if concat else 1
        self.convs = nn.ModuleList(
            layer(a * (scale if i else 1), b, heads=heads, concat=concat, **settings)
            for i, (a, b) in enumerate(itertools.pairwise(widths[:-1]))
        )
        self.last = layer(widths[-2] * scale, widths[-1], **settings)

    def forward(self, x, edge_index):
        for conv in self.convs:
            x = self.between(conv(x, edge_index))
        return self.last(x, edge_index)


def graph(seed=0):
    data = datasets.synthetic(nodes=40, edges=160, features=6, seed=seed)
    data.x = data.x.double()
    return data


def push_of(place, radius, norm, draw):
    push = torch.randn(place.weight.shape, generator=draw, dtype=torch.double)
    for node, head in itertools.product(range(place.num_targets), range(place.weight.size(1))):
        at = place.target == node
        if at.any():
            push[at, head] *= radius / NORMS[norm](push[at, head])
    return push


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv])
@pytest.mark.parametrize("norm", sorted(NORMS))
@pytest.mark.parametrize(("concat", "widths"), [(True, (6, 4, 3)), (False, (6, 4, 5, 3))])
def test_no_push_of_an_earlier_layer_goes_beyond_the_bound(layer, norm, concat, widths):
    torch.manual_seed(1)
    data, model = graph(), Chain(layer, widths, 2, concat).double().eval()
    read, draw, radius = Reader(model), torch.Generator().manual_seed(0), 0.02
    clean = read(data).detach()
    bounds = interval_bounds(read, data, radius, norm)
    assert list(bounds) == [f"convs.{i}" for i in range(len(widths) - 2)]
    for site, bound in bounds.items():
        for _ in range(15):
            push = push_of(clean.attention[site], radius, norm, draw)
            now = read(data, weight_delta={site: push}).detach()
            assert bool((0.5 * (now.probs - clean.probs).abs().sum(1) <= bound.tvd + 1e-12).all())
            assert bool((now.logits.argmax(1) == clean.logits.argmax(1))[bound.class_kept].all())
            gap = (now.explanation.weight - clean.explanation.weight).abs().mean(1)
            moved = torch.zeros(40, dtype=torch.double).index_add(0, clean.explanation.target, gap)
            assert bool((moved <= bound.shift + 1e-12).all())


def test_nor_does_the_steepest_push():
    torch.manual_seed(1)
    data, model = graph(), Chain(GATConv, (6, 4, 3), 1).double().eval()
    read, radius = Reader(model), 0.02
    clean, bound = read(data).detach(), interval_bounds(read, data, radius)["convs.0"]
    for node in range(40):
        zero = torch.zeros_like(clean.attention["convs.0"].weight).requires_grad_()
        said = read(data, weight_delta={"convs.0": zero})
        slope = torch.autograd.grad(said.logits[node, 0] - said.logits[node, 1], zero)[0][:, 0]
        push = torch.zeros_like(slope)
        for target in range(40):  # the whole radius on the steepest edge of every node
            at = (clean.attention["convs.0"].target == target).nonzero().flatten()
            best = at[slope[at].abs().argmax()]
            push[best] = radius * slope[best].sign()
        now = read(data, weight_delta={"convs.0": push[:, None]}).detach()
        assert float(0.5 * (now.probs - clean.probs)[node].abs().sum()) <= float(bound.tvd[node])


def test_the_bound_shrinks_to_nothing_with_the_radius():
    torch.manual_seed(1)
    read, data = Reader(Chain(GATv2Conv, (6, 4, 3), 2).double().eval()), graph()
    tvd = [float(interval_bounds(read, data, radius)["convs.0"].tvd.max()) for radius in (0.0, 1e-6, 1e-3, 0.1)]
    assert tvd[0] == pytest.approx(0.0, abs=1e-12) and tvd == sorted(tvd) and tvd[1] < 1e-4
    assert bool(interval_bounds(read, data, 0.0)["convs.0"].class_kept.all())


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(0, 2)), min_size=1, max_size=4))
def test_the_ends_of_a_softmax_are_those_of_its_corners(scores):
    """A softmax rises in its own score and falls in the others, so its extremes lie at corners of the box."""
    middle, radius = (torch.tensor(part, dtype=torch.double) for part in zip(*scores, strict=True))
    corners = [
        (middle + radius * torch.tensor(signs, dtype=torch.double)).softmax(0)
        for signs in itertools.product((-1, 1), repeat=len(scores))
    ]
    bounds = softmax_bounds(Box(middle[:, None], radius[:, None]), torch.zeros(len(scores), dtype=torch.long), 1)
    assert torch.allclose(bounds.low[:, 0], torch.stack(corners).amin(0), atol=1e-12)
    assert torch.allclose(bounds.high[:, 0], torch.stack(corners).amax(0), atol=1e-12)


def test_scores_too_wide_to_exponentiate_promise_nothing():
    bounds = softmax_bounds(Box(torch.zeros(2, 1), torch.full((2, 1), 1e4)), torch.zeros(2, dtype=torch.long), 1)
    assert bounds.low.tolist() == [[0.0], [0.0]] and bounds.high.tolist() == [[1.0], [1.0]]


def test_the_weight_of_an_edge_that_is_alone_is_one_whatever_its_score():
    bounds = softmax_bounds(Box(torch.zeros(1, 1), torch.full((1, 1), 1e4)), torch.zeros(1, dtype=torch.long), 1)
    assert float(bounds.low) == float(bounds.high) == 1.0


class Skipping(Chain):
    def forward(self, x, edge_index):
        return self.last(self.convs[0](x, edge_index) + 1e-9 * x[:, :1], edge_index)


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = GATConv(6, 4), SAGEConv(4, 4), GATConv(4, 3)

    def forward(self, x, edge_index):
        return self.last(self.middle(self.first(x, edge_index), edge_index), edge_index)


@pytest.mark.parametrize(
    "model",
    [
        Skipping(GATConv, (6, 4, 3), 1),
        Mixed(),
        Chain(GATConv, (6, 4, 3), 1, residual=True),
        Chain(GATConv, (6, 4, 3), 1, between=lambda h: h.square()),
        Chain(TransformerConv, (6, 4, 3), 1),
    ],
    ids=["skip", "another layer between", "residual", "not monotone", "no GAT"],
)
def test_other_models_have_none(model):
    assert set(interval_bounds(Reader(model.double().eval()), graph(), 0.01).values()) == {None}


def test_the_certificate_names_layers_heads_and_how_each_is_known():
    data = datasets.load("synthetic")
    model = backbones.build("gat", data)
    small, large = certify(model, data, k=3, radius=1e-4, steps=1), certify(model, data, k=3, radius=50.0, steps=1)
    assert "conv2 (1 head): top 3" in str(small) and "conv1 before it: interval bound" in str(small)
    assert 0 < small.as_dict()["earlier"]["conv1"]["class_kept"] <= 1
    assert "conv1 before it: none" in str(large) and large.as_dict()["earlier"]["conv1"] is None
    placed = backbones.GT.prepare(data)
    assert "conv1 before it: none" in str(certify(backbones.build("gt", placed), placed, k=3, steps=1))


def test_where_everything_is_linear_the_bound_is_reached():
    """One channel, no attention in the last layer, no activation: a push along the steepest edges is the worst."""
    torch.manual_seed(3)
    data, model = graph(), Chain(GATConv, (6, 1, 2), 1, between=lambda h: h).double().eval()
    with torch.no_grad():
        model.last.att_src.zero_()
        model.last.att_dst.zero_()
        model.last.lin.weight.copy_(torch.tensor([[1.0], [-1.0]]))
    read = Reader(model)
    clean = read(data).detach()
    look, value = clean.attention["convs.0"], loose(model).convs[0].lin(data.x).detach()[:, 0]
    steepest = torch.zeros(len(look.target), dtype=torch.double)
    for node in range(40):
        at = (look.target == node).nonzero().flatten()
        edge = at[value[look.source[at]].abs().argmax()]
        steepest[edge] = value[look.source[edge]].sign()
    before = clean.logits.argmax(1)
    for radius in torch.logspace(-3, 1, 15).tolist():
        kept = interval_bounds(read, data, radius)["convs.0"].class_kept
        pushes = [sign * radius * steepest[:, None] for sign in (1, -1)]
        same = [read(data, weight_delta={"convs.0": push}).logits.argmax(1) == before for push in pushes]
        assert torch.equal(kept, same[0] & same[1])


def test_weight_that_changes_hands_is_worked_out_by_hand():
    """Three neighbours of value 0, 1, 5 and weight .5, .3, .2; a tenth of the weight may go from one to another."""
    look = Attention(torch.tensor([[0.5], [0.3], [0.2]], dtype=torch.double), torch.tensor([[0, 1, 2], [0, 0, 0]]), 1)
    value = torch.tensor([0.0, 1.0, 5.0], dtype=torch.double).view(3, 1, 1)
    spare = torch.tensor([[0.1]], dtype=torch.double)
    box = _weighted_sum(Box(value, torch.zeros_like(value)), look.weight, spare, look)
    assert float(box.high) == pytest.approx(0.4 * 0 + 0.3 * 1 + 0.3 * 5)
    assert float(box.low) <= 0.6 * 0 + 0.3 * 1 + 0.1 * 5
    wide = _weighted_sum(Box(value, torch.full_like(value, 0.5)), look.weight, spare, look)
    assert float(wide.high) >= 0.4 * 0.5 + 0.3 * 1.5 + 0.3 * 5.5
