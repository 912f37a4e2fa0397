"""Attention as sparse matrix products: what gathering a message per edge and head computes, several times faster.

With A_h the sparse matrix of head h's weights, targets x sources, one head aggregates as A_h U_h. The gradient in the
values is A_h^T G_h, and the gradient in the weights is G_h U_h^T at the edges only, a sampled product, which is also
how query-key scores are made. The order of the edges is found once per graph and used in all of them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fgai.graph import degree, edge_keys, sum_by


@dataclass(frozen=True)
class EdgeOrder:
    """Where the edges of a graph lie in A (targets x sources, by rows) and in A^T; repeated edges lie together."""

    num_sources: int
    num_targets: int
    place: Tensor  # [E], the place of each edge in A
    edge: Tensor  # [P], an edge at each place of A
    turned: Tensor  # [P], the place in A of each place of A^T
    rows: tuple[Tensor, Tensor]  # A: where its rows start, and the columns
    columns: tuple[Tensor, Tensor]  # A^T likewise

    @classmethod
    def of(cls, edge_index: Tensor, num_sources: int, num_targets: int) -> EdgeOrder:
        """Sort once.

        >>> EdgeOrder.of(torch.tensor([[1, 0], [0, 1]]), 2, 2).rows[1]
        tensor([1, 0], dtype=torch.int32)
        """
        _hush()
        keys, order = edge_keys(edge_index, num_sources).sort()
        fresh = torch.ones_like(keys, dtype=torch.bool)
        fresh[1:] = keys[1:] != keys[:-1]
        place = torch.empty_like(order)
        place[order] = fresh.cumsum(0) - 1
        edge = order[fresh]
        source, target = edge_index[:, edge]
        turned = edge_keys(torch.stack([target, source]), num_targets).argsort()
        rows = (_starts(target, num_targets), source.int())
        columns = (_starts(source, num_sources), target[turned].int())
        return cls(num_sources, num_targets, place, edge, turned, rows, columns)

    def entries(self, weight: Tensor) -> Tensor:
        """The weights as entries of A, those of repeated edges added up; [E, H] -> [P, H]."""
        if len(self.edge) == len(self.place):
            return weight.index_select(0, self.edge)
        return sum_by(weight, self.place, len(self.edge))


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
    return _by_head(order.entries(weight), value, order.rows, (order.num_targets, order.num_sources))


def _transposed_product(weight: Tensor, value: Tensor, order: EdgeOrder) -> Tensor:
    """A^T G, head by head; [E, H], [num_targets, H, C] -> [num_sources, H, C]."""
    entries = order.entries(weight).index_select(0, order.turned)
    return _by_head(entries, value, order.columns, (order.num_sources, order.num_targets))


def _by_head(entries: Tensor, value: Tensor, place: tuple[Tensor, Tensor], shape: tuple[int, int]) -> Tensor:
    entries, value = entries.t().contiguous(), value.transpose(0, 1).contiguous()
    return torch.stack([_csr(place, e, shape) @ v for e, v in zip(entries, value, strict=True)], dim=1)


def _sampled(left: Tensor, right: Tensor, order: EdgeOrder) -> Tensor:
    """L R^T at the edges only, head by head; [num_targets, H, C], [num_sources, H, C] -> [E, H]."""
    shape = (order.num_targets, order.num_sources)
    pattern = _csr(order.rows, left.new_zeros(len(order.edge)), shape)
    left, right = left.transpose(0, 1).contiguous(), right.permute(1, 2, 0).contiguous()
    heads = [torch.sparse.sampled_addmm(pattern, a, b, beta=0.0).values() for a, b in zip(left, right, strict=True)]
    return torch.stack(heads, dim=1).index_select(0, order.place)


@cache
def _hush() -> None:
    """Torch says once per process that sparse rows are in beta; users of a model need not hear it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _csr((torch.tensor([0, 0]), torch.tensor([], dtype=torch.long)), torch.tensor([]), (1, 1))


def _csr(place: tuple[Tensor, Tensor], entries: Tensor, shape: tuple[int, int]) -> Tensor:
    return torch.sparse_csr_tensor(*place, entries, shape, check_invariants=False)


def _starts(row: Tensor, num: int) -> Tensor:
    return torch.cat([row.new_zeros(1), degree(row, num).cumsum(0)]).int()
