"""The softmax over each node's edges, and its gradient, on edges whose order is known."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgai.kernels.narrow import Narrow
from fgai.kernels.order import EdgeOrder
from fgai.kernels.rows import Rows, Stay, rows_of

TINY = 1e-16  # PyG's, so that ours equals it


def segmented_softmax(src: Tensor, order: EdgeOrder | Narrow) -> Tensor:
    """w_ij = exp(s_ij) / sum_k exp(s_ik) over the edges into i; its gradient is w (g - sum_k w_ik g_ik); [E, H].

    >>> segmented_softmax(torch.zeros(2, 1), EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)).flatten()
    tensor([0.5000, 0.5000])
    """
    if not isinstance(order, Narrow):
        return _Softmax.apply(src, order)
    rows = rows_of(src)
    if rows is None or rows.at is not order.edges:  # other scores were put in their place
        return _Softmax.apply(src, order.full)
    stay = rows.stay.then("softmax", [order.target], lambda: Stay(_Softmax.apply(rows.stay.value, order.full)))
    return Rows(stay, rows.at, _Softmax.apply(rows.new, order.part)).whole()


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, score: Tensor, order: EdgeOrder) -> Tensor:
        weight = score - order.incoming.max(score).index_select(0, order.target)
        weight.exp_()
        weight /= order.incoming.sum(weight).add_(TINY).index_select(0, order.target)
        ctx.save_for_backward(weight)
        ctx.order = order
        return weight

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, None]:
        (weight,), order, (grad,) = ctx.saved_tensors, ctx.order, grads
        pull = weight * grad
        return pull.addcmul_(weight, order.incoming.sum(pull).index_select(0, order.target), value=-1), None
