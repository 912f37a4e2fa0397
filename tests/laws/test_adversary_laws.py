"""Laws of every registered adversary: it stays in its budget, gains, leaves no trace, and can be repeated."""

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from fgai.adversaries import (
    ADVERSARIES,
    GAINS,
    GRBCD,
    LINKS,
    PRBCD,
    AttackEnsemble,
    AttentionBall,
    ChosenInjection,
    EdgeRewiring,
    FeatureBall,
    GraphInjection,
    NodeInjection,
    SingleTarget,
    TypedInjection,
    WorstOf,
)
from fgai.errors import FGAIError
from strategies import generators
from worlds import MODELS, answers, asked, change, links, model_of, shuffled, small, tensors, trace

PLUS = ("weight_delta", "score_delta")
ROUNDED = 1 + 1e-4
NORMS: dict[Any, float] = {"l1": 1, "l2": 2, "linf": torch.inf}
INSTANCES = {
    "node-injection": (
        NodeInjection(3, 4, steps=2, step=0.5),
        NodeInjection(2, 3, steps=2, box=None, targets=(1, 5, 9, 11), adam=True),
        NodeInjection(2, 3, steps=0, box=(0.0, 0.5)),
        *(NodeInjection(3, 4, steps=2, step=0.5, links=links) for links in LINKS if links != "random"),
        *(NodeInjection(2, 3, steps=2, box=None, features=features) for features in ("l1", "l2", "realistic")),
    ),
    "graph-injection": (GraphInjection(steps=2), GraphInjection(3, 1, steps=2, features="l2")),
    "typed-injection": (TypedInjection(2, 3, steps=2),),
    "edge-rewiring": (
        EdgeRewiring(4, 3, rounds=2, pool=60, seed=2),
        EdgeRewiring(3, 0, rounds=1, pool=60),
        EdgeRewiring(3, 4, greedy=False, pool=60),
    ),
    "attention-ball": tuple(AttentionBall(0.2, norm, on, steps=3) for norm in NORMS for on in ("weights", "scores")),
    "feature-ball": (
        *(FeatureBall(0.3, norm, steps=3) for norm in NORMS),
        FeatureBall(0.3, "l2", steps=3, targets=(2, 7)),
    ),
    "attack-ensemble": (
        AttackEnsemble(2, (2, 4), ("kl", "margin"), ((2, 0.5),), restarts=2),
        AttackEnsemble(2, (3,), ("kl",), ((1, 0.5), (2, 0.2)), box=None),
    ),
    "chosen-injection": (
        ChosenInjection(2, (4,), surrogates=("margin", "class:*"), schedules=((2, 0.3),), adam=((2, 0.1),), keep=2),
        ChosenInjection(2, (2, 4), ("degree",), ("margin",), ((2, 0.3),), (), restarts=2, features="l2", box=None),
    ),
    "worst-of": (WorstOf((EdgeRewiring(4, 3, rounds=2, pool=60), PRBCD(7, epochs=2, block=60)), ("margin",)),),
    "prbcd": (PRBCD(4, epochs=3, block=60),),
    "grbcd": (GRBCD(4, epochs=2, block=60),),
    "single-target": (SingleTarget(7, 1, steps=2), SingleTarget(7, 3, steps=2, among=True)),
}
JUDGES = (AttackEnsemble, ChosenInjection, WorstOf)  # they judge by a gain that has no gradient, and climb others
ALL = [pytest.param(a, id=f"{name}-{i}") for name, several in INSTANCES.items() for i, a in enumerate(several)]
FIRST = [pytest.param(several[0], id=name) for name, several in INSTANCES.items()]
LONGER = {  # the same chain of steps, or its start alone, and more of it
    "node-injection": (NodeInjection(3, 4, steps=2, step=0.5), NodeInjection(3, 4, steps=6, step=0.5)),
    "attention-ball": (AttentionBall(0.2, steps=0), AttentionBall(0.2, steps=6)),
    "feature-ball": (FeatureBall(0.3, steps=0), FeatureBall(0.3, steps=6)),
    "attack-ensemble": (
        AttackEnsemble(2, (3,), ("kl",), ((2, 0.5),), restarts=1),
        AttackEnsemble(2, (3,), ("kl",), ((6, 0.5),), restarts=1),
    ),
}


def attack(adversary, model="gat", sparse=False, gain="kl"):
    graph = asked(small(sparse), model)
    read, clean = answers(model_of(model, graph), graph)
    return adversary(read, graph, GAINS[gain](clean))


attacked = cache(attack)


def worth(gain, reading, model="gat", sparse=False):
    graph = asked(small(sparse), model)
    value = GAINS[gain](answers(model_of(model, graph), graph)[1])(reading)
    assert value.shape == ()
    return float(value.detach())


def assert_links(now, added, dropped):
    graph, change = small(), now.perturbation
    new, gone = links(change.added), links(change.dropped)
    there = set(links(graph.edge_index))
    for chosen, budget in ((new, added), (gone, dropped)):
        assert len(chosen) == len(set(chosen)) <= 2 * budget
        assert {(t, s) for s, t in chosen} == set(chosen)
    assert set(gone) <= there and not set(new) & there and all(s != t for s, t in new)
    assert set(links(now.graph.edge_index)) == there - set(gone) | set(new)


def assert_injection(adversary, now):
    graph, x = small(), now.perturbation.x
    counts = adversary.edges if isinstance(adversary.edges, tuple) else (adversary.edges,)
    edges = max(count for count in counts if 2 * count * adversary.nodes >= now.perturbation.added.size(1))
    assert x.shape == (adversary.nodes, graph.num_features)
    assert_links(now, adversary.nodes * edges, 0)
    for node in range(40, 40 + adversary.nodes):
        own = [target for source, target in links(now.perturbation.added) if source == node]
        assert len(own) == len(set(own)) in counts and max(own) < 40
        assert set(own) <= set(getattr(adversary, "targets", None) or range(40))
    low, high = adversary.box or (graph.x.min(0).values, graph.x.max(0).values)
    assert bool((x >= low).all() and (x <= high).all())
    if getattr(adversary, "features", "box") != "box":
        order = 1 if adversary.features == "l1" else 2
        assert float(x.norm(order, 1).max()) <= float(graph.x.norm(order, 1).max()) * ROUNDED


def assert_flips(adversary, now):
    flips = adversary.flips if isinstance(adversary, PRBCD) else 7
    assert_links(now, flips, flips)
    assert now.perturbation.added.size(1) + now.perturbation.dropped.size(1) <= 2 * flips


def assert_single(adversary, now):
    count, x = adversary.nodes, now.perturbation.x
    assert x.shape == (count, small().num_features) and bool((x.abs() <= 1).all())
    assert_links(now, count + count * (count - 1) // 2 * adversary.among, 0)
    old = {edge for edge in links(now.perturbation.added) if min(edge) < 40}
    assert {min(edge) for edge in old} == {adversary.target} and len(old) == 2 * count


def assert_attention_ball(adversary, now):
    parts = now.perturbation.weight_delta if adversary.on == "weights" else now.perturbation.score_delta
    assert list(parts) == ["conv2"]
    place = now.attention["conv2"]
    assert parts["conv2"].shape == place.weight.shape
    for node in range(40):
        size = parts["conv2"][place.target == node].norm(NORMS[adversary.norm], dim=0)
        assert bool((size <= adversary.radius * ROUNDED).all())


def assert_feature_ball(adversary, now):
    moved = now.perturbation.x_delta
    assert moved.shape == small().x.shape
    assert bool((moved.norm(NORMS[adversary.norm], dim=1) <= adversary.radius * ROUNDED).all())
    if adversary.targets is not None:
        assert moved.any(1).nonzero().flatten().tolist() == list(adversary.targets)


BUDGETS = {
    "node-injection": (assert_injection, {"x", "added"}),
    "graph-injection": (assert_injection, {"x", "added"}),
    "typed-injection": (assert_injection, {"x", "added"}),
    "edge-rewiring": (lambda a, now: assert_links(now, a.added, a.dropped), {"added", "dropped"}),
    "attention-ball": (assert_attention_ball, set(PLUS)),
    "feature-ball": (assert_feature_ball, {"x_delta"}),
    "attack-ensemble": (assert_injection, {"x", "added"}),
    "chosen-injection": (assert_injection, {"x", "added"}),
    "worst-of": (assert_flips, {"added", "dropped"}),
    "prbcd": (assert_flips, {"added", "dropped"}),
    "grbcd": (assert_flips, {"added", "dropped"}),
    "single-target": (assert_single, {"x", "added"}),
}


def test_every_adversary_is_under_these_laws():
    assert set(INSTANCES) == set(BUDGETS) == set(ADVERSARIES)
    assert all(isinstance(a, ADVERSARIES[name]) for name, several in INSTANCES.items() for a in several)


@pytest.mark.parametrize("adversary", ALL)
def test_an_adversary_stays_in_its_budget_and_touches_nothing_else(adversary):
    (name,) = (name for name, kind in ADVERSARIES.items() if kind is type(adversary))
    now = attacked(adversary)
    check, may = BUDGETS[name]
    check(adversary, now)
    touched = {
        part
        for part, value in vars(now.perturbation).items()
        if value is not None and len(value) and any(map(len, value))
    }
    assert touched <= may | {"x" for _ in may & {"x"}} and touched


@pytest.mark.parametrize("adversary", ALL)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_an_adversary_never_gains_less_than_doing_nothing(adversary, sparse):
    assert worth("kl", attacked(adversary, sparse=sparse), sparse=sparse) > 0


@pytest.mark.parametrize("adversary", FIRST)
@pytest.mark.parametrize("model", MODELS)
def test_an_adversary_works_on_every_kind_of_model_with_dense_and_sparse_features(adversary, model):
    if model == "pyg" and isinstance(adversary, AttentionBall):
        assert list(attacked(adversary, model).perturbation.weight_delta) == ["convs.1"]
    for sparse in (False, True):
        now = attacked(adversary, model, sparse)
        assert worth("kl", now, model, sparse) > 0 and now.logits.isfinite().all()


@pytest.mark.parametrize("adversary", ALL)
@pytest.mark.parametrize("mode", [False, True], ids=["eval", "train"])
def test_model_graph_and_chance_stay_as_they_were(adversary, mode):
    graph, model = small(), model_of("gat", small())
    read, clean = answers(model, graph)
    model.train(mode)
    before = trace(model), tensors(graph), graph.keys(), *([] if mode else generators())
    adversary(read, graph, GAINS["kl"](clean))
    assert (trace(model), tensors(graph), graph.keys(), *([] if mode else generators())) == before


@pytest.mark.parametrize("adversary", ALL)
def test_the_same_seed_does_the_same_and_another_seed_another_thing(adversary):
    one, other = attack(adversary), attack(replace(adversary, seed=adversary.seed + 1))
    assert change(one.perturbation) == change(attacked(adversary).perturbation) != change(other.perturbation)


@pytest.mark.parametrize("adversary", ALL)
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_the_perturbation_made_again_and_read_again_gives_the_same_answers(adversary, sparse):
    now, graph = attacked(adversary, sparse=sparse), small(sparse)
    again = now.perturbation.read(answers(model_of("gat", graph), graph)[0], graph)
    assert torch.equal(again.logits, now.logits) and tensors(again.graph) == tensors(now.graph)
    assert torch.equal(again.explanation.weight, now.explanation.weight)


@pytest.mark.parametrize("adversary", [p for p in ALL if not isinstance(p.values[0], AttentionBall)])
def test_the_order_of_the_edges_does_not_matter(adversary):
    graph, gain = shuffled(small()), "cross-entropy"  # the gradient of kl is zero on the clean graph, up to rounding
    read, clean = answers(model_of("gat", graph), graph)
    one, other = attacked(adversary, gain=gain), adversary(read, graph, GAINS[gain](clean))
    assert sorted(links(one.perturbation.added)) == sorted(links(other.perturbation.added))
    assert sorted(links(one.perturbation.dropped)) == sorted(links(other.perturbation.dropped))
    assert worth(gain, other) == pytest.approx(worth(gain, one), rel=1e-3)


@pytest.mark.parametrize("name", LONGER)
def test_more_steps_of_the_same_chain_never_gain_less(name):
    fewer, more = LONGER[name]
    assert worth("kl", attacked(more)) >= worth("kl", attacked(fewer))


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("adversary", FIRST)
def test_every_gain_is_a_scalar_of_what_the_adversary_found(adversary, gain):
    assert math.isfinite(worth(gain, attacked(adversary)))


@pytest.mark.parametrize("gain", GAINS)
@pytest.mark.parametrize("adversary", FIRST)
def test_every_gain_can_be_climbed_or_is_refused_in_words(adversary, gain):
    if gain == "flips" and not isinstance(adversary, JUDGES):
        with pytest.raises(FGAIError, match="AttackEnsemble"):
            attack(adversary, gain=gain)
        return
    graph = small()
    clean = answers(model_of("gat", graph), graph)[1]
    assert worth(gain, attack(adversary, gain=gain)) >= float(GAINS[gain](clean)(clean).detach())


@pytest.mark.parametrize("adversary", [one for one in ALL if isinstance(one.values[0], JUDGES)])
def test_an_attack_with_members_names_the_one_that_found_the_perturbation(adversary):
    result = attacked(adversary)
    names = {"the gain of the call", *adversary.surrogates, *(f"class:{label}" for label in range(10))}
    assert result.found_by.partition(",")[0] in names, result.found_by
    features = getattr(adversary, "features", "box")
    assert (f"features {features}" in result.found_by) == (features != "box")
    assert result.detach().found_by == result.found_by


def test_the_member_that_is_named_reaches_the_same_gain_alone():
    one = ChosenInjection(2, (4,), surrogates=("margin",), schedules=((2, 0.3), (3, 0.1)), adam=(), keep=6)
    together = attack(one, gain="flips")
    objective, links, step = together.found_by.split(", ")
    assert links.startswith("4 links by ") and step.endswith(" by the sign")
    schedule = next(s for s in one.schedules if f"{s[1]:g}" == step.split()[2])
    alone = replace(one, links=(links.split()[-1],), surrogates=(objective,), schedules=(schedule,))
    assert worth("flips", attack(alone, gain="flips")) == worth("flips", together) > 0
