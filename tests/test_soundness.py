"""Never wrong in silence: what was wrong and said nothing, one test for each case; S1 to S16 are its numbers."""

import math

import pytest
import torch
from torch_geometric.nn import GATConv

from fgai import AttentionBall, certify
from fgai.attention import Attention
from fgai.certificate import certified_radius, composed, guaranteed_overlap, worst_push
from fgai.certificate.composition import Box, softmax_bounds
from fgai.errors import NotFiniteError, SettingError
from fgai.metrics import top_overlap
from fgai.reading import Reader
from worlds import community, trained

NAN, INF = math.nan, math.inf


# --- what is proved -------------------------------------------------------------------------------------------------


def parallel(*entries):
    """One target, 9, and entries (source, weight); a source may come twice."""
    source, weight = zip(*entries, strict=True)
    ends = torch.stack([torch.tensor(source), torch.full((len(source),), 9)])
    return Attention(torch.tensor(weight, dtype=torch.double)[:, None], ends, 10)


def pushed(attention, push):
    return Attention(attention.weight + push[:, None], attention.edge_index, attention.num_targets)


TWICE = [
    (parallel((0, 0.25), (0, 0.25), (1, 0.45), (2, 0.05)), 0.05),
    (parallel((0, 0.52), (1, 0.25), (1, 0.23)), 0.04),
]


@pytest.mark.parametrize(("attention", "radius"), TWICE)
def test_the_certificate_adds_parallel_edges_up_as_the_overlap_does(attention, radius):  # S4
    assert float(certified_radius(attention, 1)[9]) == pytest.approx(radius)
    for norm in ("l1", "l2", "linf"):
        least = float(certified_radius(attention, 1, norm=norm)[9])
        for size in (0.99 * least, 1.01 * least):
            push = worst_push(attention, 1, size, norm)
            assert push.shape == (len(attention.weight),)
            told = float(guaranteed_overlap(attention, 1, size, norm)[9])
            assert float(top_overlap(attention, pushed(attention, push), 1)[9]) == told == float(size < least)


def test_an_attack_on_attention_counts_parallel_edges_as_one_neighbour():  # S4
    conv = GATConv(2, 3, add_self_loops=False).eval()
    edges = torch.tensor([[0, 0, 1, 2], [3, 3, 3, 3]])
    from torch_geometric.data import Data

    data = Data(x=torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), edge_index=edges)
    read = Reader(conv)
    clean = read(data).detach()
    for norm, size in (("l1", lambda d: d.abs().sum()), ("l2", torch.linalg.norm), ("linf", lambda d: d.abs().max())):
        attacked = AttentionBall(radius=0.3, norm=norm, steps=5)(read, data, lambda now: -now.logits[3, 0])
        delta = attacked.perturbation.plus_weight[""][:, 0]
        entries = torch.stack([delta[0] + delta[1], delta[2], delta[3]])
        assert 0.29 < float(size(entries)) <= 0.3 + 1e-6
    assert clean.logits.shape == (4, 3)


def softmax_ends(box):
    """The least and the largest weight of each entry of one node, by a log-sum-exp of the others."""
    low, high, d = box.low[:, 0], box.high[:, 0], len(box.middle)
    others = [[k for k in range(d) if k != j] for j in range(d)]
    least = [torch.sigmoid(low[j] - high[others[j]].logsumexp(0)) for j in range(d)]
    most = [torch.sigmoid(high[j] - low[others[j]].logsumexp(0)) for j in range(d)]
    return torch.stack(least), torch.stack(most)


def test_the_softmax_bound_holds_where_a_sum_would_cancel():  # S5
    box = Box(torch.tensor([[-19.0], [-37.0]]).double(), torch.tensor([[19.0], [0.0]]).double())
    bounds = softmax_bounds(box, torch.tensor([0, 0]), 1)
    assert float(bounds.low[0]) == pytest.approx(1 / (1 + math.e), abs=1e-12)


class Doubled(GATConv):
    def message(self, x_j, alpha):
        return 2 * alpha.unsqueeze(-1) * x_j


class Biased(GATConv):
    def edge_update(self, alpha_j, alpha_i, edge_attr, index, ptr, dim_size):
        return super().edge_update(3 * alpha_j, alpha_i, edge_attr, index, ptr, dim_size)


class Two(torch.nn.Module):
    def __init__(self, first, last):
        super().__init__()
        self.first, self.last = first, last

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


@pytest.mark.parametrize(
    ("layer", "settings"),
    [(GATConv, {"aggr": "mean"}), (GATConv, {"aggr": "max"}), (Doubled, {}), (Biased, {})],
    ids=["mean", "max", "message", "scores"],
)
@pytest.mark.parametrize("where", ["first", "last"])
def test_layers_that_the_formulas_do_not_model_have_no_bound(layer, settings, where):  # S6
    graph = community()
    torch.manual_seed(0)
    plain, other = (GATConv, {}), (layer, settings)
    (a, one), (b, two) = (other, plain) if where == "first" else (plain, other)
    model = Two(a(graph.num_features, 8, **one), b(8, 3, **two)).eval()
    assert composed(Reader(model), graph, 0.0) == {"first": None}
    usual = Two(GATConv(graph.num_features, 8), GATConv(8, 3)).eval()
    assert float(composed(Reader(usual), graph, 0.0)["first"].tvd.max()) < 1e-3


def test_weights_that_are_not_finite_have_no_certificate():  # S3
    broken = Attention(torch.full((3, 1), NAN), torch.tensor([[0, 1, 2], [3, 3, 3]]), 4)
    for ask in (certified_radius, guaranteed_overlap, worst_push):
        with pytest.raises(NotFiniteError, match="attention"):
            ask(broken, 1)


@pytest.mark.parametrize("radius", [NAN, INF, -0.1])
def test_a_radius_that_is_no_size_has_no_certificate(radius):  # S3
    attention = TWICE[0][0]
    for ask in (guaranteed_overlap, worst_push):
        with pytest.raises(SettingError, match="radius"):
            ask(attention, 1, radius)
    with pytest.raises(SettingError, match="radius"):
        certify(trained(), community(), radius=radius)
