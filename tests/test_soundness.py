"""Never wrong in silence: what was wrong and said nothing, one test for each case; S1 to S16 are its numbers."""

import itertools
import math
from contextlib import nullcontext
from copy import copy, deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GPSConv

import fgai
from fgai import FGAI, AdversarialTraining, AttentionBall, EdgeRewiring, LayerNorm, NodeInjection, Vanilla, datasets
from fgai.acceleration import accelerated
from fgai.attention import Attention
from fgai.audit.trial import calm, under
from fgai.audit.verdict import judge
from fgai.backbones import build
from fgai.certificate import certified_radius, certify, composed, guaranteed_overlap, worst_push
from fgai.certificate.composition import Box, softmax_bounds
from fgai.errors import CallError, DataError, NotFiniteError, SettingError
from fgai.metrics import g_jsd, micro_f1, released_g_jsd, roc_auc, top_overlap
from fgai.reading import Reader
from fgai.scale import audit_batches, certify_batches
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


# --- what is measured -----------------------------------------------------------------------------------------------

ATTACK = NodeInjection(nodes=3, edges=4, steps=2)


def but(graph=None, **changed):
    """The community graph with other attributes."""
    graph = copy(community() if graph is None else graph)
    for name, value in changed.items():
        graph[name] = value
    return graph


def with_nan():
    x = community().x.clone()
    x[5, 0] = NAN
    return but(x=x)


def broken():
    """A model whose weights are NaN."""
    model = deepcopy(trained())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(NAN)
    return model


EVERY_DOOR = {
    "read": lambda model, graph: fgai.read(model, graph),
    "audit": lambda model, graph: fgai.audit(model, graph, ATTACK, seeds=1),
    "compare": lambda model, graph: fgai.compare({"one": model}, graph, ATTACK, seeds=1),
    "certify": lambda model, graph: fgai.certify(model, graph, k=2, steps=1),
    "vanilla": lambda model, graph: Vanilla(epochs=1).fit(model, graph),
    "at": lambda model, graph: AdversarialTraining(adversary=ATTACK, epochs=1).fit(model, graph),
    "ln": lambda model, graph: LayerNorm(epochs=1).fit(model, graph),
    "fgai": lambda model, graph: FGAI(adversary=ATTACK, epochs=1).fit(model, graph),
    "loader": lambda model, graph: FGAI(adversary=ATTACK, epochs=1).fit(model, [graph]),
    "audit_batches": lambda model, graph: audit_batches(model, [graph], ATTACK),
    "certify_batches": lambda model, graph: certify_batches(model, [graph], k=2, steps=1),
}
OF_LABELS = ("vanilla", "at", "ln")  # they learn from labels


@pytest.mark.parametrize("door", EVERY_DOOR)
def test_features_that_are_not_finite_are_refused_at_every_door(door):  # S1, S8
    with pytest.raises(NotFiniteError, match="1 of 2400 numbers of `x` are not finite"):
        EVERY_DOOR[door](trained(), with_nan())


@pytest.mark.parametrize("door", EVERY_DOOR)
def test_a_model_whose_answers_are_not_finite_is_refused_at_every_door(door):  # S3, S8
    with pytest.raises(NotFiniteError, match="are not finite"):
        EVERY_DOOR[door](broken(), community())


def test_a_clean_gain_that_is_not_finite_is_an_error_and_not_a_harmless_attack():  # S1
    read = Reader(trained().eval())
    with pytest.raises(NotFiniteError, match="the gain of the clean graph is nan"):
        ATTACK(read, community(), lambda now: now.logits.sum() * NAN)


@pytest.mark.parametrize(
    "attack", [ATTACK, NodeInjection(3, 4, steps=0), fgai.FeatureBall(steps=1), EdgeRewiring(2, 2, greedy=False)]
)
def test_an_attack_that_breaks_the_model_is_not_counted_as_harmless(attack):  # S1
    def gain(now):
        return now.logits.sum() * (1.0 if now.graph is clean_graph else NAN) if hasattr(now, "graph") else once(now)

    clean_graph, calls = community(), []

    def once(now):
        calls.append(now)
        return now.logits.sum() * (1.0 if len(calls) == 1 else NAN)

    with pytest.raises(NotFiniteError, match="broken there, not stable"):
        attack(Reader(trained().eval()), clean_graph, gain)


class Overflowing(torch.nn.Module):
    """Its answers are infinite on features that the clean graph does not have."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, edge_index):
        return self.inner(x, edge_index) * torch.where(x.max() > 50, INF, 1.0)


def test_an_audit_whose_attack_makes_the_answers_infinite_has_no_verdict():  # S1
    with pytest.raises(NotFiniteError):
        fgai.audit(Overflowing(trained()).eval(), community(), replace(ATTACK, box=(-100.0, 100.0), step=2.0), seeds=1)


class Rooted(torch.nn.Module):
    """A square root whose slope at 0 is infinite."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, edge_index):
        return self.inner(x, edge_index) + (0 * x).abs().sum().sqrt()


def test_a_gradient_that_is_not_finite_is_said_and_not_climbed():  # S1
    with pytest.raises(NotFiniteError, match="gradient that is not finite"):
        fgai.audit(Rooted(trained()).eval(), community(), ATTACK, seeds=1)


GOOD = {"f1": 0.9, "g_tvd": 0.0, "overlap": 1.0, "nonuniformity": 0.5}
FLOOR = {"f_slope_most": -0.4, "f_slope_least": -0.1, "f_slope_random": -0.2, "f_slope_random_deviation": 0.02}
FLOOR |= {"overlap_randomised": 0.5, "g_tvd_uniform": 0.3, "f1_largest_class": 0.3}


@pytest.mark.parametrize(
    ("which", "name"),
    [(0, "f1"), (0, "nonuniformity"), (1, "f1"), (1, "g_tvd"), (1, "overlap"), (2, "g_tvd_uniform")],
)
@pytest.mark.parametrize("value", [NAN, INF])
def test_no_verdict_is_given_on_a_number_that_is_not_finite(which, name, value):  # S1
    told = [dict(GOOD), dict(GOOD), dict(FLOOR)]
    told[which][name] = value
    with pytest.raises(NotFiniteError, match=name):
        judge(*told)


def test_what_could_not_be_tested_is_said_in_the_verdict():  # S1
    none_right = FLOOR | {name: NAN for name in FLOOR if name.startswith("f_slope")}
    assert "no judged node is right" in " ".join(judge(GOOD, GOOD, none_right).reasons)
    few = judge(GOOD, GOOD, FLOOR | {"overlap_randomised": NAN})
    assert "was not tested" in " ".join(few.reasons) and few.word == "stable"


@pytest.mark.parametrize("door", ["audit", "compare", *OF_LABELS, "loader", "audit_batches"])
def test_labels_beyond_the_classes_are_refused(door):  # S2
    with pytest.raises(DataError, match="labels run from 0 to 9, and the model answers for the classes 0 to 2"):
        EVERY_DOOR[door](trained(), but(y=torch.where(community().y == 2, 9, community().y)))


def test_labels_of_nodes_that_nobody_scores_may_be_anything():  # S2
    y = community().y.clone()
    y[~community().test_mask] = -1
    assert EVERY_DOOR["audit"](trained(), but(y=y)).clean["f1"] > 0.5


@pytest.mark.parametrize("weights", [NAN, INF])
def test_metrics_of_numbers_that_are_not_finite_are_errors(weights):  # S14
    clean = TWICE[0][0]
    wrong = Attention(torch.full_like(clean.weight, weights), clean.edge_index, clean.num_targets)
    answers, y = torch.full((4, 2), weights), torch.tensor([0, 1, 0, 1])
    for ask in (
        lambda: top_overlap(clean, wrong),
        lambda: g_jsd(clean, wrong),
        lambda: released_g_jsd(clean, wrong),
        lambda: micro_f1(answers, y),
        lambda: roc_auc(answers, y),
    ):
        with pytest.raises(NotFiniteError, match="not finite"):
            ask()


def test_the_released_metric_depends_neither_on_the_order_of_the_edges_nor_on_acceleration():  # S11
    graph = datasets.load("synthetic")
    read, adversary = Reader(trained_on(graph).eval()), NodeInjection(5, 10, steps=1)
    values = []
    for faster in (nullcontext, accelerated, lambda model: accelerated(model, as_pyg=False)):
        with faster(read.model):
            clean = calm(read, graph)
            attacked = under(adversary, "kl", clean, 0)
        values.append(released_g_jsd(clean.clean.explanation, attacked.now.explanation))
    assert values[0] == pytest.approx(values[2], rel=1e-4) and values[1] == pytest.approx(values[2], rel=1e-4)
    look = clean.clean.explanation
    order = torch.randperm(len(look.weight), generator=torch.Generator().manual_seed(0))
    turned = Attention(look.weight[order], look.edge_index[:, order], look.num_targets)
    assert released_g_jsd(look, turned) == 0.0


def trained_on(graph):
    return build("gat", graph, seed=0)


class Softmaxed(torch.nn.Module):
    def __init__(self, inner, how):
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, x, edge_index):
        return self.how(self.inner(x, edge_index), dim=-1)


@pytest.mark.parametrize("door", EVERY_DOOR)
def test_a_model_that_gives_probabilities_is_not_softmaxed_twice(door):  # S12
    with pytest.raises(CallError, match=r"returned probabilities.*log"):
        EVERY_DOOR[door](Softmaxed(trained(), torch.softmax), community())


def test_log_probabilities_are_logits_and_the_remedy_for_probabilities_works():  # S12
    logged, probable = (Softmaxed(trained(), how).eval() for how in (torch.log_softmax, torch.softmax))
    plain = fgai.read(trained(), community()).probs
    assert torch.allclose(fgai.read(logged, community()).probs, plain, atol=1e-6)
    call = lambda model, data: model(data.x, data.edge_index).clamp(min=1e-12).log()  # noqa: E731
    assert torch.allclose(fgai.read(probable, community(), call).probs, plain, atol=1e-6)


class Global(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GPSConv(16, GATConv(16, 16), heads=2, dropout=0.0)
        self.out = GATConv(16, 3)

    def forward(self, x, edge_index):
        return self.out(self.conv(x, edge_index), edge_index)


def test_attention_that_is_not_read_is_named():  # S15
    torch.manual_seed(0)
    model = Global().eval()
    assert fgai.read(model, community()).unread == ("conv.attn",)
    assert fgai.read(trained(), community()).unread == ()
    told = fgai.audit(model, community(), ATTACK, seeds=1)
    assert "attention inside conv.attn is not read" in told.text()
    assert "attention inside conv.attn" in fgai.certify(model, community(), k=2, steps=1).text()


def test_attention_inside_the_noise_is_not_called_unfaithful():  # S16
    noisy = {"f_slope_most": -0.402, "f_slope_least": -0.138, "f_slope_random": -0.250}
    found = judge(GOOD, GOOD, FLOOR | noisy | {"f_slope_random_deviation": 0.0875})
    assert found.word == "stable"
    assert "hurts more (slope -0.402) than deleting random edges (-0.250 ± 0.175)" in " ".join(found.reasons)


def test_only_the_comparison_that_failed_is_named():  # S16
    found = judge(GOOD, GOOD, FLOOR | {"f_slope_most": -0.125, "f_slope_least": -0.030, "f_slope_random": -0.2})
    assert found.word == "unfaithful"
    assert "random edges (-0.200)" in " ".join(found.reasons) and "-0.030" not in " ".join(found.reasons)
