"""Messages summed, and query-key scores, as sparse matrix products.

With A_h the sparse matrix of head h's weights, targets x sources, one head aggregates as A_h U_h. The gradient in the
values is A_h^T G_h, and the gradient in the weights is G_h U_h^T at the edges only, a sampled product, which is also
how query-key scores are made. The order of the edges is found once per graph and used in all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgai.kernels.order import EdgeOrder, Place, csr


def aggregate(weight: Tensor, value: Tensor, order: EdgeOrder) -> Tensor:
    """sum_j w_ij u_j per head, with gradients to both; [E, H], [num_sources, H, C] -> [num_targets, H, C].

    >>> order = EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    >>> aggregate(torch.tensor([[0.25], [0.75]]), torch.tensor([[[4.0]], [[8.0]]]), order).flatten()
    tensor([7.])
    """
    return _Aggregate.apply(weight, value, order)


def dot_scores(query: Tensor, key: Tensor, order: EdgeOrder) -> Tensor:
    """<q_i, k_j> per edge j -> i and head, with gradients to both; [num_targets, H, C], [num_sources, H, C] -> [E, H].

    >>> order = EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    >>> dot_scores(torch.tensor([[[2.0]]]), torch.tensor([[[4.0]], [[8.0]]]), order).flatten()
    tensor([ 8., 16.])
    """
    return _DotScores.apply(query, key, order)


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, value: Tensor, order: EdgeOrder) -> Tensor:
        ctx.save_for_backward(weight, value)
        ctx.order = order
        return _product(weight, value, order)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        (weight, value), order, (grad,) = ctx.saved_tensors, ctx.order, grads
        return (
            _sampled(grad, value, order) if ctx.needs_input_grad[0] else None,
            _transposed_product(weight, grad, order) if ctx.needs_input_grad[1] else None,
            None,
        )


class _DotScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, order: EdgeOrder) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.order = order
        return _sampled(query, key, order)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        (query, key), order, (grad,) = ctx.saved_tensors, ctx.order, grads
        return (
            _product(grad, key, order) if ctx.needs_input_grad[0] else None,
            _transposed_product(grad, query, order) if ctx.needs_input_grad[1] else None,
            None,
        )


def _product(weight: Tensor, value: Tensor, order: EdgeOrder) -> Tensor:
    """A U, head by head; [E, H], [num_sources, H, C] -> [num_targets, H, C]."""
    return _by_head(order.entries(weight), value, order.rows, order.shape)


def _transposed_product(weight: Tensor, value: Tensor, order: EdgeOrder) -> Tensor:
    """A^T G, head by head; [E, H], [num_targets, H, C] -> [num_sources, H, C]."""
    return _by_head(order.turned_entries(weight), value, order.columns, (order.num_sources, order.num_targets))


def _by_head(entries: Tensor, value: Tensor, place: Place, shape: tuple[int, int]) -> Tensor:
    entries, value = entries.t().contiguous(), value.transpose(0, 1).contiguous()
    return torch.stack([csr(place, e, shape) @ v for e, v in zip(entries, value, strict=True)], dim=1)


def _sampled(left: Tensor, right: Tensor, order: EdgeOrder) -> Tensor:
    """L R^T at the edges only, head by head; [num_targets, H, C], [num_sources, H, C] -> [E, H]."""
    pattern = csr(order.rows, left.new_zeros(len(order.edge)), order.shape)
    left, right = left.transpose(0, 1).contiguous(), right.permute(1, 2, 0).contiguous()
    heads = [torch.sparse.sampled_addmm(pattern, a, b, beta=0.0).values() for a, b in zip(left, right, strict=True)]
    return order.at_edges(torch.stack(heads, dim=1))
