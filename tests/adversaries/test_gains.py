import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.special import log_softmax, softmax
from sklearn.metrics import log_loss

from fgai.adversaries import GAINS, AttentionBall
from fgai.adversaries.gains import soft_topk, topk_distance
from fgai.attention import Attention
from fgai.reading import Reading
from worlds import answers, by_target, model_of, normalised, rows_moved, small, table, top

NODES = 7
SEEDS = st.integers(0, 10_000)
SHAPES = st.sampled_from([(3,), (1,), ()])  # classes, one logit, one logit without a column


def reading(logits, attention):
    return Reading(logits, {"first": attention, "last": attention})


def two_readings(seed, shape=(3,)):
    """A clean reading, and one of the same graph in another order with two nodes and some edges more."""
    draw = torch.Generator().manual_seed(seed)
    pairs = torch.randint(NODES, (2, 24), generator=draw).unique(dim=1)
    more = torch.cat([pairs, torch.randint(NODES, NODES + 2, (2, 3), generator=draw)], dim=1)
    more = torch.cat([more, torch.stack([torch.tensor([7, 8]), torch.randint(NODES, (2,), generator=draw)])], dim=1)
    made = []
    for edges, nodes in ((pairs, NODES), (more, NODES + 2)):
        score = 2 * torch.randn(edges.size(1), 2, generator=draw, dtype=torch.double)
        logits = 2 * torch.randn(nodes, *shape, generator=draw, dtype=torch.double)
        made.append(reading(logits, rows_moved(normalised(score, edges, nodes), seed)))
    return made


def columns(reading):
    """Logits with a column per class, as numpy."""
    logits = reading.logits.detach().numpy().reshape(len(reading.logits), -1)
    return np.hstack([0 * logits, logits]) if logits.shape[1] == 1 else logits


def by_log_loss(clean, now):
    before, after = columns(clean), columns(now)[:NODES]
    return log_loss(before.argmax(1), softmax(after, axis=1), labels=range(before.shape[1]))


def by_kl(clean, now):
    p, q = columns(clean), columns(now)[:NODES]
    return (softmax(p, 1) * (log_softmax(p, 1) - log_softmax(q, 1))).sum() / NODES


def by_margin(clean, now):
    total = 0.0
    for before, after in zip(columns(clean), columns(now), strict=False):
        own = before.argmax()
        total += math.tanh(max(np.delete(after, own)) - after[own])
    return total / NODES


def by_flips(clean, now):
    return np.mean(columns(clean).argmax(1) != columns(now)[:NODES].argmax(1))


def by_jsd(clean, now):
    before, after = table(clean.explanation), table(now.explanation)
    nodes, total = by_target(before), 0.0
    for edges in nodes.values():
        p, q = (np.array([weight[e] for e in edges]) for weight in (before, after))
        middle = (p + q) / 2
        total += 0.5 * (p * np.log(p / middle)).sum() + 0.5 * (q * np.log(q / middle)).sum()
    return total / len(nodes)


def by_soft_topk(clean, now, k=5):
    before, after = table(clean.explanation), table(now.explanation)
    total, judged = 0.0, 0
    for edges in by_target(before).values():
        inside = top(edges, before, k)
        outside = [e for e in edges if e not in inside]
        if outside:
            rival = max(after[e] for e in outside)
            total += sum(max(0.0, 0.1 - len(edges) * (after[e] - rival)) for e in inside)
            judged += 1
    return total / max(judged, 1)


def by_topk_loss(clean, now, k=5):
    before, after = table(clean.explanation), table(now.explanation)
    total = 0.0
    for edges in by_target(before).values():
        for weights in (before, after):
            total += sum(abs(before[e] - after[e]) for e in top(edges, weights, k)) / (2 * k)
    return total / NODES


def by_kept(clean, now):
    before, after = columns(clean), columns(now)[:NODES]
    gaps = [max(a) - a[b.argmax()] for b, a in zip(before, after, strict=True) if b.argmax() != a.argmax()]
    return by_jsd(clean, now) - (1 + sum(gaps) if gaps else 0)


FORMULAS = {
    "attention-divergence-kept": by_kept,
    "cross-entropy": by_log_loss,
    "kl": by_kl,
    "margin": by_margin,
    "flips": by_flips,
    "attention-divergence": by_jsd,
    "soft-top-k": by_soft_topk,
    "top-k-loss": by_topk_loss,
}
ZERO = ("kl", "flips", "attention-divergence", "attention-divergence-kept", "top-k-loss")


def test_every_gain_has_its_formula_here():
    assert set(FORMULAS) == set(GAINS)


@pytest.mark.parametrize("name", GAINS)
@given(seed=SEEDS, shape=SHAPES)
@settings(max_examples=15)
def test_a_gain_is_its_formula(name, seed, shape):
    clean, now = two_readings(seed, shape)
    value = GAINS[name](clean)(now)
    assert value.shape == ()
    assert float(value) == pytest.approx(FORMULAS[name](clean, now), abs=1e-7)


@given(seed=SEEDS, k=st.integers(1, 4))
@settings(max_examples=15)
def test_the_top_k_gains_follow_their_formula_for_every_k(seed, k):
    clean, now = two_readings(seed)
    assert float(soft_topk(clean, k)(now)) == pytest.approx(by_soft_topk(clean, now, k), abs=1e-9)
    assert float(topk_distance(clean, k)(now)) == pytest.approx(by_topk_loss(clean, now, k), abs=1e-9)


@pytest.mark.parametrize("name", ZERO)
@given(seed=SEEDS, shape=SHAPES)
@settings(max_examples=15)
def test_where_nothing_changed_nothing_is_gained(name, seed, shape):
    clean, _ = two_readings(seed, shape)
    moved = reading(clean.logits, rows_moved(clean.explanation, seed + 1))
    assert float(GAINS[name](clean)(moved)) == 0.0


@given(seed=SEEDS, shape=SHAPES)
@settings(max_examples=15)
def test_the_clean_answers_are_the_labels_so_at_the_clean_reading_margins_are_negative(seed, shape):
    clean, _ = two_readings(seed, shape)
    assert float(GAINS["margin"](clean)(clean)) < 0
    nearest = softmax(columns(clean), 1).max(1)
    assert float(GAINS["cross-entropy"](clean)(clean)) == pytest.approx(-np.log(nearest).mean(), abs=1e-9)


@pytest.mark.parametrize("name", [name for name in GAINS if name != "flips"])
@given(seed=SEEDS, shape=SHAPES)
@settings(max_examples=10)
def test_gradients_are_finite_and_not_all_zero(name, seed, shape):
    clean, now = two_readings(seed, shape)
    look = now.explanation
    logits, weight = now.logits.requires_grad_(), look.weight.requires_grad_()
    value = GAINS[name](clean)(reading(logits, Attention(weight, look.edge_index, look.num_targets)))
    if value.requires_grad:  # with few neighbours a top k has no rivals
        slopes = torch.autograd.grad(value, [logits, weight], allow_unused=True, materialize_grads=True)
        assert all(slope.isfinite().all() for slope in slopes)
        assert name == "soft-top-k" or any(slope.any() for slope in slopes)


def test_gradients_are_finite_where_attention_has_underflown_to_zero():
    clean, now = two_readings(0)
    look = now.explanation
    weight = torch.where(look.weight > 0.5, look.weight, 0.0).requires_grad_()
    value = GAINS["attention-divergence"](clean)(
        reading(now.logits, Attention(weight, look.edge_index, look.num_targets))
    )
    assert torch.autograd.grad(value, weight)[0].isfinite().all()


@given(seed=SEEDS)
@settings(max_examples=15)
def test_the_divergence_of_attention_is_scipys_for_each_node(seed):
    clean, _ = two_readings(seed)
    look = clean.explanation
    other = normalised(look.weight.flip(0), look.edge_index, NODES)
    before, after = table(look), table(other)
    nodes = by_target(before)
    each = [jensenshannon([before[e] for e in edges], [after[e] for e in edges]) ** 2 for edges in nodes.values()]
    expected = sum(each) / len(nodes)
    assert float(GAINS["attention-divergence"](clean)(reading(clean.logits, other))) == pytest.approx(
        expected, abs=1e-9
    )


def test_the_divergence_of_pushed_weights_stays_a_divergence():
    graph, radius = small(), 0.3
    read, clean = answers(model_of("gat", graph), graph)
    gain = GAINS["attention-divergence"](clean)
    found = float(gain(AttentionBall(radius=radius, steps=20)(read, graph, gain).detach()))
    assert found <= math.log(2) * (1 + radius / 2)  # the two vectors add up to at most 2 + radius
