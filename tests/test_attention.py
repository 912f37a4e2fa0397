import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from fgai.attention import Attention, EdgeLookup, entropy, nonuniformity, uniform
from fgai.errors import MatchError
from strategies import ROUNDING, attentions, normalised_attentions, shuffles


def dense(attention):
    """The sum of the weights of each (target, source, head); [N, N, H]"""
    nodes = attention.num_targets
    total = np.zeros((nodes, nodes, attention.heads))
    np.add.at(total, (attention.target.numpy(), attention.source.numpy()), attention.weight.double().numpy())
    return total


def by_target(attention):
    weight = attention.weight.double()
    return [weight[attention.target == node].numpy() for node in range(attention.num_targets)]


def close(value, expected, dtype):
    assert value.dtype == dtype
    np.testing.assert_allclose(value.numpy(), expected, rtol=0, atol=ROUNDING[dtype])


@given(attentions())
def test_coalesced_edges_are_the_distinct_ones_by_target_then_source(attention):
    once = attention.coalesce()
    expected = sorted({(t, s) for s, t in attention.edge_index.t().tolist()})
    assert [(t, s) for s, t in once.edge_index.t().tolist()] == expected
    assert once.num_targets == attention.num_targets
    assert once.score is None


@given(attentions())
def test_parallel_edges_add_up(attention):
    once = attention.coalesce()
    assert once.weight.dtype == attention.weight.dtype
    assert np.array_equal(once.weight.numpy(), dense(attention)[once.target.numpy(), once.source.numpy()])


@given(attentions().flatmap(lambda a: st.tuples(st.just(a), shuffles(a))))
def test_coalescing_does_not_see_the_order_of_the_edges(both):
    one, two = (attention.coalesce() for attention in both)
    assert torch.equal(one.edge_index, two.edge_index)
    assert torch.equal(one.weight, two.weight)


@given(attentions().flatmap(lambda a: st.tuples(st.just(a), shuffles(a))))
def test_the_weights_on_edges_do_not_see_the_order_and_follow_the_asked_one(both):
    attention, other = both
    asked = other.edge_index
    expected = dense(attention)[asked[1].numpy(), asked[0].numpy()]
    for each in both:
        assert np.array_equal(each.weights_at(asked).numpy(), expected)


@given(attentions())
def test_the_weights_on_no_edges_are_none(attention):
    nothing = attention.weights_at(torch.empty(2, 0, dtype=torch.long))
    assert (nothing.shape, nothing.dtype) == ((0, attention.heads), attention.weight.dtype)


@given(attentions())
def test_an_edge_that_is_not_there_has_no_weight(attention):
    with pytest.raises(MatchError, match="not among"):
        attention.weights_at(torch.tensor([[0], [attention.num_targets - 1]]))


@given(attentions())
def test_the_mean_over_heads_is_one_head(attention):
    mean = attention.mean_heads()
    assert mean.heads == 1
    close(mean.weight, attention.weight.double().numpy().mean(1, keepdims=True), attention.weight.dtype)
    assert mean.score is None


@given(attentions())
def test_the_degree_counts_the_edges_of_a_target(attention):
    assert attention.degree.tolist() == [len(rows) for rows in by_target(attention)]


def test_detached_attention_has_no_history_and_the_same_values():
    weight = torch.rand(2, 1, requires_grad=True)
    edges = torch.tensor([[0, 1], [1, 0]])
    assert Attention(weight, edges, 2).detach().score is None
    free = Attention(weight.exp(), edges, 2, score=2 * weight).detach()
    for value, expected in ((free.weight, weight.exp()), (free.score, 2 * weight)):
        assert value is not None and torch.equal(value, expected)
        assert not value.requires_grad


def test_gradients_pass_through_coalescing():
    weight = torch.zeros(3, 1, requires_grad=True)
    once = Attention(weight, torch.tensor([[1, 0, 1], [0, 1, 0]]), 2).coalesce()
    (once.weight * torch.tensor([[2.0], [5.0]])).sum().backward()
    assert weight.grad.flatten().tolist() == [2.0, 5.0, 2.0]  # both 1 -> 0, then 0 -> 1


@given(normalised_attentions())
def test_uniform_attention_is_one_over_the_degree(attention):
    flat = uniform(attention)
    sizes = np.array([len(rows) for rows in by_target(attention)], dtype=float)
    expected = np.repeat(1 / sizes[attention.target.numpy()][:, None], attention.heads, axis=1)
    close(flat.weight, expected, attention.weight.dtype)


@given(normalised_attentions())
def test_nonuniformity_is_the_l1_distance_from_uniform(attention):
    expected = [np.abs(w - 1 / max(len(w), 1)).sum(0) for w in by_target(attention)]
    value = nonuniformity(attention)
    close(value, np.array(expected).reshape(value.shape), attention.weight.dtype)
    assert bool((value < 2).all())


@given(normalised_attentions())
def test_entropy_is_scipys_over_that_of_uniform_and_nan_below_two_neighbours(attention):
    expected = [
        scipy.stats.entropy(w, axis=0) / np.log(len(w)) if len(w) > 1 else [np.nan] * attention.heads
        for w in by_target(attention)
    ]
    value = entropy(attention)
    close(value, np.array(expected).reshape(value.shape), attention.weight.dtype)


def test_the_gradient_of_entropy_is_finite_beside_a_target_of_one_neighbour():
    weight = torch.tensor([[0.25], [0.75], [1.0]], requires_grad=True)
    value = entropy(Attention(weight, torch.tensor([[0, 1, 0], [0, 0, 1]]), 2))
    value[~value.isnan()].sum().backward()
    assert bool(weight.grad.isfinite().all())


def test_followed_edges_are_those_of_on_whatever_the_graph():
    draw = torch.Generator().manual_seed(0)
    asked = torch.randint(6, (2, 12), generator=draw)
    lookup = EdgeLookup(asked)
    for repeated in (False, True):
        for _ in range(3):
            ends = torch.randperm(36, generator=draw)[:20]
            edge_index = torch.stack([ends % 6, ends // 6])
            if repeated:
                edge_index[:, 1] = edge_index[:, 0]
            weight = torch.rand(20, 2, generator=draw)
            attention = Attention(weight, edge_index, 6)
            for now in (attention, attention.mean_heads()):  # the second time the places are known
                assert torch.equal(lookup(now), now.weights_at(asked, default=0.0))
