"""Rows appended to a matrix, dense or sparse, and its typical row. Operands are noted: products are computed once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fgai.cache import TensorCache, TensorNotes, version

_PARTS = TensorNotes()  # a tensor -> the operands of `append_rows`
_TYPICAL = TensorCache(size=64)  # an attack adds links to the same graph many times


def append_rows(old: Tensor, x: Tensor) -> Tensor:
    """Append the rows of `x` to `old`. If `old` is sparse, zeros of `x` are stored, so that they receive gradients.

    >>> append_rows(torch.eye(2).to_sparse(), torch.zeros(1, 2)).to_dense().shape
    torch.Size([3, 2])
    """
    old = old.coalesce() if old.is_sparse else old
    result = _append_sparse(old, x) if old.is_sparse else torch.cat([old, x])
    return _note_operands(result, old, x)


class ReplaceableRows:
    """The result of `append_rows`, whose appended rows can be replaced. A sparsity pattern is reused.

    `replace` returns a new matrix. `overwrite` writes the rows into the given one, so no other row is copied, and all
    its earlier results change.

    >>> rows, x = ReplaceableRows(append_rows(torch.eye(2), torch.zeros(1, 2))), torch.ones(1, 2, requires_grad=True)
    >>> before, copied = rows.overwrite(torch.zeros(1, 2)), rows.replace(torch.zeros(1, 2))
    >>> rows.overwrite(x).sum().backward()
    >>> x.grad, before[2], copied[2]
    (tensor([[1., 1.]]), tensor([1., 1.]), tensor([0., 0.]))
    """

    def __init__(self, appended: Tensor) -> None:
        parts = split_rows(appended)
        assert parts is not None, "only rows that were appended can be replaced"
        self._matrix, self._old = appended, parts[0]

    def replace(self, x: Tensor) -> Tensor:
        """Return a matrix with these appended rows."""
        if not self._old.is_sparse:
            return append_rows(self._old, x)
        values = torch.cat([self._old.values(), x.flatten()])
        return _note_operands(with_values(self._matrix, values), self._old, x)

    def overwrite(self, x: Tensor) -> Tensor:
        """Return the matrix with these appended rows, in the same memory; a sparse one in new memory."""
        if self._old.is_sparse:
            return self.replace(x)
        return _note_operands(_Overwrite.apply(x, self._matrix), self._old, x)


class _Overwrite(torch.autograd.Function):
    """Writes rows at the end of a matrix; gradients reach the rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor) -> Tensor:
        ctx.first = len(matrix) - len(x)
        matrix[ctx.first :] = x
        return matrix.detach()

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return slopes[0][ctx.first :], None


def with_values(x: Tensor, values: Tensor) -> Tensor:
    """Return a coalesced sparse matrix with the pattern of `x` and other values.

    >>> with_values(torch.eye(2).to_sparse().coalesce(), torch.tensor([5.0, 6.0])).to_dense()[1]
    tensor([0., 6.])
    """
    return torch.sparse_coo_tensor(x.indices(), values, x.shape, is_coalesced=True, check_invariants=False)


def split_rows(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the operands of `append_rows`, or None if `x` is not its result or was modified.

    >>> split_rows(torch.ones(2, 2)) is None
    True
    """
    if (note := _PARTS.get(x)) is None:
        return None
    old, appended, versions = note
    return (old, appended) if (version(old), version(appended)) == versions else None


def typical_row(values: Tensor) -> Tensor:
    """Return the row that is nearest to the medians of the columns (l1); of several, the most frequent.

    >>> typical_row(torch.tensor([[1.0, 9.0], [2.0, 2.0], [3.0, 1.0]]))
    tensor([2., 2.])
    """
    values = values.detach()
    return _TYPICAL.get("typical", [values], lambda: _typical_row(values))


def _typical_row(values: Tensor) -> Tensor:
    rows = values.reshape(len(values), -1)
    median = rows.median(dim=0).values
    away = (rows - median).abs().sum(1)
    if not bool(away.min()):
        return median.view(values.shape[1:])
    nearest, counts = rows[away == away.min()].unique(dim=0, return_counts=True)
    return nearest[counts.argmax()].view(values.shape[1:])


def _note_operands(result: Tensor, old: Tensor, x: Tensor) -> Tensor:
    _PARTS.set(result, (old, x, (version(old), version(x))))
    return result


def _append_sparse(old: Tensor, x: Tensor) -> Tensor:
    rows, columns = x.shape
    row = torch.arange(old.size(0), old.size(0) + rows, device=x.device).repeat_interleave(columns)
    column = torch.arange(columns, device=x.device).repeat(rows)
    indices = torch.cat([old.indices(), torch.stack([row, column])], dim=1)
    values = torch.cat([old.values(), x.flatten()])
    size = (old.size(0) + rows, columns)
    return torch.sparse_coo_tensor(indices, values, size, is_coalesced=True, check_invariants=False)
