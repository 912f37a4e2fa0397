"""Recomputes row-wise operations only for the rows that changed since an earlier pass.

While an attack changes the features of injected nodes, all other rows of a layer's input are constant and need no
gradient. Such a tensor is noted as `Rows`: a constant base and a few new rows. Inside `incremental()`, a row-wise
operation is applied to the new rows only; its result for the base is looked up in a `TensorCache`. The full tensor
exists as well, so any other operation can use it and returns the same result.

This is the only torch function mode of the library. It affects only tensors that are noted as `Rows`.
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

_NOTES = TensorNotes()  # a tensor -> its `Rows`


@dataclass(frozen=True)
class Rows:
    """The parts of a tensor: `new` in the rows `at`, which are sorted, and `base` in all other rows."""

    cache: TensorCache  # results computed from `base`
    base: Tensor  # [N, ...], without a gradient
    at: Tensor  # [M]
    new: Tensor  # [M, ...]

    def tensor(self) -> Tensor:
        """Return the full tensor, which `rows_of` recognises.

        >>> full = Rows(TensorCache(), torch.zeros(3), torch.tensor([1]), torch.ones(1)).tensor()
        >>> full, rows_of(full).new
        (tensor([0., 1., 0.]), tensor([1.]))
        """
        return self.attach(self.base.index_copy(0, self.at, self.new))

    def attach(self, full: Tensor) -> Tensor:
        """Note that `full` consists of these rows, and return it."""
        _NOTES.set(full, self)
        return full

    def select(self, at: Tensor) -> Tensor | None:
        """Return the tensor's rows `at`, or None if they do not contain all new rows."""
        if at is self.at:
            return self.new
        position = torch.searchsorted(at, self.at).clamp(max=len(at) - 1)
        if not torch.equal(at[position], self.at):
            return None
        return self.base.index_select(0, at).index_copy(0, position, self.new)


def rows_of(x: Any) -> Rows | None:
    """Return the `Rows` of this tensor object, or None if it has none or changed in place since."""
    return _NOTES.get(x)


class incremental(TorchFunctionMode):
    """Inside this block, row-wise operations on tensors with `Rows` return tensors with `Rows`.

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
        """Call `func`, on the new rows only where possible."""
        named = kwargs or {}
        result = ROWWISE_OPS[func](func, args, named) if func in ROWWISE_OPS and not named.get("inplace") else None
        return func(*args, **named) if result is None else result


# Rules for operations on the new rows only. Each takes (func, args, named) and returns the result, or None if the
# operation must run on the full tensor.


def _rowwise(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """Rule for a function of each row of its first argument."""
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
    """Rule for a norm of each row; None for a norm over all rows."""
    shape = named.get("normalized_shape", args[1] if len(args) > 1 else None)
    rows = rows_of(args[0]) if args else None
    return None if rows is None or shape is None or len(shape) >= rows.new.dim() else _rowwise(func, args, named)


def _elementwise(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """Rule for an elementwise function of two operands. A plain tensor with as many rows is indexed by row."""
    parts = [rows_of(value) for value in args]
    known = [rows for rows in parts if rows is not None]
    if not known or named or len({rows.base.dim() for rows in known}) > 1:
        return None
    widest = max(known, key=lambda rows: len(rows.at))
    operands = list(zip(args, parts, strict=True))
    bases = [value if rows is None else rows.base for value, rows in operands]
    selected = [_select_rows(value, widest) if rows is None else rows.select(widest.at) for value, rows in operands]
    settings = [None if rows is widest else base for base, rows in zip(bases, parts, strict=True)]
    return None if any(value is None for value in selected) else _apply(func, func, widest, bases, selected, settings)


def _select_rows(value: Any, like: Rows) -> Any:
    """Return the rows `like.at` of a plain operand, or a broadcast operand itself; None if unsupported."""
    if not isinstance(value, Tensor):
        return value
    if _needs_grad(value) or value.layout != torch.strided or value.dim() > like.base.dim():
        return None
    if value.dim() < like.base.dim() or value.size(0) == 1:
        return value
    return value.index_select(0, like.at) if value.size(0) == like.base.size(0) else None


def _reshape(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """Rule for a reshape that keeps the number of rows."""
    rows = rows_of(args[0]) if args else None
    if rows is None:
        return None
    full = func(*args, **named)
    if full.shape[:1] != rows.base.shape[:1] or full.dtype != rows.new.dtype:
        return full
    with torch.no_grad():
        base = rows.base.reshape(full.shape)  # a view: the cache identifies it by its memory
    return Rows(rows.cache, base, rows.at, rows.new.reshape(-1, *full.shape[1:])).attach(full)


def _dropout(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """Rule for dropout, which returns its input outside of training."""
    inputs = {"input": None, "training": True, **dict(zip(("input", "p", "training"), args, strict=False)), **named}
    return inputs["input"] if rows_of(inputs["input"]) is not None and not inputs["training"] else None


def _apply(
    apply: Callable[..., Tensor], func: Any, rows: Rows, bases: list[Any], selected: list[Any], settings: list[Any]
) -> Tensor | None:
    """Apply a function to the selected rows, and to the bases unless cached; None if it changes the number of rows.

    The cache identifies parameters among the settings by memory. It compares other tensors by value, since a model may
    recompute them in each pass.
    """
    parameters = [value for value in settings if isinstance(value, torch.nn.Parameter)]
    equal = [value for value in settings if isinstance(value, Tensor) and not isinstance(value, torch.nn.Parameter)]
    name = (func, *map(_setting_key, settings))
    base = rows.cache.get(name, [rows.base, *parameters], lambda: apply(*bases), equal=equal)
    new = apply(*selected)
    if base.shape[:1] != rows.base.shape[:1] or new.shape[:1] != rows.at.shape:
        return None
    return Rows(rows.cache, base, rows.at, new).tensor()


def _setting_key(setting: Any) -> object:
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
