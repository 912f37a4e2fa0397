"""Scores of edges from what both ends say, with gradients summed by sparse products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import leaky_relu

from fgai.kernels.order import EdgeOrder

AT_ONCE = 2**17  # entries of messages that fit into a core's cache


def summed_scores(source: Tensor, target: Tensor, slope: float, order: EdgeOrder) -> Tensor:
    """GAT: leaky(s_j + t_i) per edge j -> i; [num_sources, H], [num_targets, H] -> [E, H].

    >>> order = EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    >>> summed_scores(torch.tensor([[1.0], [-3.0]]), torch.tensor([[1.0]]), 0.5, order).flatten()
    tensor([ 2., -1.])
    """
    return leaky_relu(_Sum.apply(source, target, order), slope)


def weighed_scores(source: Tensor, target: Tensor, att: Tensor, slope: float, order: EdgeOrder) -> Tensor:
    """GATv2: <a, leaky(s_j + t_i)> per edge and head; [num_sources, H, C], [num_targets, H, C], [H, C] -> [E, H].

    A part of the edges at a time, so that what is gathered stays in the cache; the gradient gathers it again.

    >>> order = EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)
    >>> source, target = torch.tensor([[[1.0]], [[-3.0]]]), torch.tensor([[[1.0]]])
    >>> weighed_scores(source, target, torch.ones(1, 1), 0.5, order).flatten()
    tensor([ 2., -1.])
    """
    return _Weighed.apply(source, target, att, slope, order)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, target: Tensor, order: EdgeOrder) -> Tensor:
        ctx.order = order
        return source.index_select(0, order.source).add_(target.index_select(0, order.target))

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        sides = (ctx.order.outgoing, ctx.order.incoming)
        from_, to = (
            side.sum(grads[0]) if needed else None for side, needed in zip(sides, ctx.needs_input_grad[:2], strict=True)
        )
        return from_, to, None


class _Weighed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, target: Tensor, att: Tensor, slope: float, order: EdgeOrder) -> Tensor:
        ctx.save_for_backward(source, target, att)
        ctx.slope, ctx.order = slope, order
        score = source.new_empty(len(order.source), source.size(1))
        for at in _slices(order, source):
            score[at] = (leaky_relu(_gathered(source, target, order, at), slope).mul_(att)).sum(-1)
        return score

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        (source, target, att), slope, order, (grad,) = ctx.saved_tensors, ctx.slope, ctx.order, grads
        pull = source.new_empty(len(order.source), *source.shape[1:])
        pull_att = torch.zeros_like(att) if ctx.needs_input_grad[2] else None
        for at in _slices(order, source):
            inner = _gathered(source, target, order, at)
            here = grad[at].unsqueeze(2)
            if pull_att is not None:
                pull_att += leaky_relu(inner, slope).mul_(here).sum(0)
            pull[at] = torch.ops.aten.leaky_relu_backward(here * att, inner, slope, False)
        from_ = order.outgoing.sum(pull) if ctx.needs_input_grad[0] else None
        to = order.incoming.sum(pull) if ctx.needs_input_grad[1] else None
        return from_, to, pull_att, None, None


def _slices(order: EdgeOrder, source: Tensor) -> list[slice]:
    size = max(AT_ONCE // source[0].numel(), 1)
    return [slice(first, first + size) for first in range(0, len(order.source), size)]


def _gathered(source: Tensor, target: Tensor, order: EdgeOrder, at: slice) -> Tensor:
    """s_j + t_i of some edges; [e, H, C]."""
    return source.index_select(0, order.source[at]).add_(target.index_select(0, order.target[at]))
