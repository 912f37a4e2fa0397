from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from scipy.optimize import brentq, minimize
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from fgai.adversaries import (
    GAINS,
    PRBCD,
    AttackEnsemble,
    AttentionBall,
    EdgeRewiring,
    FeatureBall,
    NodeInjection,
    Perturbation,
)
from fgai.adversaries.balls import PROJECTIONS
from fgai.adversaries.perturbation import pairs_of, undirected
from fgai.adversaries.rewiring import _link_effects
from fgai.errors import DataError, SettingError
from fgai.graph import segment_sum
from fgai.reading import Reader, Reading
from fgai.seeding import seeded
from loose import loose
from strategies import edge_index, edge_lists
from worlds import answers, change, community, links, model_of, small, trained

NORMS = {"l1": 1, "l2": 2, "linf": np.inf}


@cache
def learnt() -> tuple[Reader, Any, Reading]:
    """A reader of a trained model, its graph and its clean reading."""
    read, clean = answers(trained(), community())
    return read, community(), clean.detach()


def gained(adversary, gain="kl", judge=None):
    read, graph, clean = learnt()
    return float(GAINS[judge or gain](clean)(adversary(read, graph, GAINS[gain](clean)).detach()))


def by_bisection(point, norm, radius):
    """The nearest point of the ball, from the optimality conditions: shrink by t, scale, or clamp."""
    if np.linalg.norm(point, NORMS[norm]) <= radius:
        return point
    if norm == "l1":
        over = brentq(lambda t: np.maximum(np.abs(point) - t, 0).sum() - radius, 0, np.abs(point).max(), xtol=1e-14)
        return np.sign(point) * np.maximum(np.abs(point) - over, 0)
    return np.clip(point, -radius, radius) if norm == "linf" else point * radius / np.linalg.norm(point)


def by_slsqp(point, norm, radius):
    """The nearest point of the ball, by a general solver; of l1 with the two signs as separate variables."""
    if norm == "l1":
        size = len(point)
        found = minimize(
            lambda z: ((z[:size] - z[size:] - point) ** 2).sum(),
            np.zeros(2 * size),
            method="SLSQP",
            bounds=[(0, None)] * 2 * size,
            constraints={"type": "ineq", "fun": lambda z: radius - z.sum()},
            options={"ftol": 1e-12, "maxiter": 300},
        ).x
        return found[:size] - found[size:]
    limits = [(-radius, radius)] * len(point) if norm == "linf" else None
    inside = () if norm == "linf" else {"type": "ineq", "fun": lambda z: radius**2 - (z**2).sum()}
    options = {"ftol": 1e-12, "maxiter": 300}
    start = np.zeros(len(point)) + radius / 100
    return minimize(lambda z: ((z - point) ** 2).sum(), start, bounds=limits, constraints=inside, options=options).x


@st.composite
def scattered(draw, low=0.05):
    """Entries of several nodes and heads in any order, the last node without any, and a radius."""
    index = torch.tensor(draw(st.lists(st.integers(0, 3), max_size=12)), dtype=torch.long)
    heads = draw(st.integers(1, 3))
    with seeded(draw(st.integers(0, 999))):
        delta = torch.randn(len(index), heads, dtype=torch.double)
    if draw(st.booleans()):
        delta = (delta * 4).round() / 4  # ties and zeros
    return delta, index, draw(st.floats(low, 3))


def assert_projected(case, norm, solve, tolerance):
    delta, index, radius = case
    found = PROJECTIONS[norm](delta, index, 5, radius)
    assert found.shape == delta.shape
    for node, head in np.ndindex(5, delta.size(1)):
        point = delta[index == node, head].numpy()
        if len(point):
            np.testing.assert_allclose(found[index == node, head], solve(point, norm, radius), atol=tolerance)


@pytest.mark.parametrize("norm", PROJECTIONS)
@given(case=scattered())
def test_projections_are_the_nearest_points_by_bisection(case, norm):
    assert_projected(case, norm, by_bisection, 1e-10)


@pytest.mark.parametrize("norm", PROJECTIONS)
@given(case=scattered())
@settings(max_examples=8)
def test_projections_are_the_nearest_points_by_a_general_solver(case, norm):
    assert_projected(case, norm, by_slsqp, 1e-4)


@pytest.mark.parametrize("norm", PROJECTIONS)
@given(case=scattered())
def test_a_projected_point_stays_where_it_is(case, norm):
    delta, index, radius = case
    once = PROJECTIONS[norm](delta, index, 5, radius)
    torch.testing.assert_close(PROJECTIONS[norm](once, index, 5, radius), once, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_a_ball_of_radius_zero_is_a_point(norm):
    delta, index = torch.tensor([[1.0], [2.0], [30.0], [40.0]]), torch.tensor([0, 0, 1, 1])
    assert not PROJECTIONS[norm](delta, index, 2, 0.0).any()


def test_the_l1_ball_holds_on_many_entries_in_single_precision():
    nodes, size, radius = 40_000, 10, 0.1
    index = torch.arange(nodes * size) // size
    delta = torch.rand(nodes * size, 1, generator=torch.Generator().manual_seed(0))
    total = segment_sum(PROJECTIONS["l1"](delta, index, nodes, radius).double(), index, nodes)
    assert float(total.max()) <= radius * 1.001 and float(total.min()) >= radius * 0.999


def test_the_first_links_of_an_injected_node_do_not_depend_on_how_many_there_are():
    read, graph, clean = learnt()

    def ends(edges):
        return links(NodeInjection(3, edges, steps=0, seed=4)(read, graph, GAINS["kl"](clean)).perturbation.added)

    def of_node(found, node):
        return [target for source, target in found if source == graph.num_nodes + node]

    few, many = ends(2), ends(70)
    for node in range(3):
        assert of_node(few, node) == of_node(many, node)[:2]
        assert len(set(of_node(many, node))) == 70


@pytest.mark.parametrize("attack", [NodeInjection, FeatureBall])
@pytest.mark.parametrize("target", [150, 999, -1])
def test_targets_that_do_not_exist_are_refused(attack, target):
    budget: dict[str, Any] = {"edges": 2, "nodes": 1} if attack is NodeInjection else {}
    with pytest.raises(SettingError):
        gained(attack(targets=(3, target), steps=1, **budget))


def random_features(adversary, gain="kl") -> Any:
    read, graph, clean = learnt()
    return adversary(read, graph, GAINS[gain](clean)).perturbation.x


def test_no_steps_leave_features_random_inside_the_box():
    one, two = (random_features(NodeInjection(5, 4, steps=0, seed=seed)) for seed in (0, 1))
    again = random_features(NodeInjection(5, 4, steps=0), "attention-divergence")
    assert torch.equal(one, again) and not torch.equal(one, two)
    assert 0.05 < float(one.std()) < 0.2 and bool((one.abs() <= 1).all())


@pytest.mark.parametrize("budget", [{"edges": 151}, {"edges": 0}, {"nodes": 0}, {"edges": 3, "targets": (1, 1, 2)}])
def test_an_injection_that_cannot_be_is_refused(budget):
    with pytest.raises(SettingError, match=r"no more links than there are targets|whole number of at least 1"):
        gained(NodeInjection(**budget))


@pytest.mark.parametrize("gain", ["cross-entropy", "kl", "margin", "attention-divergence"])
def test_climbing_gains_more_than_random_features(gain):
    climbed, random = (gained(NodeInjection(5, 10, steps, 0.3), gain) for steps in (6, 0))
    assert climbed > random + 1e-4


@pytest.mark.parametrize("gain", ["cross-entropy", "kl"])
def test_greedy_rewiring_gains_more_than_random_links(gain):
    greedy = gained(EdgeRewiring(15, 15, rounds=3, pool=500), gain)
    assert greedy > 1.2 * max(gained(EdgeRewiring(15, 15, greedy=False, seed=seed), gain) for seed in range(4))


def rewired(attack, graph=None):
    read, data, clean = learnt()
    return attack(read, graph or data, GAINS["kl"](clean if graph is None else read(graph).detach()))


@pytest.mark.parametrize("greedy", [True, False])
def test_rewiring_spends_its_budget_on_different_links_both_ways(greedy):
    now = rewired(EdgeRewiring(10, 10, greedy, rounds=3, pool=2_000))
    for chosen in (links(now.perturbation.added), links(now.perturbation.dropped)):
        assert len(chosen) == len(set(chosen)) == 20
    there = set(links(community().edge_index))
    assert set(links(now.perturbation.dropped)) <= there
    assert len(links(now.graph.edge_index)) == len(set(links(now.graph.edge_index)))


def test_rewiring_adds_no_link_that_was_there():
    graph = small()
    read, clean = answers(model_of("gat", graph), graph)
    now = EdgeRewiring(20, 20, rounds=5, pool=1_000)(read, graph, GAINS["kl"](clean))
    assert not set(links(now.perturbation.added)) & set(links(graph.edge_index))


def test_rewiring_works_on_a_directed_graph():
    one_way = Data(x=community().x, edge_index=pairs_of(community().edge_index))
    assert rewired(EdgeRewiring(3, 3, rounds=1, pool=100), one_way).logits.isfinite().all()


class Embedded(nn.Module):
    """A layer on embedded ids, which are `x` or, without it, the numbers of the nodes."""

    def __init__(self, nodes):
        super().__init__()
        self.embed, self.conv = nn.Embedding(nodes, 8), GATConv(8, 3)

    def forward(self, edge_index, x=None):
        return self.conv(self.embed.weight if x is None else self.embed(x), edge_index)


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("attack", [EdgeRewiring(5, 5, rounds=1, pool=100), PRBCD(5, epochs=2, block=100)])
def test_links_are_changed_of_a_graph_of_ids_or_without_features(attack, ids):
    edges = community().edge_index
    graph = Data(edge_index=edges, num_nodes=150, **({"x": torch.arange(150)} if ids else {}))
    with seeded(0):
        read = Reader(Embedded(150).eval())
    clean = read(graph).detach()
    now = attack(read, graph, GAINS["kl"](clean)).detach()
    assert float(GAINS["kl"](clean)(now)) > 0 and now.perturbation.apply(graph).num_nodes == 150


def test_dropping_more_links_than_there_are_is_refused():
    with pytest.raises(SettingError, match="450 links"):
        gained(EdgeRewiring(0, 451))


def test_the_worth_of_dropping_a_link_is_the_slope_of_the_gain_along_its_weights():
    graph = small()
    model = model_of("gat", graph).double()
    wide = Data(x=graph.x.double(), edge_index=graph.edge_index)
    read, clean = answers(model, wide)
    gain = GAINS["cross-entropy"](clean)
    old, none = pairs_of(graph.edge_index), torch.empty(2, 0, dtype=torch.long)
    worth = _link_effects(read, wide, gain, none, old)[1]
    for place in (0, 7, 31):
        ends = set(links(undirected(old[:, place : place + 1])))
        mine = {
            site: torch.tensor([edge in ends for edge in links(a.edge_index)])[:, None] * a.weight
            for site, a in clean.attention.items()
        }
        up, down = (read(wide, weight_delta={s: -eps * w for s, w in mine.items()}) for eps in (1e-5, -1e-5))
        assert float(worth[place]) == pytest.approx(float((gain(up) - gain(down)).detach()) / 2e-5, rel=1e-4, abs=1e-8)


def test_new_links_count_only_as_candidates_and_their_gradient_has_the_sign_of_their_effect():
    read, graph, clean = learnt()
    gain = GAINS["cross-entropy"](clean)
    new = pairs_of(torch.randint(150, (2, 300), generator=torch.Generator().manual_seed(0)))
    new = new[:, [edge not in set(links(graph.edge_index)) for edge in links(new)]]
    worth, dropping = _link_effects(read, graph, gain, new, pairs_of(graph.edge_index))
    alone = _link_effects(read, graph, gain, new[:, :0], pairs_of(graph.edge_index))[1]
    torch.testing.assert_close(dropping, alone, rtol=1e-4, atol=1e-6)
    order = worth.argsort()
    effect = [
        float((gain(Perturbation(added=undirected(new[:, chosen])).read(read, graph)) - gain(clean)).detach())
        for chosen in (order[-10:], order[:10])
    ]
    assert effect[0] > 0 and effect[0] > effect[1]


@pytest.mark.parametrize("norm", ["l2", "linf", "l1"])
def test_the_attention_ball_reaches_the_optimum_where_the_gain_is_linear(norm):
    with seeded(0):
        layer, graph = GATConv(4, 3, heads=2).double().eval(), small()
        graph = Data(x=torch.randn(40, 4, dtype=torch.double), edge_index=graph.edge_index)
        aim = torch.randn(40, 6, dtype=torch.double)
    read, clean = answers(layer, graph)
    place, radius = clean.explanation, 0.2
    value = loose(layer).lin(graph.x).view(40, 2, 3)
    slope = (value[place.source] * aim.view(40, 2, 3)[place.target]).sum(-1).detach()  # d gain / d weight, [E, H]
    dual = {"l1": np.inf, "l2": 2, "linf": 1}[norm]
    best = sum(radius * float(slope[place.target == node, head].norm(dual)) for node in range(40) for head in range(2))
    found = AttentionBall(radius, norm, steps=60, sites=("",))(read, graph, lambda now: (now.logits * aim).sum())
    reached = float(((found.logits - clean.logits) * aim).sum().detach())
    assert reached <= best * (1 + 1e-9)
    assert reached >= best * {"l1": 0.95, "l2": 0.9999, "linf": 0.99}[norm]


@pytest.mark.parametrize(
    ("ball", "settings"),
    [
        (AttentionBall, {"norm": "l3"}),
        (AttentionBall, {"radius": -1}),
        (AttentionBall, {"on": "sums"}),
        (FeatureBall, {"norm": "l0"}),
        (FeatureBall, {"radius": -0.1}),
    ],
)
def test_balls_that_do_not_exist_are_refused(ball, settings):
    with pytest.raises(SettingError, match=next(iter(settings))):
        ball(**settings)


def test_an_unknown_site_is_refused_with_the_names_there_are():
    with pytest.raises(SettingError, match=r"conv3.*conv1.*conv2"):
        gained(AttentionBall(sites=("conv3",)))


@pytest.mark.parametrize("norm", PROJECTIONS)
def test_the_feature_ball_is_as_strong_as_one_step_of_the_whole_radius(norm):
    read, graph, clean = learnt()
    for gain in (GAINS["kl"](clean), GAINS["cross-entropy"](clean)):
        delta = (1e-3 * torch.randn(graph.x.shape, generator=torch.Generator().manual_seed(1))).requires_grad_()
        (slope,) = torch.autograd.grad(gain(Perturbation(x_delta=delta).read(read, graph)), delta)
        steepest = torch.zeros_like(slope).scatter_(1, slope.abs().argmax(1, keepdim=True), 1.0) * slope.sign()
        one_step = {"l1": steepest, "l2": torch.nn.functional.normalize(slope, dim=1), "linf": slope.sign()}[norm]
        radius = 0.1 if norm == "linf" else 1.0
        reached = float(gain(FeatureBall(radius, norm)(read, graph, gain)).detach())
        assert reached >= float(gain(Perturbation(x_delta=radius * one_step).read(read, graph)).detach()) > 0


def test_of_sparse_features_only_stored_entries_move():
    graph = small(sparse=True)
    read, clean = answers(model_of("gat", graph), graph)
    now = FeatureBall(0.2, steps=3)(read, graph, GAINS["kl"](clean))
    before, after = graph.x.to_dense(), now.graph.x.to_dense()
    assert now.graph.x.is_sparse and now.perturbation.x_delta.shape == graph.x.coalesce().values().shape
    assert bool(((before != 0) >= (before != after)).all()) and float((after - before).abs().max()) > 0.1


STRONGEST = AttackEnsemble(3, (3, 6), ("kl", "margin"), ((3, 0.3), (1, 1.0)), restarts=1)


@pytest.mark.parametrize("judge", ["flips", "kl", "attention-divergence"])
def test_the_strongest_is_no_weaker_than_any_member(judge):
    members = list(STRONGEST.members())
    assert len(members) == len(set(members)) == 4
    each = [gained(member, climb, judge) for member in members for climb in {*STRONGEST.surrogates, judge} - {"flips"}]
    assert gained(STRONGEST, judge) == pytest.approx(max(each), rel=1e-6)


@pytest.mark.parametrize(
    "more",
    [
        {"edges": (3, 6, 9)},
        {"surrogates": ("kl", "margin", "cross-entropy")},
        {"restarts": 2},
        {"schedules": ((3, 0.3), (1, 1.0), (5, 0.2))},
    ],
    ids=lambda more: next(iter(more)),
)
def test_more_members_never_make_it_weaker(more):
    wider = replace(STRONGEST, **more)
    members = list(wider.members())
    assert len(members) == len(set(members)) and set(STRONGEST.members()) <= set(members)
    assert gained(wider, "flips") >= gained(STRONGEST, "flips")


def test_its_members_share_their_places(monkeypatch):
    made, place = [], NodeInjection.place
    monkeypatch.setattr(NodeInjection, "place", lambda self, graph: made.append(self.edges) or place(self, graph))
    gained(replace(STRONGEST, restarts=2), "kl")
    assert made == [3, 6, 3, 6]


CHANGES = {
    "nothing": Perturbation(),
    "nodes": Perturbation(x=torch.randn(2, 3), added=edge_index([(5, 0), (0, 5)])),
    "edges": Perturbation(added=edge_index([(0, 3)]), dropped=edge_index([(1, 2), (2, 1)])),
    "moved": Perturbation(x_delta=torch.randn(5, 3)),
    "weights": Perturbation(
        weight_delta={"": torch.randn(4, 2), "convs.0": torch.randn(4, 1), "a/b": torch.ones(1, 1)}
    ),
    "scores": Perturbation(score_delta={"": torch.randn(4, 2), "conv1@1": torch.randn(4, 1)}),
    "views": Perturbation(x=torch.randn(3, 2).t(), x_delta=torch.randn(4, 6)[:, ::2].requires_grad_()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_perturbation_is_the_same_after_it_was_saved(name, tmp_path):
    CHANGES[name].save(tmp_path / "change.safetensors")
    assert change(Perturbation.load(tmp_path / "change.safetensors")) == change(CHANGES[name])
    assert [path.name for path in tmp_path.iterdir()] == ["change.safetensors"]


def test_a_saved_attack_of_a_model_without_site_names_is_made_again(tmp_path):
    graph = small()
    read, clean = answers(GATConv(6, 3).eval(), graph)
    now = AttentionBall(steps=2)(read, graph, GAINS["kl"](clean))
    now.perturbation.save(tmp_path / "a.safetensors")
    assert torch.equal(Perturbation.load(tmp_path / "a.safetensors").read(read, graph).logits, now.logits)


FOREIGN = {
    "other": lambda path: save_file({"x": torch.ones(1)}, path),
    "ours": lambda path: save_file({"x": torch.ones(1)}, path, {"fgai": "{}"}),
    "pickle": lambda path: torch.save({"x": torch.ones(1)}, path),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_refused(kind, tmp_path):
    FOREIGN[kind](str(tmp_path / "foreign.safetensors"))
    with pytest.raises(DataError, match=r"holds no perturbation|cannot be read"):
        Perturbation.load(tmp_path / "foreign.safetensors")


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    monkeypatch.setattr("pickle.load", lambda *_, **__: pytest.fail("a pickle was read"))
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("a pickle was read"))
    CHANGES["nodes"].save(tmp_path / "a.safetensors")
    Perturbation.load(tmp_path / "a.safetensors")


@given(edge_lists(5), edge_lists(5), edge_lists(5), st.booleans())
def test_the_perturbed_graph_holds_the_edges_left_and_the_new_ones(there, gone, new, grows):
    data = Data(x=torch.zeros(5, 1), edge_index=edge_index(there))
    made = Perturbation(torch.ones(1, 1) if grows else None, edge_index(new), edge_index(gone))
    left = [edge for edge in there if edge not in gone] + new
    assert links(made.apply(data).edge_index) == left


@given(edge_lists(6))
def test_pairs_are_the_links_without_direction(pairs):
    assert links(pairs_of(edge_index(pairs))) == sorted(
        {(min(e), max(e)) for e in pairs if e[0] != e[1]}, key=lambda e: e[::-1]
    )
