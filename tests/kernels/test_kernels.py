import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import leaky_relu
from torch_geometric.utils import softmax

from fgai.errors import DataError
from fgai.kernels import (
    EdgeOrder,
    aggregate,
    dot_scores,
    fast_dropout,
    gat_scores,
    gatv2_scores,
    ops,
    segmented_softmax,
    sparse_linear,
)


@st.composite
def problems(draw):
    sources, targets, heads, width = (draw(st.integers(1, 6)) for _ in range(4))
    edges = draw(st.lists(st.tuples(st.integers(0, sources - 1), st.integers(0, targets - 1)), max_size=12))
    edge_index = torch.tensor(edges, dtype=torch.long).reshape(-1, 2).t()
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.double).requires_grad_()

    return edge_index, normal(len(edges), heads), normal(targets, heads, width), normal(sources, heads, width)


def gradients(answer, *inputs):
    pull = torch.arange(answer.numel(), dtype=torch.double).view_as(answer).sin()
    return torch.autograd.grad((answer * pull).sum(), inputs)


@given(problems())
def test_aggregation_and_its_gradients_equal_gathered_messages(problem):
    edge_index, weight, target, value = problem
    order = EdgeOrder.of(edge_index, len(value), len(target))
    expected = torch.zeros_like(target).index_add(0, edge_index[1], weight[..., None] * value[edge_index[0]])
    found = aggregate(weight, value, order)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(gradients(found, weight, value), gradients(expected, weight, value), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@given(problems())
def test_scores_and_their_gradients_equal_gathered_products(problem):
    edge_index, _, query, key = problem
    order = EdgeOrder.of(edge_index, len(key), len(query))
    expected = (query[edge_index[1]] * key[edge_index[0]]).sum(-1)
    found = dot_scores(query, key, order)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(gradients(found, query, key), gradients(expected, query, key), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def same(found, expected, *inputs):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    for ours, theirs in zip(gradients(found, *inputs), gradients(expected, *inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@given(problems())
def test_the_softmax_and_its_gradient_are_pygs(problem):
    edge_index, score, target, source = problem
    order = EdgeOrder.of(edge_index, len(source), len(target))
    same(segmented_softmax(score, order), softmax(score, edge_index[1], num_nodes=len(target)), score)


def test_the_softmax_does_not_overflow():
    order = EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    assert segmented_softmax(torch.tensor([[1e4], [-1e4]]), order).flatten().tolist() == [1.0, 0.0]


@given(problems())
def test_summed_scores_equal_gathered_ones(problem):
    edge_index, _, target, source = problem
    order = EdgeOrder.of(edge_index, len(source), len(target))
    t, s = target[..., 0], source[..., 0]
    same(gat_scores(s, t, 0.2, order), leaky_relu(s[edge_index[0]] + t[edge_index[1]], 0.2), source, target)


@pytest.mark.parametrize("at_once", [2, 100])
@given(problem=problems())
def test_weighed_scores_equal_gathered_ones(at_once, problem):
    edge_index, _, target, source = problem
    att = torch.linspace(-1, 1, target[0].numel(), dtype=torch.double).view_as(target[0]).requires_grad_()
    order = EdgeOrder.of(edge_index, len(source), len(target))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "CHUNK", at_once)
        found = gatv2_scores(source, target, att, 0.2, order)
        expected = (leaky_relu(source[edge_index[0]] + target[edge_index[1]], 0.2) * att).sum(-1)
        same(found, expected, source, target, att)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(0, 99))
def test_sparse_features_times_weights_equal_the_dense_product(rows, columns, width, seed):
    draw = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, columns, generator=draw, dtype=torch.double)
    dense *= torch.rand(rows, columns, generator=draw) < 0.5
    sparse = dense.to_sparse().coalesce()
    values = sparse.values().clone().requires_grad_()
    weight = torch.randn(width, columns, generator=draw, dtype=torch.double).requires_grad_()
    x = torch.sparse_coo_tensor(sparse.indices(), values, sparse.shape, is_coalesced=True)
    order = EdgeOrder.of(sparse.indices().flip(0), columns, rows)
    filled = torch.zeros_like(dense).index_put(tuple(sparse.indices()), values)
    same(sparse_linear(x, weight, order), filled @ weight.t(), values, weight)


@pytest.mark.parametrize("p", [0.1, 0.6, 0.999])
def test_own_masks_keep_the_share_and_the_mean(p):
    torch.manual_seed(0)
    found = fast_dropout(torch.ones(400_000), p)
    share = float((found != 0).double().mean())
    assert share == pytest.approx(1 - p, abs=4 * (p * (1 - p) / 400_000) ** 0.5)
    assert float(found.max()) == pytest.approx(1 / (1 - p), rel=1e-2)
    neighbours = (found[1:] != 0) & (found[:-1] != 0)  # entries are drawn apart, also within a word
    assert float(neighbours.double().mean()) == pytest.approx((1 - p) ** 2, abs=4e-3)


def test_own_masks_of_nothing_and_of_everything():
    assert fast_dropout(torch.ones(3), 0.0).tolist() == [1.0] * 3
    assert fast_dropout(torch.ones(5), 0.5).shape == (5,)


@pytest.mark.parametrize("needed", [0, 1])
def test_only_the_gradients_that_are_asked_for_are_computed(needed):
    order = EdgeOrder.of(torch.tensor([[0, 1], [1, 0]]), 2, 2)
    inputs = [torch.ones(2, 1), torch.ones(2, 1, 3)]
    inputs[needed].requires_grad_()
    aggregate(inputs[0], inputs[1], order).sum().backward()
    assert inputs[needed].grad is not None
    assert inputs[1 - needed].grad is None


@pytest.mark.parametrize("edge", [(3, 0), (0, 2), (-1, 0)])
def test_an_edge_to_a_node_that_is_not_there_is_refused(edge):
    with pytest.raises(DataError, match="there are"):
        EdgeOrder.of(torch.tensor(edge)[:, None], 3, 2)


def test_dropping_all_leaves_nothing():
    assert float(fast_dropout(torch.ones(200_000), 1.0).abs().max()) == 0.0
