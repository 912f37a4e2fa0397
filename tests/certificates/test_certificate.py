import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog
from torch_geometric.nn import GAT, GATConv

from fgai import backbones, datasets
from fgai.attention import Attention
from fgai.certificates import (
    certified_radius,
    certify,
    eviction_costs,
    guaranteed_overlap,
    interval_bounds,
    prediction_bound,
    worst_push,
)
from fgai.errors import DataError, SettingError
from fgai.reading import Reader
from loose import loose

NORMS = {"l1": lambda v: np.abs(v).sum(), "l2": lambda v: np.sqrt((v**2).sum()), "linf": lambda v: np.abs(v).max()}


def star(weights):
    """One node that looks at as many others as there are weights."""
    ends = torch.stack([torch.arange(len(weights)), torch.zeros(len(weights), dtype=torch.long)])
    return Attention(torch.as_tensor(weights, dtype=torch.double)[:, None], ends, 1)


def best(weights, k):
    return set(sorted(range(len(weights)), key=lambda i: (-weights[i], i))[:k])


def swap_cost(weights, out, into, norm, simplex=False):
    """The least perturbation after which all of `into` are at least as large as all of `out`, by a solver."""
    size, pairs = len(weights), list(itertools.product(out, into))
    if norm == "l2":  # a convex function of the level at which they meet: the root of its slope
        high, low = np.array([weights[i] for i in out]), np.array([weights[j] for j in into])

        def slope(t):
            return np.maximum(t - low, 0).sum() - np.maximum(high - t, 0).sum()

        level = brentq(slope, low.min() - 1, high.max() + 1, xtol=1e-15)
        return np.sqrt((np.maximum(high - level, 0) ** 2).sum() + (np.maximum(level - low, 0) ** 2).sum())
    extra = size if norm == "l1" else 1  # bounds on |rho|, one each or one for all
    rows, limits = [], []
    for i, j in pairs:  # w_i + rho_i <= w_j + rho_j
        row = np.zeros(size + extra)
        row[i], row[j] = 1, -1
        rows.append(row)
        limits.append(weights[j] - weights[i])
    for i, sign in itertools.product(range(size), (1, -1)):
        row = np.zeros(size + extra)
        row[i], row[size + (i if norm == "l1" else 0)] = sign, -1
        rows.append(row)
        limits.append(0)
    goal = np.r_[np.zeros(size), np.ones(extra)]
    kept = {"A_eq": np.r_[np.ones(size), np.zeros(extra)][None], "b_eq": [0]} if simplex else {}  # the sum stays
    bounds = [(-weights[i] if simplex else None, None) for i in range(size)] + [(None, None)] * extra
    return linprog(goal, np.array(rows), limits, bounds=bounds, method="highs", **kept).fun


weights_of_a_node = st.one_of(
    st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.5]), min_size=1, max_size=5),  # ties
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=5),
)


@settings(max_examples=170)  # three norms each: over 500 cases
@given(weights_of_a_node, st.integers(1, 6))
def test_the_closed_form_is_the_cheapest_swap_of_all(weights, k):
    inside = best(weights, min(k, len(weights)))
    outside = set(range(len(weights))) - inside
    for norm in NORMS:
        costs = eviction_costs(star(weights), k, loose(norm))
        assert costs.members.tolist() == list(range(1, min(len(inside), len(outside)) + 1))
        for m, cost in zip(costs.members.tolist(), costs.cost.tolist(), strict=True):
            swaps = itertools.product(itertools.combinations(inside, m), itertools.combinations(outside, m))
            cheapest = min(swap_cost(weights, out, into, norm) for out, into in swaps)
            assert cost == pytest.approx(cheapest, abs=1e-9)


def cheapest_on_the_simplex(weights, k, members, norm):
    inside = best(weights, k)
    swaps = itertools.product(
        itertools.combinations(inside, members), itertools.combinations({*range(len(weights))} - inside, members)
    )
    return min(swap_cost(weights, out, into, norm, simplex=True) for out, into in swaps)


@settings(max_examples=30)
@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=5), st.integers(1, 3))
def test_on_the_simplex_the_cost_of_one_member_is_exact_and_that_of_more_a_bound(weights, k):
    weights = [weight / sum(weights) for weight in weights]
    for norm in ("l1", "linf"):
        costs = eviction_costs(star(weights), k, loose(norm))
        for m, cost in zip(costs.members.tolist(), costs.cost.tolist(), strict=True):
            true = cheapest_on_the_simplex(weights, min(k, len(weights)), m, norm)
            assert true >= cost - 1e-9
            assert m > 1 or true == pytest.approx(cost, abs=1e-9)


def test_on_the_simplex_two_members_can_cost_more():
    weights = [0.9, 0.05, 0.04, 0.01]  # the case of docs/certificates.md
    assert eviction_costs(star(weights), 2).cost[-1] == pytest.approx(0.90)
    assert cheapest_on_the_simplex(weights, 2, 2, "l1") == pytest.approx(1.1667, abs=1e-4)


graphs = st.builds(
    lambda sizes, seed: (sizes, seed), st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(0, 10_000)
)


def graph_of(sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    target = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    weight = torch.rand(len(target), 1, generator=generator, dtype=torch.double)
    if seed % 3 == 0:
        weight = (4 * weight).round() / 4  # ties
    ends = torch.stack([torch.arange(len(target)), target])
    order = torch.randperm(len(target), generator=generator)
    return Attention(weight[order], ends[:, order], len(sizes))


def kept(attention, push, k, node):
    at = (attention.target == node).nonzero().flatten()
    at = at[attention.source[at].argsort()]  # V_k breaks ties by source, whatever the order of the edges
    before, after = attention.weight[at, 0].numpy(), (attention.weight[at, 0] + push[at]).numpy()
    size = min(k, len(at))
    return len(best(before, size) & best(after, size)) / size


@settings(max_examples=700)  # of graphs, with five perturbations at each of about three nodes: 10,000
@given(graphs, st.integers(1, 4), st.sampled_from(sorted(NORMS)), st.floats(0.01, 1.0))
def test_no_perturbation_beats_the_certificate_and_one_reaches_it(graph, k, norm, radius):
    attention = graph_of(*graph)
    promised = guaranteed_overlap(attention, k, radius, norm)
    tight = worst_push(attention, k, radius, norm)
    ties = eviction_costs(attention, k, norm)
    generator = torch.Generator().manual_seed(graph[1])
    for node in range(attention.num_targets):
        at = attention.target == node
        if not at.any():
            assert promised[node].isnan()
            continue
        for _ in range(5):
            push = torch.randn(len(at), generator=generator, dtype=torch.double) * at
            push *= radius / NORMS[norm](push[at].numpy())
            assert kept(attention, push, k, node) >= float(promised[node]) - 1e-12
        assert NORMS[norm](tight[at].numpy()) <= radius * (1 + 1e-12)
        if not ((ties.cost - radius).abs() < 1e-9).any():
            assert kept(attention, tight, k, node) == pytest.approx(float(promised[node]))


@pytest.mark.parametrize("norm", sorted(NORMS))
def test_the_radius_is_where_the_overlap_is_lost(norm):
    attention = graph_of([5, 6, 3], 1)
    for overlap in (1.0, 0.5, 0.0):
        radius = certified_radius(attention, 2, overlap, norm)
        for node in range(3):
            if radius[node].isfinite():
                inside, beyond = (
                    guaranteed_overlap(attention, 2, float(radius[node]) * f, norm)[node] for f in (0.999, 1.001)
                )
                assert inside >= overlap > beyond


def test_nothing_can_be_evicted_where_all_neighbours_are_in_the_top():
    assert certified_radius(star([0.5, 0.5]), 3).tolist() == [float("inf")]
    assert guaranteed_overlap(star([1.0]), 1, 5.0).tolist() == [1.0]


def test_a_tie_certifies_nothing_but_the_unperturbed():
    assert certified_radius(star([0.5, 0.5]), 1).tolist() == [0.0]
    assert guaranteed_overlap(star([0.5, 0.5]), 1, 0.0).tolist() == [1.0]
    assert guaranteed_overlap(star([0.5, 0.5]), 1, 1e-12).tolist() == [0.0]


@pytest.mark.parametrize("norm", sorted(NORMS))
def test_the_margin_has_a_gradient_for_training(norm):
    attention = graph_of([4, 5], 1)

    def margin(weight):
        return eviction_costs(Attention(weight, attention.edge_index, 2), 2, norm).cost

    assert torch.autograd.gradcheck(margin, attention.weight.clone().requires_grad_())


@pytest.mark.parametrize("norm", sorted(NORMS))
@pytest.mark.parametrize("heads", [1, 3])
def test_no_delta_moves_the_prediction_further_than_its_bound(norm, heads):
    data = datasets.synthetic(nodes=60, edges=300, features=6, seed=3)
    data.x = data.x.double()
    conv = GATConv(6, 4, heads=heads, concat=False).double().eval()
    read = Reader(conv)
    far, clean = prediction_bound(read, data, norm), read(data).detach()
    place, generator = clean.explanation, torch.Generator().manual_seed(0)
    for radius in (0.1, 1.0):
        bound = far.tvd(radius)
        for _ in range(30):
            push = torch.randn(place.weight.shape, generator=generator, dtype=torch.double)
            for node, head in itertools.product(range(60), range(heads)):
                at = place.target == node
                push[at, head] *= radius / NORMS[norm](push[at, head].numpy())
            now = read(data, weight_delta={"": push}).detach()
            assert bool((0.5 * (now.probs - clean.probs).abs().sum(1) <= bound + 1e-12).all())
            same = now.logits.argmax(1) == clean.logits.argmax(1)
            assert bool(same[far.class_radius > radius].all())


def test_the_class_radius_is_reached_by_the_steepest_push():
    data = datasets.synthetic(nodes=60, edges=300, features=6, seed=3)
    data.x = data.x.double()
    conv = GATConv(6, 4).double().eval()
    read = Reader(conv)
    clean, far = read(data).detach(), prediction_bound(read, data, "l1")
    place, value = clean.explanation, loose(conv).lin(data.x).detach()
    node = int(far.class_radius.argmin())
    at = (place.target == node).nonzero().flatten()
    own = int(clean.logits[node].argmax())
    lean = value[place.source[at]] - value[place.source[at], own][:, None]  # [d, C]
    rate = (clean.logits[node, own] - clean.logits[node]) / lean.abs().max(0).values
    rate[own] = torch.inf
    rival = int(rate.argmin())
    edge = int(lean[:, rival].abs().argmax())
    push = torch.zeros_like(place.weight)
    push[at[edge]] = float(far.class_radius[node]) * 1.001 * lean[edge, rival].sign()
    assert int(read(data, weight_delta={"": push}).logits[node].argmax()) == rival


def test_a_model_that_is_not_linear_in_its_attention_has_no_bound():
    data = datasets.load("synthetic")

    class Squashed(GATConv):
        def forward(self, x, edge_index):  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().forward(x, edge_index).tanh()

    model = Squashed(data.num_features, 4)
    assert prediction_bound(Reader(model.eval()), data) is None
    certificate = certify(model, data, k=3, steps=1)
    assert certificate.alpha2.how == "none" and "none" in certificate.text()


@pytest.mark.parametrize("name", ["gat", "gatv2", "gt"])
def test_the_papers_backbones_have_a_bound_that_no_attack_exceeds(name, tmp_path):
    data = backbones.GT.prepare(datasets.load("synthetic"))
    model, vanilla = backbones.build(name, data, seed=1), backbones.build(name, data, seed=2)
    certificate = certify(model, data, vanilla, k=3, radius=0.2)
    assert [condition.how for condition in certificate.conditions] == ["exact", "exact", "exact", "bound", "found"]
    assert bool((certificate.attack.values <= certificate.alpha2.values + 1e-6).all())
    shares = [share for _, share in certificate.curve()]
    assert shares == sorted(shares, reverse=True) and shares[0] == 1.0
    assert certificate.weakest(3)[0][1] <= certificate.weakest(3)[2][1]
    assert "not input space" in str(certificate)
    certificate.save(tmp_path / "c.json")
    certificate.save(tmp_path / "c.txt")
    with pytest.raises(DataError, match=r"\.json or \.txt"):
        certificate.save(tmp_path / "c.pdf")


def test_wrong_settings_are_refused():
    with pytest.raises(SettingError, match="l1, l2 or linf"):
        eviction_costs(star([1.0]), 1, loose("l3"))
    with pytest.raises(SettingError, match="a share"):
        certified_radius(star([1.0]), 1, 1.5)


def test_a_single_logit_is_a_binary_answer_that_can_be_lost():
    data = datasets.synthetic(nodes=60, edges=300)
    model = GATConv(32, 1).eval()
    found = certify(model, data, k=2, radius=0.5)
    assert found.class_radius.isfinite().any() and found.alpha2.worst > 0
    assert (found.attack.values <= found.alpha2.values + 1e-6).all()
    chain = GAT(32, 4, num_layers=2, out_channels=1).eval()
    bound = interval_bounds(Reader(chain), data, 10.0)["convs.0"]
    assert not bound.class_kept.all() and float(bound.tvd.max()) > 0
