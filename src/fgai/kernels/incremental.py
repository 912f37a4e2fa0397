"""Recomputes row-wise operations only for the rows that changed since an earlier pass.

While an attack moves the features of injected nodes, all other rows of a layer's input stay what they were, and no
gradient is asked of them. Such a tensor is noted as `Rows`: a base that does not change, and a few new rows. Inside
`incremental()` an operation that works row by row is applied to the new rows only; its result for the base is looked up
in a `TensorCache`. The tensor is also there in full, so any other operation can use it and gives the same.

This is the only function mode of the library. It acts on tensors that are noted as `Rows`, and on nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fgai.cache import TensorCache, TensorNotes

_NOTES = TensorNotes()  # a tensor -> the `Rows` it is made of


@dataclass(frozen=True)
class Rows:
    """What a tensor is made of: `new` in the rows `at`, in rising order, and `base` in all others."""

    cache: TensorCache  # of what was computed from `base`
    base: Tensor  # [N, ...], asks for no gradient
    at: Tensor  # [M]
    new: Tensor  # [M, ...]

    def tensor(self) -> Tensor:
        """The tensor in full, which `rows_of` recognises.

        >>> full = Rows(TensorCache(), torch.zeros(3), torch.tensor([1]), torch.ones(1)).tensor()
        >>> full, rows_of(full).new
        (tensor([0., 1., 0.]), tensor([1.]))
        """
        return self.noted(self.base.index_copy(0, self.at, self.new))

    def noted(self, full: Tensor) -> Tensor:
        """`full`, noted as made of these rows."""
        _NOTES.set(full, self)
        return full

    def widened(self, at: Tensor) -> Tensor | None:
        """The tensor's rows `at`, if all new ones are among them."""
        if at is self.at:
            return self.new
        place = torch.searchsorted(at, self.at).clamp(max=len(at) - 1)
        if not torch.equal(at[place], self.at):
            return None
        return self.base.index_select(0, at).index_copy(0, place, self.new)


def rows_of(x: Any) -> Rows | None:
    """What this very tensor is made of, if that is known and it was not changed in place since."""
    return _NOTES.get(x)


class incremental(TorchFunctionMode):
    """Inside this block, tensors made of `Rows` stay so through operations that work row by row.

    >>> layer, x = torch.nn.Linear(2, 2).requires_grad_(False), torch.ones(3, 2)
    >>> mixed = Rows(TensorCache(), x, torch.tensor([2]), torch.zeros(1, 2)).tensor()
    >>> with incremental():
    ...     out = layer(mixed).relu()
    >>> rows_of(out).new.shape
    torch.Size([1, 2])
    """

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls `func`, on a few rows where that is enough."""
        named = kwargs or {}
        found = ROWWISE_OPS[func](func, args, named) if func in ROWWISE_OPS and not named.get("inplace") else None
        return func(*args, **named) if found is None else found


# How an operation is done on a few rows: each of the following takes (func, args, named) and returns the result, or
# None where the operation must be done in full.


def _rowwise(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """A function of each row of its first argument."""
    rows = rows_of(args[0]) if args else None
    settings = [*args[1:], *(value for _, value in sorted(named.items()))]
    if (
        rows is None
        or rows.new.dim() < 2
        or any(isinstance(value, Tensor) and _needs_grad(value) for value in settings)
    ):
        return None
    return _apply(lambda x: func(x, *args[1:], **named), func, rows, [rows.base], [rows.new], settings)


def _layer_norm(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """A norm of each row, and not of all rows together."""
    shape = named.get("normalized_shape", args[1] if len(args) > 1 else None)
    rows = rows_of(args[0]) if args else None
    return None if rows is None or shape is None or len(shape) >= rows.new.dim() else _rowwise(func, args, named)


def _elementwise(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """A function of two operands, entry by entry; a plain tensor with as many rows is taken row by row."""
    found = [rows_of(value) for value in args]
    known = [rows for rows in found if rows is not None]
    if not known or named or len({rows.base.dim() for rows in known}) > 1:
        return None
    widest = max(known, key=lambda rows: len(rows.at))
    operands = list(zip(args, found, strict=True))
    bases = [value if rows is None else rows.base for value, rows in operands]
    few = [_few(value, widest) if rows is None else rows.widened(widest.at) for value, rows in operands]
    settings = [None if rows is widest else base for base, rows in zip(bases, found, strict=True)]
    return None if any(value is None for value in few) else _apply(func, func, widest, bases, few, settings)


def _few(value: Any, like: Rows) -> Any:
    """The rows `like.at` of a plain operand, or all of one without rows; None if it needs a gradient or is unclear."""
    if not isinstance(value, Tensor):
        return value
    if _needs_grad(value) or value.layout != torch.strided or value.dim() > like.base.dim():
        return None
    if value.dim() < like.base.dim() or value.size(0) == 1:
        return value
    return value.index_select(0, like.at) if value.size(0) == like.base.size(0) else None


def _reshape(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """The same values in another shape, with as many rows."""
    rows = rows_of(args[0]) if args else None
    if rows is None:
        return None
    full = func(*args, **named)
    if full.shape[:1] != rows.base.shape[:1] or full.dtype != rows.new.dtype:
        return full
    with torch.no_grad():
        base = rows.base.reshape(full.shape)  # a view: the cache knows it by its memory
    return Rows(rows.cache, base, rows.at, rows.new.reshape(-1, *full.shape[1:])).noted(full)


def _dropout(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """Dropout outside of training returns its input."""
    given = {"input": None, "training": True, **dict(zip(("input", "p", "training"), args, strict=False)), **named}
    return given["input"] if rows_of(given["input"]) is not None and not given["training"] else None


def _apply(
    apply: Callable[..., Tensor], func: Any, rows: Rows, bases: list[Any], few: list[Any], settings: list[Any]
) -> Tensor | None:
    """`apply` to a few rows, and to the bases unless that is cached; None where it leaves not as many rows.

    Parameters among the settings are looked up by identity. Other tensors are compared by value, since a model may
    compute them anew in each pass.
    """
    parameters = [value for value in settings if isinstance(value, torch.nn.Parameter)]
    equal = [value for value in settings if isinstance(value, Tensor) and not isinstance(value, torch.nn.Parameter)]
    name = (func, *map(_kind, settings))
    base = rows.cache.get(name, [rows.base, *parameters], lambda: apply(*bases), equal=equal)
    new = apply(*few)
    if base.shape[:1] != rows.base.shape[:1] or new.shape[:1] != rows.at.shape:
        return None
    return Rows(rows.cache, base, rows.at, new).tensor()


def _kind(setting: Any) -> object:
    return type(setting) if isinstance(setting, Tensor) else repr(setting)


def _needs_grad(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


Rowwise = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Tensor | None]
ROWWISE_OPS: Mapping[Hashable, Rowwise] = {
    **dict.fromkeys((functional.linear, functional.leaky_relu), _rowwise),
    functional.layer_norm: _layer_norm,
    **dict.fromkeys((functional.relu, torch.relu, Tensor.relu, functional.elu, functional.gelu), _rowwise),
    **dict.fromkeys((Tensor.view, Tensor.view_as, Tensor.reshape, Tensor.flatten), _reshape),
    **dict.fromkeys((Tensor.sum, torch.sum, Tensor.mean, torch.mean), _rowwise),
    **dict.fromkeys((Tensor.add, torch.add, Tensor.__add__, Tensor.sub, torch.sub, Tensor.__sub__), _elementwise),
    **dict.fromkeys((Tensor.mul, torch.mul, Tensor.__mul__), _elementwise),
    functional.dropout: _dropout,
}
