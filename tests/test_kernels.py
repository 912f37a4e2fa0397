import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fgai.kernels import EdgeOrder, aggregate, dot_scores


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


@pytest.mark.parametrize("needed", [0, 1])
def test_only_the_gradients_that_are_asked_for_are_computed(needed):
    order = EdgeOrder.of(torch.tensor([[0, 1], [1, 0]]), 2, 2)
    inputs = [torch.ones(2, 1), torch.ones(2, 1, 3)]
    inputs[needed].requires_grad_()
    aggregate(*inputs, order).sum().backward()
    assert inputs[needed].grad is not None
    assert inputs[1 - needed].grad is None
