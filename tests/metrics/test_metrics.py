from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy, linregress
from sklearn.metrics import f1_score, roc_auc_score
from torch import nn
from torch_geometric.data import Data
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer
from torch_geometric.nn import GATConv, GPSConv
from torch_geometric.utils import remove_self_loops

from fgai.adversaries import GAINS, AttentionBall
from fgai.attending import AttentionPoint
from fgai.attention import Attention
from fgai.attention import entropy as each_entropy
from fgai.deletion import SHARES, DeletionCurves
from fgai.errors import DataError
from fgai.graph import sort_edges
from fgai.metrics import (
    METRICS,
    as_attention,
    f_curve,
    f_slope,
    g_jsd,
    g_tvd,
    mean_entropy,
    mean_nonuniformity,
    micro_f1,
    random_attention,
    released_g_tvd,
    roc_auc,
    shift,
    top_overlap,
)
from fgai.reading import Reading
from fgai.trial import Trial, deletion_slope
from loose import loose
from strategies import edge_index, eighths, normalised_attentions
from worlds import answers, by_target, community, injected, links, model_of, rows_moved, small, table, top, trained

SEEDS = st.integers(0, 10_000)


@st.composite
def graded(draw):
    """Probabilities with ties, and labels of every class."""
    count = draw(st.integers(2, 4))
    rows = draw(st.integers(count, 20))
    raw = draw(eighths(rows, count, dtype=torch.double)) + 0.125
    y = torch.tensor(draw(st.permutations([i % count for i in range(rows)])))
    return raw / raw.sum(1, keepdim=True), y


@given(graded())
@settings(max_examples=20)
def test_f1_and_auc_are_sklearns(case):
    probs, y = case
    score = probs[:, 1] if probs.size(1) == 2 else probs
    assert roc_auc(probs, y) == pytest.approx(roc_auc_score(y, score, multi_class="ovr"), abs=1e-6)
    assert micro_f1(probs, y) == pytest.approx(f1_score(y, probs.numpy().argmax(1), average="micro"), abs=1e-12)


def test_auc_of_one_class_alone_is_not_a_number():
    assert np.isnan(roc_auc(torch.rand(4, 2), torch.zeros(4, dtype=torch.long)))


@given(SEEDS, st.integers(1, 4))
def test_g_tvd_is_half_the_mean_l1_distance_of_probabilities(seed, classes):
    rng = np.random.default_rng(seed)
    clean, now = (Reading(torch.tensor(rng.normal(size=(rows, classes))), {}) for rows in (6, 8))
    p, q = (r.probs.numpy() for r in (clean, now))
    assert g_tvd(clean, now) == pytest.approx(sum(np.abs(p[i] - q[i]).sum() for i in range(6)) / 12, abs=1e-12)


def test_the_released_g_tvd_passes_one():
    clean, now = Reading(torch.tensor([[9.0, 0.0]]), {}), Reading(torch.tensor([[0.0, 9.0], [5.0, 5.0]]), {})
    assert released_g_tvd(clean, now) == 9.0 and g_tvd(clean, now) <= 1


def changed(clean, seed):
    """Other weights in another order; the first row is gone, and a new neighbour looks at every node."""
    draw = torch.Generator().manual_seed(seed)
    new = torch.stack([torch.full((clean.num_targets,), clean.num_targets), torch.arange(clean.num_targets)])
    edges = torch.cat([clean.edge_index[:, 1:], new], dim=1)
    weight = torch.rand(edges.size(1), clean.heads, generator=draw, dtype=torch.double)
    return rows_moved(Attention(weight, edges, clean.num_targets + 1), seed)


@given(normalised_attentions(), SEEDS)
def test_g_jsd_is_its_formula_over_the_clean_edges_where_a_dropped_edge_weighs_nothing(clean, seed):
    before, after = table(clean), table(now := changed(clean, seed))
    pairs = np.array([(weight, after.get(edge, 0.0)) for edge, weight in before.items()]).reshape(-1, 2)
    middle = pairs.mean(1, keepdims=True)
    terms = [w * np.log(w / m) for row, m in zip(pairs, middle[:, 0], strict=True) for w in row if w > 0]
    assert g_jsd(clean, now) == pytest.approx(sum(terms) / (2 * max(len(before), 1)), abs=1e-6)


@given(normalised_attentions())
def test_g_jsd_of_two_distributions_is_scipys(clean):
    even = {e: 1 / len(edges) for edges in by_target(table(clean)).values() for e in edges}
    assume(even)
    other = Attention(torch.tensor([[w] for w in even.values()]), edge_index(list(even)), clean.num_targets)
    nodes = by_target(table(clean)).values()
    each = [jensenshannon([table(clean)[e] for e in edges], [even[e] for e in edges]) ** 2 for edges in nodes]
    assert g_jsd(clean, other) == pytest.approx(sum(each) / len(even), abs=1e-6)


@given(normalised_attentions(), SEEDS, st.integers(1, 4))
def test_overlap_and_shift_are_the_loops_over_nodes(clean, seed, k):
    clean = replace(clean, weight=clean.weight.double())
    before, after = table(clean), table(now := changed(clean, seed))
    assume(not any(0 < abs(a - b) < 1e-9 for a in before.values() for b in before.values()))  # rounded ties
    overlap, moved = np.full(clean.num_targets, np.nan), np.zeros(clean.num_targets)
    nodes = by_target(after)
    for node, edges in by_target(before).items():
        kept = set(top(edges, before, k)) & set(top(nodes[node], after, k))
        overlap[node] = len(kept) / min(k, len(edges))
        moved[node] = sum(abs(before[e] - after.get(e, 0.0)) for e in edges) / 2
    np.testing.assert_allclose(top_overlap(clean, now, k), overlap, atol=1e-9)
    np.testing.assert_allclose(shift(clean, now), moved, atol=1e-9)


@given(normalised_attentions())
def test_entropy_and_nonuniformity_are_the_loops_over_nodes(attention):
    weight = attention.weight.double().mean(1).numpy()
    far, spread = np.zeros(attention.num_targets), []
    for node in range(attention.num_targets):
        own = weight[attention.target.numpy() == node]
        far[node] = np.abs(own - 1 / max(len(own), 1)).sum()
        if len(own) > 1:
            spread.append(entropy(own) / np.log(len(own)))
    assert mean_nonuniformity(attention) == pytest.approx(far.mean(), abs=1e-6)
    assert mean_entropy(attention) == pytest.approx(np.mean(spread) if spread else np.nan, abs=1e-6, nan_ok=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_over_many_nodes_of_half_precision_are_those_of_double(dtype):
    target = torch.arange(3000).repeat_interleave(4)
    weight = torch.rand(len(target), 1, generator=torch.Generator().manual_seed(0))
    weight = (weight / weight.view(-1, 4).sum(1).repeat_interleave(4)[:, None]).to(dtype)
    attention = Attention(weight, torch.stack([torch.arange(len(target)), target]), 3000)
    for mean in (mean_entropy, mean_nonuniformity):
        assert mean(attention) == mean(attention.double())


def test_the_entropy_of_pushed_weights_is_a_share_and_skips_no_node():
    read, clean = answers(trained(), community())
    gain = GAINS["kl"](clean)
    pushed = AttentionBall(0.3, "linf", steps=3)(read, community(), gain).detach().explanation.mean_heads()
    several = pushed.degree > 1
    assert not each_entropy(pushed)[several].isnan().any() and 0 <= mean_entropy(pushed) <= 1


def world(now=None):
    graph = community()
    now = graph if now is None else now
    read, clean = answers(trained(), graph)
    return Trial(read, now, clean, answers(trained(), now)[1], graph.y, graph.test_mask)


@pytest.mark.parametrize("first", ["most", "least"])
@pytest.mark.parametrize("attack", [False, True], ids=["clean", "attacked"])
def test_the_f_curve_is_the_share_still_right_when_edges_are_taken_from_the_list_by_hand(first, attack):
    graph = community()
    trial = world(injected(graph, 8).apply(graph) if attack else None)
    model, edges = trial.read.model, links(trial.graph.edge_index)
    weight = table(trial.now.explanation)
    sign = -1 if first == "most" else 1
    order = sorted(range(len(edges)), key=lambda i: (sign * weight[edges[i]], edges[i][1], edges[i][0]))
    right = [i for i in range(150) if trial.eval_mask[i] and int(trial.clean.logits[i].argmax()) == int(graph.y[i])]
    expected = []
    for share in SHARES:
        gone = set(order[: int(share * len(edges) + 0.5)])
        left = edge_index([edge for i, edge in enumerate(edges) if i not in gone])
        said = model(trial.graph.x, left).argmax(1)
        expected.append(sum(int(said[i]) == int(graph.y[i]) for i in right) / len(right))
    correct = torch.zeros(150, dtype=torch.bool).index_fill(0, torch.tensor(right), True)
    found = f_curve(trial.read, trial.graph, trial.now.explanation, graph.y, correct, first)
    assert found == pytest.approx(expected, abs=1e-12)
    assert attack or found[0] == 1.0
    name = "f_slope_plus" if first == "most" else "f_slope_minus"
    assert METRICS[name].compute(trial) == pytest.approx(loose(linregress(SHARES, expected)).slope, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_the_f_slope_is_the_regression_line_with_its_sign(curve):
    assert f_slope(curve) == pytest.approx(loose(linregress(SHARES, curve)).slope, abs=1e-9)


@given(SEEDS, st.sampled_from(["most", "least"]))
@settings(max_examples=20)
def test_ties_are_deleted_by_target_then_source_whatever_the_rows(seed, first):
    graph = small()
    edges = graph.edge_index[:, torch.randperm(160, generator=torch.Generator().manual_seed(seed))]
    even = rows_moved(Attention(torch.full((160, 2), 0.25), graph.edge_index, 40), seed)
    graph.edge_index = edges
    curves = DeletionCurves(answers(Loopless(), graph)[0], graph, graph.y, graph.test_mask)
    for among in ("graph", "node"):
        halves = list(curves.deleted(even, first, among, (0.0, 0.25, 0.5, 1.0)))
        assert [int(mask.sum()) for mask in halves] == [0, 40, 80, 160]
    assert all(bool(mask[: int(mask.sum())].all()) for mask in curves.deleted(even, first))


@given(SEEDS, st.sampled_from(["most", "least"]), st.sampled_from(["graph", "node"]), st.floats(0, 1))
@settings(max_examples=30)
def test_the_deleted_edges_are_the_first_ones_of_a_sort(seed, first, among, share):
    graph = small()
    edges = graph.edge_index = torch.tensor(sorted(links(graph.edge_index), key=lambda edge: edge[::-1])).T
    coarse = torch.randint(4, (160, 1), generator=torch.Generator().manual_seed(seed)).double()  # many are equal
    weight = {edge: float(value) for edge, value in zip(links(edges), coarse, strict=True)}
    order = sorted(weight, key=lambda edge: (-weight[edge] if first == "most" else weight[edge], edge[::-1]))
    if among == "node":
        own = {node: [edge for edge in order if edge[1] == node] for node in range(40)}
        place = {edge: (own[edge[1]].index(edge) + 0.5) / len(own[edge[1]]) for edge in order}
        order = sorted(weight, key=lambda edge: (round(place[edge], 6), edge[::-1]))
    curves = DeletionCurves(answers(Loopless(), graph)[0], graph, graph.y, graph.test_mask)
    (gone,) = curves.deleted(Attention(coarse, edges, 40), first, among, (share,))
    assert set(links(edges[:, gone])) == set(order[: round(share * 160)])


class Misled(nn.Module):
    """Looks least where it is hurt most: sources from node 6 on are hardly attended to, and shout."""

    def __init__(self):
        super().__init__()
        self.point = AttentionPoint()

    def forward(self, x, edge_index):
        weight = self.point(torch.where(edge_index[0] < 6, 0.0, -3.0)[:, None], edge_index, x.size(0))
        told = torch.zeros_like(x).index_add(0, edge_index[1], weight * x[edge_index[0]])
        return x + told


def test_deleting_what_harms_gives_a_positive_slope():
    ring = [(i, (i + 1) % 6) for i in range(6)] + [((i + 1) % 6, i) for i in range(6)]
    graph = Data(x=torch.tensor([[1.0, 0.0]] * 6), edge_index=edge_index(ring))
    bad = Data(
        x=torch.tensor([[1.0, 0.0]] * 6 + [[0.0, 500.0]]), edge_index=edge_index(ring + [(6, i) for i in range(6)])
    )
    read, clean = answers(Misled(), graph)
    everyone = torch.ones(6, dtype=torch.bool)
    trial = Trial(read, bad, clean, answers(Misled(), bad)[1], torch.zeros(6, dtype=torch.long), everyone)
    assert METRICS["f1"].compute(trial) == 0.0
    assert METRICS["f_slope_minus"].compute(trial) == deletion_slope(trial, trial.now.explanation, "least") > 1
    assert METRICS["f_slope_plus"].compute(trial) <= 0


def test_where_nothing_was_right_the_slope_is_not_a_number():
    trial = world()
    wrong = replace(trial, y=(trial.clean.probs.argmax(1) + 1) % 3)
    assert np.isnan(METRICS["f_slope_plus"].compute(wrong))


class Loopless(nn.Module):
    """Attends over all edges but self-loops."""

    def __init__(self):
        super().__init__()
        self.conv = GATConv(6, 3, add_self_loops=False)

    def forward(self, x, edge_index):
        return self.conv(x, remove_self_loops(edge_index)[0])


def test_edges_that_the_model_leaves_out_are_the_least_attended():
    graph = small()
    graph.edge_index = torch.cat([edge_index([(7, 7)]), graph.edge_index], dim=1)
    read, reading = answers(Loopless(), graph)
    (gone,) = DeletionCurves(read, graph, graph.y, graph.test_mask).deleted(
        reading.explanation, "least", "graph", (1 / 161,)
    )
    assert links(sort_edges(graph).edge_index[:, gone]) == [(7, 7)]


def explained(algorithm) -> Any:
    graph = small()
    explainer = Explainer(
        model_of("gat", graph),
        algorithm=algorithm,
        explanation_type="model",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    return explainer(graph.x, graph.edge_index)


def assert_applies(attention):
    graph = small()
    assert torch.equal(attention.edge_index, graph.edge_index) and attention.weight.shape == (160, 1)
    total = torch.zeros(40).index_add(0, attention.target, attention.weight[:, 0])
    assert all(abs(float(t)) < 1e-6 or float(t) == pytest.approx(1, abs=1e-5) for t in total)
    read, clean = answers(model_of("gat", graph), graph)
    trial = Trial(read, graph, clean, clean, graph.y, graph.test_mask)
    assert np.isfinite(deletion_slope(trial, attention, "most"))
    assert g_jsd(attention, attention) == 0.0
    assert float(top_overlap(attention, attention).nanmean()) == 1.0


def test_an_explanation_of_gnnexplainer_is_measured_like_attention():
    explanation = explained(GNNExplainer(epochs=3))
    attention = as_attention(explanation)
    assert_applies(attention)
    mask = explanation.edge_mask
    node = int(attention.target[mask.argmax()])
    own = attention.target == node
    np.testing.assert_allclose(attention.weight[own, 0], mask[own] / mask[own].sum(), rtol=1e-5)


def test_an_explanation_of_captum_is_measured_like_attention():
    pytest.importorskip("captum")
    assert_applies(as_attention(explained(CaptumExplainer("Saliency"))))


def test_an_explanation_without_an_edge_mask_is_refused():
    explanation = copy(explained(GNNExplainer(epochs=1)))
    del explanation.edge_mask
    with pytest.raises(DataError, match="edge_mask_type='object'"):
        as_attention(explanation)


@given(normalised_attentions(), SEEDS)
@settings(max_examples=20)
def test_random_attention_is_seeded_and_sums_to_one_on_the_same_edges(attention, seed):
    one, again, other = (random_attention(attention, s) for s in (seed, seed, seed + 1))
    assert torch.equal(one.weight, again.weight)
    assert torch.equal(random_attention(rows_moved(attention, seed), seed).weight, one.weight)
    assert set(links(one.edge_index)) == set(links(attention.edge_index))
    total = torch.zeros(attention.num_targets, dtype=one.weight.dtype).index_add(0, one.target, one.weight[:, 0])
    np.testing.assert_allclose(total[attention.degree > 0], 1, rtol=1e-5)
    if len(one.weight) > attention.num_targets:
        assert not torch.equal(one.weight, other.weight)


def test_the_shape_of_the_attention_is_that_of_the_layers_of_the_explanation():
    class Global(nn.Module):
        """A layer over edges beside attention over all pairs of nodes, which the tree leaves out."""

        def __init__(self):
            super().__init__()
            self.first, self.conv, self.last = GATConv(6, 8), GPSConv(8, GATConv(8, 8), heads=2), nn.Linear(8, 3)

        def forward(self, x, edge_index):
            return self.last(self.conv(self.first(x, edge_index), edge_index))

    torch.manual_seed(0)
    graph = small()
    read, clean = answers(Global().eval(), graph)
    chain = [attention for attention in clean.attention.values() if attention.over == "edges"]
    for name, mean in (("nonuniformity", mean_nonuniformity), ("entropy", mean_entropy)):
        wanted = {"tree": chain, "last": chain[-1:], "first": chain[:1], "leave-one-out": chain[-1:]}
        for explanation, layers in wanted.items():
            trial = Trial(read, graph, clean, clean, graph.y, graph.test_mask, explanation)
            assert METRICS[name].compute(trial) == pytest.approx(np.mean([mean(layer) for layer in layers]), abs=1e-6)
    assert len(chain) == 2 < len(clean.attention)
