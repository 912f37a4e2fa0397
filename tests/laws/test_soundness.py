"""Never wrong in silence: what was wrong and said nothing, one test for each case; S1 to S16 are its numbers."""

import importlib.util
import math
from contextlib import nullcontext
from copy import copy, deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import GATConv, GCNConv, GPSConv, global_mean_pool
from torch_geometric.utils import add_self_loops, dropout_edge
from typer.testing import CliRunner

import fgai
from fgai import FGAI, AdversarialTraining, AttentionBall, EdgeRewiring, LayerNorm, NodeInjection, Vanilla, datasets
from fgai.adversaries import ADVERSARIES, GAINS
from fgai.adversaries.rewiring import _link_effects
from fgai.attention import Attention
from fgai.backbones import build
from fgai.certificates import certified_radius, certify, guaranteed_overlap, interval_bounds, worst_push
from fgai.certificates.intervals import Box, _weighted_sum, softmax_bounds
from fgai.cli import app
from fgai.divergence import tvd
from fgai.errors import CallError, DataError, NotDifferentiableError, NotFiniteError, SettingError
from fgai.grades import Grade, grade, grade_faithful
from fgai.graph import add_nodes
from fgai.intervals import Interval as Mean
from fgai.kernels.pyg import accelerated
from fgai.large import Loader, audit_batches, certify_batches
from fgai.methods import METHODS
from fgai.metrics import g_jsd, micro_f1, released_g_jsd, roc_auc, top_overlap
from fgai.reading import Reader, open_reader
from fgai.training.loop import Schedule
from fgai.trial import attacked_trial, clean_trial
from loose import loose
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
        attacked = AttentionBall(radius=0.3, norm=loose(norm), steps=5)(read, data, lambda now: -now.logits[3, 0])
        delta = attacked.perturbation.weight_delta[""][:, 0]
        entries = torch.stack([delta[0] + delta[1], delta[2], delta[3]])
        assert 0.29 < float(size(entries)) <= 0.3 + 1e-6
    assert clean.logits.shape == (4, 3)


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
    assert interval_bounds(Reader(model), graph, 0.0) == {"first": None}
    usual = Two(GATConv(graph.num_features, 8), GATConv(8, 3)).eval()
    assert float(interval_bounds(Reader(usual), graph, 0.0)["first"].tvd.max()) < 1e-3


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
    "faithfulness": lambda model, graph: fgai.measure_faithfulness(model, graph, nodes=20),
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


def test_an_audit_whose_attack_makes_the_answers_infinite_has_no_grades():  # S1
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


def test_features_without_rows_are_refused():  # found by the campaign
    with pytest.raises(DataError, match=r"`x` is torch.float32 \[\]; give a row of features"):
        fgai.read(trained(), but(x=torch.tensor(1.0)))


def test_a_top_k_beyond_any_degree_is_the_whole_neighbourhood():  # found by the campaign
    attention = fgai.read(trained(), community()).explanation
    assert bool((top_overlap(attention, attention, k=10**30).nan_to_num(1.0) == 1).all())


SUPPORTED = Grade("supported", "Deleting them hurts more.")
FLOOR |= {"overlap_randomised": 0.5, "g_tvd_uniform": 0.3, "f1_largest_class": 0.3}


@pytest.mark.parametrize(
    ("which", "name"),
    [(0, "f1"), (0, "nonuniformity"), (1, "f1"), (1, "g_tvd"), (1, "overlap"), (2, "g_tvd_uniform")],
)
@pytest.mark.parametrize("value", [NAN, INF])
def test_no_grade_is_given_on_a_number_that_is_not_finite(which, name, value):  # S1
    told = clean, attacked, baselines = dict(GOOD), dict(GOOD), dict(FLOOR)
    told[which][name] = value
    with pytest.raises(NotFiniteError, match=name):
        grade(clean, attacked, baselines, SUPPORTED, "an attack")


def test_what_could_not_be_tested_is_said_in_the_grades():  # S1
    few = grade(GOOD, GOOD, FLOOR | {"overlap_randomised": NAN}, SUPPORTED, "an attack")
    assert few.used and "a number is missing" in few.used.sentence and few.answer == "not shown"
    untested = grade(GOOD, GOOD, FLOOR, grade_faithful(Mean.of([]), Mean.of([])), "an attack")
    assert "only 0 nodes can be tested" in untested.line and untested.answer == "not shown"


@pytest.mark.parametrize("door", ["audit", "compare", *OF_LABELS, "loader", "audit_batches"])
def test_labels_beyond_the_classes_are_refused(door):  # S2
    with pytest.raises(DataError, match="labels run from 0 to 9, and the model predicts the classes 0 to 2"):
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
    for faster in (nullcontext, accelerated, lambda model: accelerated(model, exact=False)):
        with faster(read.model):
            clean = clean_trial(read, graph)
            attacked = attacked_trial(adversary, "kl", clean, 0)
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


class OneAnswer(torch.nn.Module):
    """One number for each node: the difference of two logits, or what `how` makes of it."""

    def __init__(self, inner, how):
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, x, edge_index):
        logits = self.inner(x, edge_index)
        return self.how(logits[:, 0] - logits[:, 1])


def binary():
    graph = community().clone()
    graph.y = (graph.y == 0).long()
    return graph


@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
@pytest.mark.parametrize("door", EVERY_DOOR)
def test_a_sigmoid_is_not_taken_for_a_logit(door, shape):
    with pytest.raises(CallError, match=r"between 0 and 1, as a sigmoid.*\.clamp\(1e-6, 1 - 1e-6\)\.logit\(\)"):
        EVERY_DOOR[door](OneAnswer(trained(), lambda z: z.sigmoid().view(shape)), binary())


def test_a_sigmoid_for_each_class_is_noted():
    """It is not refused: the logits of a model that was not trained may lie between 0 and 1, too."""
    for how, noted in ((torch.sigmoid, True), (torch.tanh, False)):
        model = OneAnswer(trained(), lambda z, how=how: how(torch.stack([z, -z, z / 2], 1)))
        notes = fgai.audit(model, community(), ATTACK, seeds=1, sample=20).notes
        assert any("if they come from a sigmoid" in note for note in notes) == noted


def test_the_remedy_for_a_sigmoid_works():
    model = OneAnswer(trained(), lambda z: z.double().sigmoid())
    call = lambda model, data: model(data.x, data.edge_index).clamp(1e-6, 1 - 1e-6).logit()  # noqa: E731
    plain = fgai.read(OneAnswer(trained(), lambda z: z.double()), binary()).probs
    assert torch.allclose(fgai.read(model, binary(), call).probs, plain, atol=1e-4)


def test_small_logits_of_one_sign_are_a_start_for_training_but_no_answers():
    small = OneAnswer(trained(), lambda z: 0.1 + 0.01 * z.tanh())
    assert Vanilla(epochs=1).fit(small, binary()).model
    with pytest.raises(CallError, match="between 0 and 1"):
        fgai.read(small, community())
    for harmless in (lambda z: 0 * z, lambda z: 0.1 * z.tanh(), lambda z: 1 + z.sigmoid()):
        assert len(fgai.read(OneAnswer(trained(), harmless), community()).logits) == 150


def test_few_rows_between_0_and_1_may_be_logits():
    graph = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))
    with torch.no_grad():
        (conv := loose(GATConv(3, 1))).bias += 0.5
        conv.lin.weight.zero_()
    assert torch.equal(fgai.read(conv, graph).logits, torch.full((2, 1), 0.5))


@pytest.mark.parametrize("door", EVERY_DOOR)
def test_gradients_are_on_where_they_are_needed(door):
    with torch.no_grad():
        assert EVERY_DOOR[door](trained(), community()) is not None


def test_an_attack_names_the_mode_in_which_it_has_no_gradients():
    read = Reader(trained().eval())
    for mode, name in ((torch.no_grad(), "no_grad"), (torch.inference_mode(), "inference_mode")):
        with mode, pytest.raises(NotDifferentiableError, match=f"torch.{name}"):
            ATTACK(read, community(), GAINS["kl"](read(community())))
    with torch.inference_mode(), pytest.raises(NotDifferentiableError, match="inference_mode"):
        EVERY_DOOR["audit"](trained(), community())


class Writing(torch.nn.Module):
    """Writes into the graph that it is given: `how` writes, and the answers are those of the model inside."""

    def __init__(self, inner, how):
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, data):
        self.how(data)
        return self.inner(data.x, data.edge_index)


def halve(data):
    data.x = data.x * 0.5


def add_loops(data):
    data.edge_index = add_self_loops(data.edge_index)[0]


@pytest.mark.parametrize("how", [halve, add_loops])
def test_a_model_that_assigns_attributes_of_its_graph_changes_only_its_own_copy(how):
    graph, expected = community().clone(), community().clone()
    how(expected)
    for _ in range(2):
        now, told = fgai.read(Writing(trained(), how), graph), fgai.read(trained(), expected)
        assert torch.allclose(now.logits, told.logits, atol=1e-5)
    told = fgai.audit(Writing(trained(), how), graph, ATTACK, seeds=1)
    call = lambda model, data: model(copy(data))  # noqa: E731
    assert told.attacked == fgai.audit(Writing(trained(), how), graph, ATTACK, seeds=1, call=call).attacked
    assert torch.equal(graph.x, community().x) and torch.equal(graph.edge_index, community().edge_index)


@pytest.mark.parametrize("door", [door for door in EVERY_DOOR if door != "ln"])  # there its input is computed anew
def test_a_model_that_writes_into_its_input_is_refused_at_every_door(door):
    with pytest.raises(CallError, match=r"Writing writes into \['x'\] of the graph.*clone"):
        EVERY_DOOR[door](Writing(trained(), lambda data: data.x.mul_(0.5)), community().clone())


class Noisy(torch.nn.Module):
    """Random in evaluation mode too."""

    def __init__(self, inner, how):
        super().__init__()
        self.inner, self.how = inner, how

    def forward(self, x, edge_index):
        return self.inner(*self.how(x, edge_index))


NOISES = {
    "dropout": lambda x, edge_index: (torch.nn.functional.dropout(x, 0.5), edge_index),
    "edges": lambda x, edge_index: (x, dropout_edge(edge_index, 0.3)[0]),
}
OF_READINGS = ("audit", "compare", "certify", "audit_batches", "certify_batches")  # they compare two readings


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("door", OF_READINGS)
def test_a_model_that_is_random_in_evaluation_mode_is_refused(door, noise):
    with pytest.raises(CallError, match=r"two answers for one graph in evaluation mode.*training=self.training"):
        EVERY_DOOR[door](Noisy(trained(), NOISES[noise]), community())


class Storing(torch.nn.Module):
    """Has a layer that keeps the links of its first graph."""

    def __init__(self, inner):
        super().__init__()
        self.first, self.inner = GCNConv(16, 16, cached=True), inner

    def forward(self, x, edge_index):
        return self.inner(self.first(x, edge_index), edge_index)


@pytest.mark.parametrize("door", EVERY_DOOR)
def test_a_model_that_keeps_the_links_of_its_first_graph_is_refused_at_every_door(door):
    with pytest.raises(SettingError, match=r"cached=True in (model\.)?first.*cached=False"):
        EVERY_DOOR[door](Storing(trained()), community())


def test_links_that_were_kept_are_refused_after_the_setting_is_changed():
    model = Storing(trained())
    model(community().x, community().edge_index)
    model.first.cached = False  # it still uses what it has stored
    with pytest.raises(SettingError, match="cached=False"):
        fgai.read(model, community())


class Global(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GPSConv(16, GATConv(16, 16), heads=2, dropout=0.0, attn_type="performer")
        self.out = GATConv(16, 3)

    def forward(self, x, edge_index):
        return self.out(self.conv(x, edge_index), edge_index)


def test_attention_that_is_not_read_is_named():  # S15
    torch.manual_seed(0)
    model = Global().eval()
    assert fgai.read(model, community()).unread == ("conv.attn",)
    assert fgai.read(trained(), community()).unread == ()
    told = fgai.audit(model, community(), ATTACK, seeds=1)
    assert "attention inside conv.attn is not read" in told.text() and "conv.attn" in told.grades.line
    assert "conv.attn" in told.markdown()
    assert "attention inside conv.attn" in fgai.certify(model, community(), k=2, steps=1).text()


NOISE = Mean.of([-0.35, 0.4] * 20)
ABOVE = Mean.of([0.2, 0.3] * 20)
BELOW = Mean.of([-0.2, -0.3] * 20)


def test_attention_inside_the_noise_is_not_called_unfaithful():  # S16
    found = grade_faithful(NOISE, ABOVE)
    assert found.value == "unknown" and str(NOISE) in found.sentence and str(ABOVE) not in found.sentence


def test_only_the_comparison_that_failed_is_named():  # S16
    found = grade_faithful(BELOW, ABOVE)
    assert found.value == "contradicted"
    assert "random ones" in found.sentence and str(ABOVE) not in found.sentence


MASK = torch.zeros(150, dtype=torch.bool).index_fill_(0, torch.arange(30), True)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (MASK.long(), r"\.bool\(\)"),
        (MASK.float(), r"\.bool\(\)"),
        (torch.arange(30), "index_to_mask"),
        (MASK[:120], "has 120 entries, and the graph has 150"),
        (torch.cat([MASK, MASK]), "has 300 entries"),
        (MASK[:, None].expand(-1, 10), r"\[:, 0\]"),
    ],
    ids=["0/1", "float", "indices", "short", "long", "several splits"],
)
@pytest.mark.parametrize(
    ("door", "name"),
    [(door, name) for door in (*OF_LABELS, "fgai", "loader") for name in ("train_mask", "val_mask")]
    + [("audit", "test_mask"), ("audit_batches", "test_mask")],
)
def test_masks_that_are_no_masks_are_refused_with_the_remedy(door, name, mask, says):  # S7
    with pytest.raises(DataError, match=f"`{name}`.*{says}"):
        EVERY_DOOR[door](trained(), but(**{name: mask}))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"lr": INF}, "lr"),
        ({"lr": NAN}, "lr"),
        ({"lr": -0.1}, "lr"),
        ({"margin": NAN}, "margin"),
        ({"closeness": NAN}, "closeness"),
        ({"closeness": -1.0}, "closeness"),
        ({"sharpness": INF}, "sharpness"),
        ({"gap": 0.0}, "gap"),
        ({"similarity_metric": "zzz"}, "similarity_metric"),
        ({"stability": "zzz"}, "stability"),
        ({"restart_every": -1}, "restart_every"),
        ({"epochs": -3}, "epochs"),
        ({"epochs": 2.5}, "epochs"),
        ({"k": 0}, "k=0"),
        ({"weight_decay": NAN}, "weight_decay"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
    ],
)
def test_settings_of_fgai_that_cannot_work_are_refused_when_they_are_given(settings, name):  # S8, S13
    with pytest.raises(SettingError, match=name):
        FGAI(**settings)


@pytest.mark.parametrize("name", ADVERSARIES)
def test_settings_of_adversaries_that_cannot_work_are_refused_when_they_are_given(name):  # S13
    kind = ADVERSARIES[name]
    wrong = {
        "norm": ["l7", None],
        "on": ["sums"],
        "radius": [NAN, INF, -1.0, "1"],
        "steps": [-3, 1.5],
        "step": [NAN, 0.0, -1.0],
        "box": [(NAN, NAN), (1.0, -1.0), (0.0, INF), (1.0,)],
        "nodes": [0, -1, 1.5],
        "edges": [0, -1] if name not in ("attack-ensemble", "chosen-injection") else [(), (0,), (-2,)],
        "flips": [0, -1],
        "epochs": [0, -3],
        "block": [0],
        "members": [(), (None,)],
        "added": [-1],
        "dropped": [-1],
        "rounds": [0],
        "pool": [0],
        "surrogates": [("zzz",)],
        "schedules": [(), ((-1, 0.1),), ((1, NAN),)],
        "restarts": [0],
        "seed": [-1, 2**63, 2**80, 0.5],
    }
    asked = [field.name for field in fields(kind) if field.name in wrong]
    assert "seed" in asked and len(asked) >= min(4, len(fields(kind)))
    for setting in asked:
        for value in wrong[setting]:
            with pytest.raises(SettingError):
                kind(**{setting: value})


@pytest.mark.parametrize("name", METHODS)
def test_settings_of_methods_that_cannot_work_are_refused_when_they_are_given(name):  # S13
    wrong = {"epochs": [-3, 0], "lr": [INF, NAN, -1.0], "weight_decay": [NAN, -1.0], "patience": [0]}
    wrong |= {"seed": [-1, 2**63], "weight": [NAN, -1.0], "restart_every": [-1], "kind": ["zzz"], "threshold": [NAN]}
    wrong |= {"rank": [0], "drop": [NAN, -0.1, 1.1], "sparse": [NAN], "low_rank": [-1.0], "rate": [0.0], "limit": [0]}
    asked = [field.name for field in fields(METHODS[name]) if field.name in wrong]
    for setting in asked:
        for value in wrong[setting]:
            with pytest.raises(SettingError):
                METHODS[name](**{setting: value})


@pytest.mark.parametrize("name", [name for name in ADVERSARIES if name != "attack-ensemble"])
@pytest.mark.parametrize("seed", [2**62, 2**63 - 1])
def test_the_largest_seeds_work(name, seed):  # raw at the door
    small = {"node-injection": {"nodes": 1, "edges": 2, "steps": 1}, "edge-rewiring": {"added": 1, "dropped": 1}}
    small |= {key: {"flips": 2, "epochs": 2, "block": 50} for key in ("prbcd", "grbcd")}
    small |= {"chosen-injection": {"nodes": 1, "edges": (2,), "schedules": ((1, 0.1),), "adam": ((1, 0.1),)}}
    small |= {"worst-of": {"members": (NodeInjection(1, 2, steps=1), EdgeRewiring(1, 1))}}
    adversary = ADVERSARIES[name](seed=seed, **small.get(name, {"steps": 1}))
    read = Reader(trained().eval())
    assert adversary(read, community(), lambda now: now.logits[:150].square().mean()).logits.isfinite().all()
    if name == "node-injection":
        FGAI(adversary=adversary, epochs=2, restart_every=1, seed=seed).fit(trained(), community())


def zeroed():
    model = deepcopy(trained())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


@pytest.mark.parametrize("stability", ["kl", "margin"])
def test_a_fit_of_a_model_that_is_all_zero_has_finite_weights_or_is_refused(stability):  # S8
    method = FGAI(adversary=ATTACK, epochs=3, stability=stability)
    assert finite_or_refused(lambda: method.fit(zeroed(), community()))


@pytest.mark.parametrize("backbone", ["gat", "gatv2", "gt"])
def test_a_fit_of_a_graph_without_edges_has_finite_weights_or_is_refused(backbone):  # S8
    graph = but(edge_index=torch.empty(2, 0, dtype=torch.long), lap_pe=torch.zeros(150, 4))
    model = build(backbone, graph)
    for method in (
        FGAI(adversary=ATTACK, epochs=3),
        AdversarialTraining(adversary=ATTACK, epochs=2),
        Vanilla(epochs=2),
    ):
        assert finite_or_refused(lambda method=method: method.fit(model, graph))


def finite_or_refused(fit):
    try:
        done = fit()
    except fgai.FGAIError as error:
        return "; " in str(error)
    return all(weight.isfinite().all() for weight in done.model.state_dict().values())


def test_a_term_that_is_not_finite_ends_a_fit_and_is_named():  # S8
    def call(model, data):
        return model(data.x, data.edge_index) * (1e38 if model.training else 1.0)

    with pytest.raises(NotFiniteError, match=r"in epoch 0 the term label is (nan|inf)"):
        Vanilla(epochs=2).fit(trained(), community(), call=call)


@pytest.mark.parametrize("judged", [True, False])
def test_weights_that_are_not_finite_are_not_returned(judged):  # S8
    def call(model, data):  # finite terms, and a gradient that is not
        nothing = sum(((0 * p).abs().sum() for p in model.parameters()), torch.zeros(()))
        return model(data.x, data.edge_index) + nothing.sqrt()

    graph = but() if judged else but(val_mask=None)
    method = FGAI(adversary=ATTACK, epochs=1, prediction=0.0, explanation=0.0)
    with pytest.raises(NotFiniteError, match="validation nodes" if judged else "trained weights"):
        method.fit(trained(), graph, call=call)


class Stop(Exception):
    pass


def interrupted(path, model, graph):
    def call(model, data, calls=[]):  # noqa: B006, it counts its calls
        calls.append(1)
        if len(calls) > 40:
            raise Stop
        return model(data.x, data.edge_index)

    with pytest.raises(Stop):
        Vanilla(epochs=60).fit(model, graph, call=call, checkpoint=path)
    assert path.exists()
    return call


@pytest.mark.parametrize("changed", ["start", "features", "edges", "labels"])
def test_a_checkpoint_of_another_model_or_graph_is_refused(changed, tmp_path):  # S9
    call = interrupted(tmp_path / "run", build("gat", community(), seed=0), community())
    graph = {
        "start": community(),
        "features": but(x=community().x + 1),
        "edges": but(edge_index=community().edge_index.flip(0)[:, :-2]),
        "labels": but(y=community().y.flip(0)),
    }[changed]
    model = build("gat", community(), seed=1 if changed == "start" else 0)
    held = (tmp_path / "run").read_bytes()
    with pytest.raises(SettingError, match=r"(start|data)_sha256.*give another file, or delete that one"):
        Vanilla(epochs=60).fit(model, graph, call=call, checkpoint=tmp_path / "run")
    assert (tmp_path / "run").read_bytes() == held


# --- raw at the door ------------------------------------------------------------------------------------------------

JUDGING = ("audit", "compare", *OF_LABELS, "fgai", "audit_batches")


@pytest.mark.parametrize("door", JUDGING)
@pytest.mark.parametrize(
    "y", [community().y[:, None], community().y.float(), community().y.double()[:, None], community().y.int()]
)
def test_labels_in_a_column_or_as_whole_floats_are_taken_as_classes(door, y):
    EVERY_DOOR[door](trained(), but(y=y))


@pytest.mark.parametrize("door", [*JUDGING, "certify", "faithfulness"])
@pytest.mark.parametrize(
    ("y", "says"),
    [
        (torch.rand(150), "not classes.*regression"),
        (torch.full((150,), NAN), "not classes"),
        (torch.ones(150, 4), "several labels per node"),
        (torch.ones(7, dtype=torch.long), "7 labels, and the graph has 150"),
    ],
    ids=["regression", "nan", "several", "short"],
)
def test_labels_that_are_no_classes_are_refused_in_words(door, y, says):
    with pytest.raises(DataError, match=says):
        EVERY_DOOR[door](trained(), but(y=y))


@pytest.mark.parametrize("door", EVERY_DOOR)
@pytest.mark.parametrize(
    ("graph", "says"),
    [
        (but(x=community().x[:, :5]), r"failed on this graph.*x torch\.float32 \[150, 5\]"),
        (but(x=torch.ones(150, 16, dtype=torch.long)), r"failed on this graph.*x torch\.int64"),
        (but(edge_index=community().edge_index + 100), "edges refer to the nodes .* to 249"),
        (but(edge_index=community().edge_index - 1), "edges refer to the nodes -1"),
        (but(edge_index=community().edge_index.float()), r"integers of \[2, E\]"),
        (but(edge_index=community().edge_index.t()), r"integers of \[2, E\]"),
    ],
    ids=["width", "integers", "beyond", "below", "float edges", "turned edges"],
)
def test_graphs_that_do_not_fit_the_model_are_refused_in_words(door, graph, says):
    if door == "ln" and not graph.x.is_floating_point():
        return  # rows of whole numbers, divided by their sum, are floats
    with pytest.raises(fgai.FGAIError, match=says):
        EVERY_DOOR[door](trained(), graph)


ALL_BUT_READ = tuple(door for door in EVERY_DOOR if door != "read")


@pytest.mark.parametrize("door", ALL_BUT_READ)
def test_a_heterogeneous_graph_is_refused_in_words(door):
    graph = HeteroData()
    graph["a"].x, graph["b"].x = torch.ones(3, 16), torch.ones(2, 16)
    graph["a", "to", "b"].edge_index = torch.tensor([[0, 1, 2], [0, 0, 1]])
    with pytest.raises(
        DataError, match=r"2 kinds of nodes.*to_homogeneous|for graphs with one type of nodes, and this one has"
    ):
        EVERY_DOOR[door](trained(), graph)


@pytest.mark.parametrize("door", EVERY_DOOR)
def test_a_sparse_adjacency_is_refused_in_words(door):
    graph = but(adj_t=torch.eye(150).to_sparse())
    del graph.edge_index
    with pytest.raises(fgai.FGAIError, match=r"edge_index.*adj_t"):
        EVERY_DOOR[door](trained(), graph)


class PerGraph(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = GATConv(16, 8), torch.nn.Linear(8, 3)

    def forward(self, x, edge_index, batch):
        return self.out(global_mean_pool(self.conv(x, edge_index), batch))


@pytest.mark.parametrize("door", ["audit", "certify", "vanilla", "fgai"])
def test_a_model_of_whole_graphs_is_refused_in_words(door):
    batch = Batch.from_data_list([community(), community()])
    with pytest.raises(CallError, match=r"2 rows of logits for a graph of 300 nodes"):
        EVERY_DOOR[door](PerGraph().eval(), batch)


class PerNode(PerGraph):
    def forward(self, x, edge_index, batch):
        return super().forward(x, edge_index, batch)[batch]


def test_an_attack_on_the_nodes_of_a_batch_keeps_its_graphs_apart():
    batch: Any = Batch.from_data_list([community(), community()])
    batch.x = torch.cat([batch.x[:150], 2 * batch.x[150:]])
    with open_reader(PerNode()) as reader:
        attack = fgai.NodeInjection(2, 3)
        site = attack.place(batch)
        now = site.read(reader, attack.start(site))
    assert len(now.logits) == 304 and now.graph.batch[300:].tolist() == [0, 0, 1, 1]
    ends = now.graph.batch[now.graph.edge_index]
    assert torch.equal(ends[0], ends[1])
    first, second = (now.logits[now.graph.batch == number] for number in (0, 1))  # all nodes of a graph answer alike
    assert torch.equal(first, first[:1].expand_as(first)) and torch.equal(second, second[:1].expand_as(second))
    assert not torch.equal(first[0], second[0])


class Anything(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GATConv(16, 3)

    def forward(self, *args, **kw):
        return self.conv(*args, **kw)


@pytest.mark.parametrize("door", EVERY_DOOR)
def test_a_forward_that_names_nothing_is_refused_in_words(door):
    with pytest.raises(CallError, match=r"names none of.*call=lambda model, data"):
        EVERY_DOOR[door](Anything(), community())
    call = lambda model, data: model(data.x, data.edge_index)  # noqa: E731
    assert fgai.read(Anything(), community(), call).logits.shape == (150, 3)


@pytest.mark.parametrize("door", EVERY_DOOR)
def test_a_wrapped_model_is_refused_with_the_remedy(door):
    with pytest.raises(CallError, match=r"model\.module"):
        EVERY_DOOR[door](torch.nn.DataParallel(trained()), community())


@pytest.mark.parametrize("door", ["vanilla", "at", "fgai"])
def test_a_model_whose_parameters_are_all_frozen_is_refused(door):
    model = deepcopy(trained()).requires_grad_(False)
    with pytest.raises(DataError, match="all are frozen"):
        EVERY_DOOR[door](model, community())


@pytest.mark.parametrize("seed", [-1, 2**63, 2**70])
def test_a_seed_that_no_generator_takes_is_refused(seed):
    for ask in (lambda: datasets.load("synthetic", seed=seed), lambda: build("gat", community(), seed=seed)):
        with pytest.raises(SettingError, match="seed="):
            ask()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("certify", "nowhere", "--radius", "nan"), "radius=nan"),
        (("certify", "nowhere", "--radius", "inf"), "radius=inf"),
        (("report", "nowhere", "--radius", "nan"), "radius=nan"),
        (("train", "--data", "synthetic", "--out", "x", "--seed", "-1"), "seed=-1"),
        (("train", "--data", "synthetic", "--out", "x", "--epochs", "0"), "epochs=0"),
    ],
)
def test_the_command_line_refuses_numbers_that_are_none(command, says):  # S3
    told = CliRunner().invoke(app, list(command))
    assert told.exit_code == 2 and says in told.output


# --- is what is proved true? ----------------------------------------------------------------------------------------


def campaign(*counts, **settings):
    path = Path(__file__).parents[2] / "benchmarks" / "soundness.py"
    spec = importlib.util.spec_from_file_location("soundness", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows = list(module.campaign(*counts, **settings))
    assert sum(count for _, count, _ in rows) > 8 * counts[0]
    return {what: broken for what, _, broken in rows if broken}


def test_nothing_that_is_proved_of_10_000_attentions_and_10_000_boxes_is_broken():  # S4, S5
    assert campaign(10_000, 30, quick=True) == {}


@pytest.mark.slow
def test_nor_by_the_whole_campaign():  # S4, S5
    assert campaign(10_000, 300) == {}


# --- code that was broken, and no test went red ---------------------------------------------------------------------


def test_the_reach_of_a_sum_is_that_of_the_values_spread_around_zero():
    """Values -2, 1 and 5: a tenth of the weight that changes hands moves the sum by at most 0.1 (5 - (-2))."""
    value = Box(torch.tensor([-2.0, 1.0, 5.0]).double().view(3, 1, 1), torch.zeros(3, 1, 1).double())
    look = Attention(torch.full((3, 1), 1 / 3).double(), torch.tensor([[0, 1, 2], [0, 0, 0]]), 1)
    found = _weighted_sum(value, look.weight, torch.full((1, 1), 0.1).double(), look)
    assert float(found.radius) == pytest.approx(0.7) and float(found.middle) == pytest.approx(4 / 3)


def test_in_a_batch_the_edges_of_every_injected_node_count():
    """Layers trim what reaches no seed node, but not what was injected after the last node of the batch."""
    graph = datasets.synthetic(400, 8_000, features=8, seed=1)
    torch.manual_seed(0)
    model = torch.nn.ModuleList([GATConv(8, 8), GATConv(8, 3)]).eval()
    batch = next(iter(Loader(graph, (3, 3), batch=2, shuffle=False)))
    counts, first = list(map(int, batch.num_sampled_nodes)), batch.num_nodes
    assert sum(counts) == first
    links = torch.stack([torch.arange(2, dtype=torch.long), torch.tensor([first, first])])
    more = add_nodes(batch, torch.full((1, 8), 3.0), torch.cat([links, links.flip(0)], dim=1))

    def answers(hops):
        with accelerated(model, exact=False) as trim, trim.batch(hops), torch.no_grad():
            return model[1](model[0](more.x, more.edge_index).relu(), more.edge_index)[: batch.batch_size]

    assert torch.allclose(answers(counts), answers(None), atol=1e-5)


def test_the_anchor_decides_what_answers_under_attack_are_compared_with():
    method = FGAI(adversary=NodeInjection(2, 3, steps=1), epochs=6, closeness=0.0, similarity=0.0, lr=0.05)
    own, vanilla = (replace(method, anchor=anchor).fit(trained(), community()).model for anchor in ("own", "vanilla"))
    assert any(not torch.equal(a, b) for a, b in zip(own.parameters(), vanilla.parameters(), strict=True))
    moved = [
        tvd(fgai.read(m, community()).probs, fgai.read(trained(), community()).probs).mean() for m in (own, vanilla)
    ]
    assert moved[1] < moved[0]  # vanilla's answers hold it back; its own do not


def test_injected_nodes_have_links_of_their_own():
    found = NodeInjection(nodes=4, edges=6, seed=3).place(community()).links
    ends = [frozenset(found[1][found[0] == 150 + node].tolist()) for node in range(4)]
    assert len(set(ends)) == 4 and all(len(some) == 6 for some in ends)
    again = NodeInjection(nodes=4, edges=6, seed=4).place(community()).links
    assert not torch.equal(found, again)


def test_the_worth_of_a_new_link_is_its_slope_times_the_weight_it_would_get():
    """One node with two equal edges: a third one, as large, would get 1/3 of the weight, not the odds 1/2."""
    conv = GATConv(1, 1, add_self_loops=False, bias=False).eval()
    with torch.no_grad():
        conv.lin.weight.fill_(1.0)
        conv.att_src.zero_()
        conv.att_dst.zero_()
    data = Data(x=torch.tensor([[1.0], [2.0], [6.0], [0.0]]), edge_index=torch.tensor([[0, 1], [3, 3]]))
    new, old = torch.tensor([[2], [3]]), torch.tensor([[0, 1], [3, 3]])
    add, drop = _link_effects(Reader(conv), data, lambda now: now.logits[3, 0], new, old)
    assert add.tolist() == pytest.approx([6.0 / 3], rel=1e-4)
    assert drop.tolist() == pytest.approx([-0.5, -1.0], rel=1e-4)


def test_the_rate_falls_along_a_cosine_from_the_whole_to_almost_nothing():
    schedule = Schedule(epochs=4, lr=0.8, keep="last")
    half = math.sqrt(0.5)
    expected = [0.8, 0.4 * (1 + half), 0.4, 0.4 * (1 - half)]
    assert [schedule.rate(number) for number in range(4)] == pytest.approx(expected)
    assert Schedule(epochs=4, lr=0.8).rate(3) == 0.8
