"""Threat models: link choices, feature sets, aimed gains, ensembles, links by gradient, single targets, encodings."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.stats import chisquare
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from fgai import datasets
from fgai.adversaries import (
    ADVERSARIES,
    FEATURES,
    GAINS,
    GRBCD,
    LINKS,
    PRBCD,
    THREATS,
    ChosenInjection,
    EdgeRewiring,
    NodeInjection,
    Perturbation,
    SingleTarget,
    WithinBudget,
    WorstOf,
    as_threat,
    describe,
    single,
)
from fgai.adversaries.adam import Adam
from fgai.adversaries.block_coordinate import WeightedEdges
from fgai.adversaries.features import SimilarRows
from fgai.adversaries.gains import ON_EXPLANATIONS
from fgai.adversaries.links import LinkBudget
from fgai.adversaries.projections import onto_binary, onto_box_and_ball, onto_capped_simplex, onto_sum
from fgai.adversaries.single import unions
from fgai.backbones import BACKBONES
from fgai.calling import RecomputedEncodings
from fgai.errors import SettingError, UnknownNameError
from fgai.graph import require
from fgai.methods import GNNGuard
from fgai.methods.layernorm import Normalised
from fgai.reading import Reader, Reading, open_reader
from worlds import MODELS, answers, asked, community, links, model_of, shuffled, small, trained


def world():
    graph = community()
    return graph, *answers(trained(), graph)


def judged(adversary, climbed, judge):
    graph, read, clean = world()
    return float(GAINS[judge](clean)(adversary(read, graph, GAINS[climbed](clean)).detach()))


# Threats


@pytest.mark.parametrize("name", THREATS)
def test_a_threat_names_a_registered_adversary_a_gain_and_who_attacks(name):
    threat = THREATS[name]
    assert type(threat.adversary) in ADVERSARIES.values() and GAINS[threat.gain]
    assert "attack" in threat.about.lower() or threat.about.startswith("As ")
    assert threat.about == THREATS.about(name) and threat.about.endswith(".") and "\n" not in threat.about
    assert replace(threat.adversary, seed=3).seed == 3


def test_settings_name_the_members_of_an_attack():
    described = describe(as_threat("structure"))
    assert [one["name"] for one in described["members"]] == ["prbcd", "grbcd", "edge-rewiring", "edge-rewiring"]
    assert {**described["members"][0], "name": "grbcd"} == described["members"][1]
    within = describe(as_threat(WithinBudget(NodeInjection(2, 3), "strongest")))
    assert (within["name"], within["attack"]["name"], within["attack"]["edges"]) == (
        "WithinBudget",
        "node-injection",
        3,
    )


@pytest.mark.parametrize("name", THREATS)
def test_a_threat_against_explanations_aims_all_its_gains_at_the_explanation_that_is_asked(name):
    threat, aimed = THREATS[name], as_threat(name, explanation="tree")
    names = [(t.gain, *getattr(t.adversary, "surrogates", ())) for t in (threat, aimed)]
    assert names[1] == tuple(f"{gain}:tree" if gain in ON_EXPLANATIONS else gain for gain in names[0])
    assert as_threat(name).adversary == threat.adversary


def test_the_papers_attackers_are_what_they_were():
    for edges in (20, 40):
        threat = THREATS[f"injection-20x{edges}"]
        assert (threat.adversary, threat.gain) == (NodeInjection(nodes=20, edges=edges), "cross-entropy")


# Links


def cover(graph, chosen, weight):
    near = {int(t) for s, t in links(graph.edge_index) if s in chosen} | set(chosen)
    return sum(float(weight[node]) for node in near)


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("edges", [1, 4, 40])
def test_links_are_distinct_allowed_seeded_and_blind_to_the_order_of_edges(name, edges):
    graph = small()
    clean = answers(model_of("gat", graph), graph)[1]
    for allowed in (torch.arange(40), torch.arange(0, 40, 1 if edges == 40 else 3)):
        budget = LinkBudget(3, edges, allowed, seed=5)
        picked = LINKS[name](graph, budget, clean)
        assert picked.shape == (3, edges) and set(picked.flatten().tolist()) <= set(allowed.tolist())
        assert all(len(set(row)) == edges for row in picked.tolist())
        assert torch.equal(picked, LINKS[name](shuffled(graph), budget, clean))
    if edges == 4:
        assert not torch.equal(picked, LINKS[name](graph, replace(budget, seed=6), clean))


def test_links_by_degree_go_to_the_hubs():
    graph = small()
    picked = LINKS["degree"](graph, LinkBudget(2, 3, torch.arange(40)), None)
    count = graph.edge_index[1].bincount(minlength=40)
    assert sorted(count[picked.flatten()].tolist()) == sorted(count.tolist())[-6:]


def test_random_links_by_degree_are_drawn_in_proportion_to_it():
    """The first draw of many injected nodes against the degrees, by a chi-squared test."""
    graph = small()
    picked = LINKS["random-by-degree"](graph, LinkBudget(20_000, 1, torch.arange(40)), None).flatten()
    degrees = graph.edge_index[1].bincount(minlength=40).clamp(min=1).double()
    expected = 20_000 * degrees / degrees.sum()
    assert chisquare(picked.bincount(minlength=40).numpy(), expected.numpy()).pvalue > 1e-4


@pytest.mark.parametrize("doubt", [True, False])
def test_coverage_is_greedy_on_the_weight_of_what_is_near_a_link(doubt):
    graph = small()
    clean = answers(model_of("gat", graph), graph)[1] if doubt else None
    best = torch.ones(40, 2) if clean is None else clean.probs.sort(1, descending=True).values
    weight = torch.ones(40) if clean is None else 1.01 - (best[:, 0] - best[:, 1])
    expected = []
    for _ in range(6):
        left = [node for node in range(40) if node not in expected]
        expected.append(max(left, key=lambda node: (round(cover(graph, [*expected, node], weight), 5), -node)))
    picked = LINKS["coverage"](graph, LinkBudget(2, 3, torch.arange(40)), clean).flatten().tolist()
    assert cover(graph, picked, weight) == pytest.approx(cover(graph, expected, weight), rel=1e-4)
    assert cover(graph, picked, weight) >= (1 - 1 / np.e) * float(weight.sum()) or len(picked) == 6


def test_reach_covers_the_most_nodes_whatever_their_margins():
    graph, clean = community(), Reader(trained())(community()).detach()
    budget = LinkBudget(2, 3, torch.arange(int(graph.num_nodes or 0)))
    reach, coverage = (LINKS[name](graph, budget, clean).flatten().tolist() for name in ("reach", "coverage"))
    assert sorted(reach) == sorted(LINKS["coverage"](graph, budget, None).flatten().tolist())
    every = torch.ones(int(graph.num_nodes or 0))
    assert cover(graph, reach, every) > cover(graph, coverage, every)


def test_links_of_nodes_that_are_not_linked_themselves_are_counted_again_when_all_is_covered():
    empty = Data(x=torch.ones(4, 1), edge_index=torch.empty(2, 0, dtype=torch.long))
    assert sorted(LINKS["coverage"](empty, LinkBudget(2, 4, torch.arange(4)), None)[0].tolist()) == [0, 1, 2, 3]


# Feature sets


@pytest.mark.parametrize("seed", range(5))
def test_binary_rows_are_the_nearest_of_all(seed):
    x = torch.rand(1, 6, generator=torch.Generator().manual_seed(seed)) * 3 - 1
    rows = [torch.zeros(6).index_fill(0, torch.tensor(at), 1.0) for at in combinations(range(6), 2)]
    assert torch.equal(onto_binary(x, 2)[0], min(rows, key=lambda row: float((row - x[0]).square().sum())))


def nearest(x, low, high, size, kind):
    """By a solver: z = p - q with p, q >= 0, so that the l1 norm, sum p + q, is smooth; `size(p, q)` is constrained."""
    count = len(x)
    ends = [(max(a, 0), max(b, 0)) for a, b in zip(low, high, strict=True)]
    ends += [(max(-b, 0), max(-a, 0)) for a, b in zip(low, high, strict=True)]
    slope = lambda z: 2 * (z[:count] - z[count:] - x)  # noqa: E731
    found = minimize(
        lambda z: ((z[:count] - z[count:] - x) ** 2).sum(),
        np.array([start for start, _ in ends]),
        jac=lambda z: np.concatenate([slope(z), -slope(z)]),
        bounds=ends,
        constraints=[{"type": kind, "fun": lambda z: size(z[:count], z[count:])}],
        method="SLSQP",
        options={"ftol": 1e-9, "maxiter": 500},
    )
    assert found.success and abs(min(size(found.x[:count], found.x[count:]), 0)) < 1e-6
    return torch.from_numpy(found.x[:count] - found.x[count:])


@pytest.mark.parametrize("seed", range(5))
def test_the_capped_simplex_is_projected_onto_as_by_a_solver(seed):
    x = torch.randn(2, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.double) * 2
    for row, ours in zip(x, onto_capped_simplex(x, 3.0), strict=True):
        found = nearest(row.numpy(), [0] * 7, [1] * 7, lambda p, q: p.sum() - 3, "eq")
        assert torch.allclose(ours, found, atol=1e-3)


@pytest.mark.parametrize(("norm", "seed"), list(product(("l1", "l2"), range(5))))
def test_box_and_ball_are_projected_onto_as_by_a_solver(norm, seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 6, generator=draw, dtype=torch.double) * 2
    low, high = -torch.rand(6, generator=draw, dtype=torch.double), torch.rand(6, generator=draw, dtype=torch.double)
    low[0], high[0], high[1] = 0.1, 0.9, 0.0  # the box need not hold zero
    radius = 1.2 if norm == "l1" else 0.9
    inside = onto_box_and_ball(x, low, high, radius, norm)
    size = inside.norm(1 if norm == "l1" else 2, 1)
    assert bool((size <= radius * (1 + 1e-9)).all() and (inside >= low).all() and (inside <= high).all())
    gaps = {"l1": lambda p, q: radius - (p + q).sum(), "l2": lambda p, q: radius**2 - ((p - q) ** 2).sum()}
    for row, ours in zip(x, inside, strict=True):
        assert torch.allclose(ours, nearest(row.numpy(), low.tolist(), high.tolist(), gaps[norm], "ineq"), atol=1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_a_box_with_the_sum_1_are_projected_onto_as_by_a_solver(seed):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 6, generator=draw, dtype=torch.double) * 2
    low, high = -torch.rand(6, generator=draw, dtype=torch.double), torch.rand(6, generator=draw, dtype=torch.double)
    for row, ours in zip(x, onto_sum(x, low, high, 1.0), strict=True):
        found = nearest(row.numpy(), low.tolist(), high.tolist(), lambda p, q: (p - q).sum() - 1, "eq")
        assert torch.allclose(ours, found, atol=1e-3)


def test_a_model_that_divides_rows_by_their_sums_does_not_change_rows_with_the_sum_1():
    graph = small()
    model = Normalised(model_of("gat", graph), "rows").eval()
    read, clean = answers(model, graph)
    x = NodeInjection(3, 4, steps=5, step=0.4, features="unit-sum")(read, graph, GAINS["kl"](clean)).perturbation.x
    assert x is not None and float(x.abs().max()) <= 1
    assert float(x.abs().sum(1).min()) > 1.5  # larger than any row of positive features with this sum
    torch.testing.assert_close(model.normal(x), x, rtol=0, atol=1e-5)


def test_a_step_among_rows_with_the_sum_1_ignores_what_changes_the_sum_alone():
    rows = FEATURES["unit-sum"](small(), (-1.0, 1.0))
    draw = torch.Generator().manual_seed(0)
    x, slope = rows.clamp(torch.randn(3, 6, generator=draw)), torch.randn(3, 6, generator=draw)
    moved = rows.ascend(x, slope, 0.1)
    assert torch.equal(rows.ascend(x, slope + 5, 0.1), moved) and not torch.equal(moved, x)


@pytest.mark.parametrize(("kind", "box", "asked"), [("rows", (-1, 1), 3), ("rows", (-1, 0), 1), (None, (-1, 1), 0)])
def test_a_model_that_normalises_rows_also_meets_rows_with_the_sum_1(kind, box, asked, monkeypatch):
    tried, place = [], NodeInjection.place
    monkeypatch.setattr(NodeInjection, "place", lambda self, *args: tried.append(self.features) or place(self, *args))
    graph = small()
    graph.x = graph.x.abs()
    model = model_of("gat", graph)
    read, clean = answers(Normalised(model, kind).eval() if kind else model, graph)
    attack = ChosenInjection(3, (4,), surrogates=("kl",), schedules=((2, 0.4),), adam=(), box=box, keep=1)
    attack(read, graph, GAINS["kl"](clean))
    assert tried.count("box") == 3 and tried.count("unit-sum") == asked  # one is refused in (-1, 0)


def test_a_box_without_a_row_of_the_sum_1_is_refused():
    with pytest.raises(SettingError, match="sum 1"):
        FEATURES["unit-sum"](small(), (-1.0, 0.0))


def test_adam_steps_as_torch_does_and_stays_in_the_box():
    draw = torch.Generator().manual_seed(0)
    slopes = torch.randn(8, 2, 3, generator=draw)
    theirs = torch.zeros(2, 3, requires_grad=True)
    optimiser, adam, ours = torch.optim.Adam([theirs], lr=0.05, eps=0.0, maximize=True), Adam(), torch.zeros(2, 3)
    for slope in slopes:
        theirs.grad = slope.clone()
        optimiser.step()
        ours = ours + 0.05 * adam(slope)
    torch.testing.assert_close(ours, theirs.detach())
    box = FEATURES["box"](Data(x=torch.zeros(1, 3)), (-1.0, 1.0))
    assert float(box.move(ours, torch.full((2, 3), 9.0), 1.0).max()) == 1.0


def test_runs_with_adam_are_added_to_the_others():
    graph = small()
    read, clean = answers(model_of("gat", graph), graph)
    attack = ChosenInjection(2, (4,), ("degree",), ("kl",), ((2, 0.5),), keep=1)
    both = [replace(attack, adam=adam)(read, graph, GAINS["kl"](clean)) for adam in ((), ((20, 0.1),))]
    few, more = (float(GAINS["kl"](clean)(result.detach())) for result in both)
    assert more > few
    for wrong, message in ((((3,),), "adam.*pairs"), (3, "adam=3; give a tuple")):
        with pytest.raises(SettingError, match=message):
            replace(attack, adam=wrong)


def test_realistic_rows_look_like_the_data():
    graph = small()
    graph.x = (graph.x > 0.3).float()
    read, clean = answers(model_of("gat", graph), graph)
    x = NodeInjection(3, 4, steps=3, step=0.4, features="realistic")(read, graph, GAINS["kl"](clean)).perturbation.x
    assert x is not None and set(x.flatten().tolist()) == {0.0, 1.0} and (x.sum(1) == graph.x.sum(1).median()).all()
    graph.x = graph.x.to_sparse()
    read, clean = answers(model_of("gat", graph), graph)
    again = NodeInjection(3, 4, steps=3, step=0.4, features="realistic")(read, graph, GAINS["kl"](clean))
    assert again.perturbation.x is not None and torch.equal(again.perturbation.x, x)


def linked_rows(graph: Data, nodes: int = 3, edges: int = 6) -> tuple[SimilarRows, torch.Tensor]:
    pairs = NodeInjection(nodes, edges)._pairs(graph, None, None)
    rows = FEATURES["similar"](graph, (-1.0, 1.0)).linked(graph, pairs)
    assert isinstance(rows, SimilarRows)
    return rows, pairs


@pytest.mark.parametrize("sparse", [False, True])
def test_similar_rows_are_in_the_box_and_similar_to_their_neighbours(sparse):
    graph = small()
    graph.x = graph.x.abs().double()
    plain, graph.x = graph.x, graph.x.to_sparse() if sparse else graph.x
    rows, (new, old) = linked_rows(graph)
    for scale in (0.01, 0.3, 5.0):
        x = rows.clamp(scale * torch.randn(3, plain.size(1), generator=torch.Generator().manual_seed(0)).double())
        cosine = torch.nn.functional.cosine_similarity(x[new - graph.num_nodes], plain[old])
        assert float(x.abs().max()) <= 1 and float(cosine.min()) >= 0.1
        torch.testing.assert_close(rows.clamp(x), x, rtol=0, atol=1e-9)


def test_a_row_moves_no_farther_than_the_first_similarity_that_is_too_small():
    graph = small()
    graph.x = graph.x.abs()
    rows, (new, old) = linked_rows(graph)
    far = torch.randn(3, graph.x.size(1), generator=torch.Generator().manual_seed(1)).clamp(-1, 1)
    near = rows.clamp(far)
    assert rows.inside is not None
    beyond = near + 0.01 * (far - rows.inside)
    cosine = torch.nn.functional.cosine_similarity(beyond[new - graph.num_nodes], graph.x[old]).view(3, -1)
    assert bool((cosine.min(1).values < rows.least).all())


def test_similar_rows_are_long_where_the_box_lets_them():
    graph = datasets.load("synthetic-words", seed=0)
    rows, (new, old) = linked_rows(graph)
    unit = torch.nn.functional.normalize(require(graph, "x")[old], dim=1)
    mean = torch.zeros_like(rows.inside).index_add_(0, new - len(require(graph, "x")), unit)
    short = mean / mean.amax(1, keepdim=True)  # as long as it can be without a cut
    similarity = torch.nn.functional.cosine_similarity(rows.inside[new - len(require(graph, "x"))], unit)
    assert bool((rows.inside.norm(dim=1) > 1.5 * short.norm(dim=1)).all()) and float(similarity.min()) > rows.least
    assert float(rows.inside.abs().max()) <= 1


def test_a_guard_keeps_the_links_of_similar_nodes_and_removes_those_of_others():
    graph = datasets.load("synthetic-words", seed=0)
    model, guard = model_of("gat", graph), GNNGuard()
    with open_reader(model, guard.cleaned_call()) as read:
        gain, kept = GAINS["kl"](read(graph).detach()), {}
        for features in ("box", "similar"):
            attacked = NodeInjection(3, 10, steps=3, step=0.4, features=features)(read, graph, gain).graph
            fake = (require(attacked, "edge_index") >= len(require(graph, "y"))).any(0)
            kept[features] = float((~guard.suspects(attacked)[fake]).float().mean())
    assert kept["similar"] > 0.9 > 0.5 > kept["box"]


def test_binary_features_are_refused_where_the_data_has_others():
    with pytest.raises(SettingError, match="zeros and ones"):
        FEATURES["binary"](small(), None)


# Gains


def test_a_gain_that_aims_at_a_class_is_its_mean_log_probability():
    clean, now = Reading(torch.zeros(2, 3), {}), Reading(torch.tensor([[1.0, 2, 3], [0, 0, 9], [5, 5, 5]]), {})
    expected = now.logits[:2].softmax(1)[:, 1].log().mean()
    assert float(GAINS["class:1"](clean)(now)) == pytest.approx(float(expected))
    with pytest.raises(SettingError, match="classes 0 to 2"):
        GAINS["class:3"](clean)
    with pytest.raises(UnknownNameError):
        GAINS["class:one"]


def test_aiming_at_a_class_leads_there():
    graph, read, clean = world()
    for label in range(3):
        now = NodeInjection(5, 20, 10, 0.4, links="coverage")(read, graph, GAINS[f"class:{label}"](clean))
        assert (now.logits[:150].argmax(1) == label).sum() > (clean.logits.argmax(1) == label).sum()


def test_an_explanation_attack_that_keeps_answers_keeps_them_all_and_still_moves_attention():
    graph, read, clean = world()
    attack = ChosenInjection(2, (1, 3), surrogates=(), schedules=((20, 0.05),), adam=(), keep=3)
    kept = attack(read, graph, GAINS["attention-divergence-kept"](clean))
    free = attack(read, graph, GAINS["attention-divergence"](clean))
    assert torch.equal(kept.logits[:150].argmax(1), clean.logits.argmax(1))
    look = GAINS["attention-divergence"](clean)
    assert 0 < float(look(kept).detach()) <= float(look(free).detach())


def test_a_lost_answer_never_counts():
    graph, read, clean = world()
    now = NodeInjection(5, 20, 10, 0.4)(read, graph, GAINS["cross-entropy"](clean)).detach()
    assert float(GAINS["flips"](clean)(now)) > 0 > float(GAINS["attention-divergence-kept"](clean)(now))


# Ensembles

CHOSEN = ChosenInjection(3, (6,), surrogates=("margin", "class:*"), schedules=((3, 0.3), (1, 1.0)), adam=(), keep=100)


@pytest.mark.parametrize("judge", ["flips", "kl"])
def test_the_ensemble_is_no_weaker_than_any_member(judge):
    climbs = {"margin", *(f"class:{label}" for label in range(3)), judge} - {"flips"}
    each = [
        judged(replace(member, steps=steps, step=step), climb, judge)
        for member, climb, (steps, step) in product(CHOSEN.members(), climbs, CHOSEN.schedules)
    ]
    assert judged(CHOSEN, judge, judge) >= max(each) - 1e-6


@pytest.mark.parametrize("keep", [1, 2])
def test_each_schedule_selects_with_its_own_steps_until_so_many_are_left(keep, monkeypatch):
    lengths, climb = [], NodeInjection.climb
    monkeypatch.setattr(
        NodeInjection, "climb", lambda self, *args: lengths.append((self.steps, self.step)) or climb(self, *args)
    )
    attack = ChosenInjection(2, (4,), surrogates=("margin", "class:*"), schedules=((21, 0.1), (5, 0.4)), keep=keep)
    graph, read, clean = world()
    replace(attack, adam=((12, 0.2),))(read, graph, GAINS["flips"](clean))
    assert lengths.count((21, 0.1)) == lengths.count((5, 0.4)) == lengths.count((12, 0.2)) == keep
    selection = 15 + 5 + (2 if keep == 1 else 0)  # 3 link choices x (judge, margin, 3 classes)
    assert lengths.count((5, 0.1)) == lengths.count((1, 0.4)) == lengths.count((3, 0.2)) == selection


def test_choosing_links_and_classes_is_stronger_than_not():
    plain = replace(CHOSEN, links=("random",), surrogates=("margin",), keep=4)
    assert judged(replace(CHOSEN, keep=4), "flips", "flips") > judged(plain, "flips", "flips")


def test_the_worst_of_several_is_the_worst():
    members = (EdgeRewiring(6, 6, rounds=2, pool=200), PRBCD(12, epochs=4, block=400), GRBCD(12, epochs=4, block=400))
    each = [judged(member, "margin", "flips") for member in members]
    assert judged(WorstOf(members, ("margin",)), "flips", "flips") == pytest.approx(max(each), abs=1e-6)
    with pytest.raises(SettingError, match="at least 1 value"):
        WorstOf(())


# Links by gradient


ATTENDING = [name for name in MODELS if name != "soft-median"]  # its medians and degrees count edges of weight zero


@pytest.mark.parametrize("model", [name for name in ATTENDING if not name.endswith("-links")])
def test_an_edge_of_weight_zero_is_gone_and_one_of_weight_one_is_there(model):
    graph = asked(small(), model)
    read, clean = answers(model_of(model, graph), graph)
    call = WeightedEdges(read, graph, lambda now: now.logits.sum())
    edges, weight = graph.edge_index, torch.ones(graph.num_edges)
    with torch.no_grad():
        assert torch.allclose(call(graph.x, edges, weight).logits, clean.logits, atol=1e-5)
        gone = {(0, 1), links(edges)[0], links(edges)[0][::-1]}
        weight = torch.tensor([float(edge not in gone) for edge in links(edges)])
        dropped = edges[:, weight == 0]
        new = torch.tensor([[0, 39], [39, 0]])
        more, ones = torch.cat([edges, new], 1), torch.cat([weight, torch.ones(2)])
        expected = Perturbation(added=new, dropped=dropped).read(read, graph).logits
        assert torch.allclose(call(graph.x, more, ones).logits, expected, atol=1e-4)
        assert torch.allclose(call(graph.x, more[:, ones > 0], ones[ones > 0]).logits, expected, atol=1e-4)


def test_the_gradient_in_a_weight_is_that_of_finite_differences():
    graph = small()
    graph.x = graph.x.double()
    model = model_of("gat", graph).double()
    read, clean = answers(model, graph)
    call = WeightedEdges(read, graph, GAINS["kl"](clean))
    weight = torch.full((graph.num_edges,), 0.6, dtype=torch.double, requires_grad=True)
    value = lambda w: call.gain(call(graph.x, graph.edge_index, w), torch.empty(0), None)  # noqa: E731
    (slope,) = torch.autograd.grad(value(weight), [weight])
    for at in (0, 7, 50):
        nudge = torch.zeros_like(weight).index_fill(0, torch.tensor([at]), 1e-5)
        with torch.no_grad():
            numeric = (value(weight + nudge) - value(weight - nudge)) / 2e-5
        assert float(slope[at]) == pytest.approx(float(numeric), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("kind", [PRBCD, GRBCD])
def test_links_by_gradient_gain_more_than_random_ones(kind):
    assert judged(kind(20, epochs=8, block=2_000), "margin", "margin") > judged(
        EdgeRewiring(20, 0, greedy=False), "margin", "margin"
    )


def test_a_directed_graph_gets_directed_flips():
    graph = small()
    graph.edge_index = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]
    read, clean = answers(model_of("gat", graph), graph)
    now = PRBCD(5, epochs=3, block=200)(read, graph, GAINS["kl"](clean))
    assert 0 < now.perturbation.added.size(1) + now.perturbation.dropped.size(1) <= 5


@pytest.mark.parametrize("wrong", [{"flips": 0}, {"flips": 10, "block": 10}, {"epochs": 0}, {"seed": -1}])
def test_settings_of_links_that_cannot_be_are_refused(wrong):
    with pytest.raises(SettingError):
        PRBCD(**wrong)


@pytest.mark.parametrize("wrong", [GRBCD(2_000, epochs=1, block=3_000), PRBCD(700, epochs=1, block=701)])
def test_more_flips_than_pairs_are_refused(wrong):
    graph = small()
    read, clean = answers(model_of("gat", graph), graph)
    with pytest.raises(SettingError, match="fewer flips"):
        wrong(read, graph, GAINS["kl"](clean))


@pytest.mark.parametrize(
    "make",
    [
        lambda: NodeInjection(links="zzz"),
        lambda: NodeInjection(features="zzz"),
        lambda: ChosenInjection(edges=()),
        lambda: ChosenInjection(links=("zzz",)),
        lambda: ChosenInjection(schedules=((0, 0.1),)),
        lambda: ChosenInjection(surrogates=("zzz",)),
        lambda: ChosenInjection(schedules=((1,),)),  # pyright: ignore[reportArgumentType]
        lambda: ChosenInjection(keep=0),
        lambda: WorstOf(members=(3,)),  # pyright: ignore[reportArgumentType]
        lambda: WorstOf(surrogates=("class:*",)),
        lambda: SingleTarget(nodes=0),
        lambda: SingleTarget(target=-1),
        lambda: SingleTarget(features="zzz"),
    ],
)
def test_settings_are_checked_when_they_are_given(make):
    with pytest.raises(SettingError):
        make()


# Single targets


@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("model", [name for name in ATTENDING if not name.endswith(("-links", "-graphs"))])
def test_a_sweep_finds_what_an_attack_on_each_target_finds(model, sparse, steps):
    graph = small(sparse)
    read, clean = answers(model_of(model, graph), graph)
    attack = SingleTarget(nodes=2, steps=steps, among=True)
    found = attack.sweep(read, graph, range(0, 40, 5))
    for target, margin, x in zip(found.targets.tolist(), found.margin, found.x, strict=True):
        own = int(clean.logits[target].argmax())
        place = replace(attack, target=target)._place(
            graph, torch.tensor([target]), FEATURES["box"](graph, (-1.0, 1.0))
        )
        logits = place.change(x).read(read, graph).logits[target].detach()
        other = torch.cat([logits[:own], logits[own + 1 :]]).max()
        assert float(margin) == pytest.approx(float(other - logits[own]), abs=1e-4)
    assert torch.equal(found.flipped, found.margin > 0)


def test_a_sweep_refuses_a_model_that_sees_the_degrees_of_the_farthest_nodes():
    graph = small()
    with pytest.raises(SettingError, match="farther away than it has layers"):
        SingleTarget(steps=1).sweep(answers(model_of("soft-median", graph), graph)[0], graph, range(40))


def test_more_injected_neighbours_flip_more():
    graph, read, _ = world()
    shares = [float(SingleTarget(nodes=n).sweep(read, graph, range(0, 150, 10)).flipped.float().mean()) for n in (1, 5)]
    assert 0 < shares[0] <= shares[1]


def test_a_sweep_is_at_least_as_strong_as_each_of_its_ascents(monkeypatch):
    """The parts: both ascents with the large steps, or both with the small ones."""
    graph, read, _ = world()
    attack, targets = SingleTarget(steps=4), range(0, 150, 10)
    both = attack.sweep(read, graph, targets).margin
    small_alone = replace(attack, step=single.FINE * attack.step)
    monkeypatch.setattr(single, "FINE", 1.0)
    large, little = (one.sweep(read, graph, targets).margin for one in (attack, small_alone))
    assert torch.allclose(both, torch.maximum(large, little)) and (large > little).any()


def test_small_steps_find_what_large_ones_jump_over(monkeypatch):
    """A neighbour that counts only where its value is near 0.27: steps of 0.2 miss it."""
    graph = Data(x=torch.zeros(2, 1), edge_index=torch.tensor([[1, 0], [0, 1]]))

    class Narrow(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = GATConv(1, 1)

        def forward(self, x, edge_index):
            hat = (1 - (x - 0.27).abs() / 0.05).clamp(min=0) + 1e-3 * x
            weighed = self.layer(hat, edge_index)
            return torch.cat([weighed, torch.full_like(weighed, 0.2)], 1)

    model = Narrow().eval().requires_grad_(False)
    model.layer.lin.weight.fill_(1), model.layer.att_src.fill_(5), model.layer.att_dst.zero_()
    attack = SingleTarget(target=0, steps=12)
    with open_reader(model) as read:
        assert attack.sweep(read, graph, [0]).flipped.all()
        monkeypatch.setattr(single, "FINE", 1.0)
        assert not attack.sweep(read, graph, [0]).flipped.any()


def test_targets_that_do_not_fit_at_once_are_read_in_turn():
    graph = small()
    whole = list(unions(graph, torch.arange(10), 2))
    each = list(unions(graph, torch.arange(10), 2, max_edges=1))
    assert len(whole) == 1 and len(each) == 10
    assert torch.cat([union.targets for union in each]).tolist() == whole[0].targets.tolist() == list(range(10))


# Encodings


def test_encodings_follow_the_attacked_graph_and_are_made_once_per_set_of_links():
    graph, made, prepare = small(), [], BACKBONES["gt"].prepare
    model = model_of("gt", graph)
    read = Reader(model, RecomputedEncodings(lambda data: made.append(data.num_nodes) or prepare(data)))
    with torch.no_grad():
        clean = read(graph)
    assert torch.equal(clean.logits, answers(model, graph)[1].logits)
    now = NodeInjection(2, 3, steps=4)(read, graph, GAINS["kl"](clean)).detach()
    assert made.count(42) <= 2 and now.graph.num_nodes == 42  # while climbing, and for the result
    expected = answers(model, prepare(now.graph))[1].logits
    stale = answers(model, now.graph)[1].logits
    assert torch.allclose(now.logits, expected, atol=1e-6) and not torch.allclose(now.logits, stale, atol=1e-3)
