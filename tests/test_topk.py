import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fgai.errors import SettingError
from fgai.topk import effective_k, overlap, rank_within, topk_loss, topk_mask
from strategies import KS, vector_pairs


def columns(*tensors):
    """Head by head, as lists of Python floats."""
    return zip(*(table(tensor).t().tolist() for tensor in tensors), strict=True)


def table(tensor):
    """[E] or [E, H] -> [E, H]"""
    return tensor[:, None] if tensor.dim() == 1 else tensor


def allowed(k, size):
    return min(k, size) if isinstance(k, int) else math.ceil(Fraction(k).limit_denominator(100) * size)


def members(index, node):
    return [row for row, owner in enumerate(index.tolist()) if owner == node]


def sorted_rows(column, rows):
    """By falling weight; Python's sort is stable, so ties go to the earlier entry."""
    return sorted(rows, key=lambda row: -column[row])


def best(column, rows, k):
    return set(sorted_rows(column, rows)[: allowed(k, len(rows))])


def by_vector(of_vector, index, num, *tensors):
    """`of_vector(rows, *columns)` for every vector and head; [num, H]"""
    heads = list(columns(*tensors))
    return np.array([[of_vector(members(index, node), *head) for head in heads] for node in range(num)])


def same(value, expected, weight):
    assert value.dtype == weight.dtype
    assert value.shape == (len(expected), *weight.shape[1:])
    np.testing.assert_allclose(table(value).numpy(), expected, rtol=1e-6, atol=0)


@given(vector_pairs())
def test_ranks_are_places_in_a_stable_sort_of_each_vector(case):
    weight, _, index, num = case
    value = rank_within(weight, index, num)
    assert value.shape == weight.shape
    for places, column in columns(value, weight):
        for node in range(num):
            in_order = sorted_rows(column, members(index, node))
            assert [places[row] for row in in_order] == list(range(len(in_order)))


@given(st.one_of(vector_pairs(), vector_pairs(whole_graph=True)), KS)
def test_the_top_is_that_of_a_sort_with_ties_to_the_earlier_entry(case, k):
    weight, _, index, num = case
    mask = topk_mask(weight, index, num, k)
    assert (mask.dtype, mask.shape) == (torch.bool, weight.shape)
    for chosen, column in columns(mask, weight):
        expected = set().union(*(best(column, members(index, node), k) for node in range(num)))
        assert {row for row, there in enumerate(chosen) if there} == expected


@given(st.one_of(vector_pairs(), vector_pairs(whole_graph=True)), KS)
def test_the_overlap_is_the_share_of_common_members_and_nan_for_empty_vectors(case, k):
    weight, other, index, num = case

    def share(rows, w, v):
        return len(best(w, rows, k) & best(v, rows, k)) / allowed(k, len(rows)) if rows else math.nan

    same(overlap(weight, other, index, num, k), by_vector(share, index, num, weight, other), weight)


@given(st.one_of(vector_pairs(), vector_pairs(whole_graph=True)).filter(lambda case: case[2].numel()), KS)
def test_the_surrogate_is_the_dense_loop_over_both_tops(case, k):
    weight, other, index, num = case

    def loss(rows, w, v):
        twice = 2 * (k if isinstance(k, int) else max(allowed(k, len(rows)), 1))
        return sum(abs(w[row] - v[row]) for chosen in (w, v) for row in best(chosen, rows, k)) / twice

    same(topk_loss(weight, other, index, num, k), by_vector(loss, index, num, weight, other), weight)


@pytest.mark.parametrize("k", [2, 0.5])
@pytest.mark.parametrize("shape", [(1,), (3,), (3, 2)])
def test_the_surrogate_is_zero_without_edges(k, shape):
    nothing, index = torch.empty(0, *shape[1:]), torch.empty(0, dtype=torch.long)
    assert torch.equal(topk_loss(nothing, nothing, index, shape[0], k), torch.zeros(shape))


@given(vector_pairs().filter(lambda case: case[2].numel()), KS)
def test_gradients_of_the_surrogate_agree_with_finite_differences_away_from_ties(case, k):
    _, _, index, num = case
    entries = torch.arange(4.0 * index.numel(), dtype=torch.double)
    weight, other = (entries * 0.37 % 1).view(2, -1, 2)  # all apart
    assert torch.autograd.gradcheck(
        lambda w, v: topk_loss(w, v, index, num, k), (weight.requires_grad_(), other.requires_grad_())
    )


def test_the_surrogate_of_a_node_with_fewer_than_k_neighbours_is_still_divided_by_2k():
    weight, other = torch.tensor([0.75, 0.25]), torch.tensor([0.25, 0.75])
    assert topk_loss(weight, other, torch.tensor([0, 0]), 1, k=4).tolist() == [(1.0 + 1.0) / 8]


def test_each_head_has_its_own_top():
    weight = torch.tensor([[0.5, 0.1], [0.3, 0.2], [0.2, 0.7]])
    assert topk_mask(weight, torch.zeros(3).long(), 1, k=1).int().tolist() == [[1, 0], [0, 0], [0, 1]]


@given(KS, st.lists(st.integers(0, 40)))
def test_the_quota_is_k_or_all_there_is_and_a_fraction_rounds_up(k, sizes):
    assert effective_k(k, torch.tensor(sizes, dtype=torch.long)).tolist() == [allowed(k, size) for size in sizes]


def test_a_fraction_that_is_a_whole_number_of_entries_is_not_rounded_up():
    assert 0.07 * 100 > 7
    assert effective_k(0.07, torch.tensor([100, 101])).tolist() == [7, 8]


@pytest.mark.parametrize("k", [0, -1, 0.0, -0.5, 1.5, math.nan, "3", None])
def test_a_k_without_meaning_is_refused_with_the_ones_there_are(k):
    one = torch.ones(1)
    for act in (overlap, topk_loss):
        with pytest.raises(SettingError, match="whole number of neighbours"):
            act(one, one, torch.tensor([0]), 1, k)


@given(st.lists(st.sampled_from([-2.5, -1.0, -0.0, 0.0, 1e-40, 0.3, 0.30000001, 7.0]), min_size=1, max_size=12))
def test_single_and_double_precision_rank_alike(values):
    index = torch.arange(len(values)) % 3
    single = torch.tensor(values, dtype=torch.float)
    assert torch.equal(rank_within(single, index, 3), rank_within(single.double(), index, 3))
    heads = torch.stack([single, -single], dim=1)
    assert torch.equal(rank_within(heads, index, 3), rank_within(heads.double(), index, 3))


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_the_top_k_of_long_vectors_is_that_of_their_ranks(dtype):
    """Vectors of very different sizes, with ties, zeros of both signs and infinite entries."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([0, 1, 4, 5, 6, 300, 7, 2_000, 0, 40])
    index = torch.arange(len(sizes)).repeat_interleave(sizes)
    weight = torch.randn(len(index), generator=generator, dtype=dtype)
    for value in (weight, (weight * 3).round(), weight.clamp(min=0) * -1, torch.where(weight > 1, -torch.inf, weight)):
        for k in (1, 5, 64):
            expected = rank_within(value, index, len(sizes)) < effective_k(k, sizes)[index]
            assert torch.equal(topk_mask(value, index, len(sizes), k), expected)
