"""A pass that differs from an earlier one in a few rows: what works row by row makes only those again.

While an injection climbs, all rows but those it reaches stay what they were, and no gradient is asked of them. A tensor
that is known to be so carries its parts along (`Rows`); inside `RowByRow` a function that works row by row is applied
to the few rows, and put over what it gave of the others before. Every such tensor is whole, too, so anything else can
be done with it. A change is seen by torch's version counters, so not one made through `.data`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fgai.graph import version

_Mark = tuple[Tensor, int, int]  # a tensor, where it lies, and how often it had been changed


@dataclass(frozen=True)
class Stay:
    """Values of an earlier pass that depend on nothing that moves, and what was made of them since."""

    value: Tensor
    after: dict[Hashable, tuple[Sequence[_Mark], Any]] = field(default_factory=dict)

    def then(self, what: Hashable, others: Sequence[Tensor], make: Callable[[], Any]) -> Any:
        """What `make` gave when it was last asked for `what`, if the other tensors that it uses are the same.

        >>> stay, bias = Stay(torch.ones(1)), torch.ones(1)
        >>> stay.then("sum", [bias], lambda: stay.value + bias)
        tensor([2.])
        >>> _ = bias.add_(1)
        >>> stay.then("sum", [bias], lambda: stay.value + bias)
        tensor([3.])
        """
        found = self.after.get(what)
        if found is None or len(found[0]) != len(others) or not all(map(_same, found[0], others)):
            with torch.no_grad():
                found = self.after[what] = ([_mark(other) for other in others], make())
        return found[1]


@dataclass(frozen=True)
class Rows:
    """What a tensor is made of: `new` in the rows `at`, which rise, and in all others what stays."""

    stay: Stay  # [N, ...]
    at: Tensor  # [M]
    new: Tensor  # [M, ...]

    def whole(self) -> Tensor:
        """The tensor, which `rows_of` knows.

        >>> both = Rows(Stay(torch.zeros(3)), torch.tensor([1]), torch.ones(1)).whole()
        >>> both, rows_of(both).new
        (tensor([0., 1., 0.]), tensor([1.]))
        """
        return self.known_as(self.stay.value.index_copy(0, self.at, self.new))

    def known_as(self, whole: Tensor) -> Tensor:
        """`whole`, which is made of these."""
        whole._fgai_rows = (self, version(whole))  # pyright: ignore[reportAttributeAccessIssue]
        return whole

    def wider(self, at: Tensor) -> Tensor | None:
        """The rows `at`, if mine are among them."""
        if at is self.at:
            return self.new
        place = torch.searchsorted(at, self.at).clamp(max=len(at) - 1)
        if not torch.equal(at[place], self.at):
            return None
        return self.stay.value.index_select(0, at).index_copy(0, place, self.new)


def rows_of(x: Any) -> Rows | None:
    """What this very tensor is made of, if that is known and it was not changed since."""
    rows, known = getattr(x, "_fgai_rows", (None, 0))
    return rows if rows is not None and version(x) == known else None


class RowByRow(TorchFunctionMode):
    """Inside this block, tensors made of `Rows` stay so through functions that work row by row.

    >>> layer, x = torch.nn.Linear(2, 2).requires_grad_(False), torch.ones(3, 2)
    >>> mixed = Rows(Stay(x), torch.tensor([2]), torch.zeros(1, 2)).whole()
    >>> with RowByRow():
    ...     out = layer(mixed).relu()
    >>> rows_of(out).new.shape
    torch.Size([1, 2])
    """

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls `func`, of a few rows where that is enough."""
        named = kwargs or {}
        found = WORKS[func](func, args, named) if func in WORKS and not named.get("inplace") else None
        return func(*args, **named) if found is None else found


def _each(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """A function of the rows of its first argument."""
    rows = rows_of(args[0]) if args else None
    settings = [*args[1:], *(value for _, value in sorted(named.items()))]
    if rows is None or rows.new.dim() < 2 or any(isinstance(value, Tensor) and _moves(value) for value in settings):
        return None
    return _put(lambda x: func(x, *args[1:], **named), func, rows, [rows.stay.value], [rows.new], settings)


def _within(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """A norm of each row, and not of all rows together."""
    shape = named.get("normalized_shape", args[1] if len(args) > 1 else None)
    rows = rows_of(args[0]) if args else None
    return None if rows is None or shape is None or len(shape) >= rows.new.dim() else _each(func, args, named)


def _aligned(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """A function of two, entry by entry; a tensor of as many rows is taken row by row."""
    found = [rows_of(value) for value in args]
    known = [rows for rows in found if rows is not None]
    if not known or named or len({rows.stay.value.dim() for rows in known}) > 1:
        return None
    widest = max(known, key=lambda rows: len(rows.at))
    both = list(zip(args, found, strict=True))
    stays = [value if rows is None else rows.stay.value for value, rows in both]
    few = [_few(value, widest) if rows is None else rows.wider(widest.at) for value, rows in both]
    settings = [None if rows is widest else value for value, rows in zip(stays, found, strict=True)]
    return None if any(value is None for value in few) else _put(func, func, widest, stays, few, settings)


def _few(value: Any, like: Rows) -> Any:
    """The rows of a tensor that stays, or what has no rows; None where that cannot be told, or where it moves."""
    if not isinstance(value, Tensor):
        return value
    if _moves(value) or value.layout != torch.strided or value.dim() > like.stay.value.dim():
        return None
    if value.dim() < like.stay.value.dim() or value.size(0) == 1:
        return value
    return value.index_select(0, like.at) if value.size(0) == like.stay.value.size(0) else None


def _shaped(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """The same values in another shape, with as many rows."""
    rows = rows_of(args[0]) if args else None
    if rows is None:
        return None
    whole = func(*args, **named)
    if whole.shape[:1] != rows.stay.value.shape[:1] or whole.dtype != rows.new.dtype:
        return whole
    stay = rows.stay.then(whole.shape, [], lambda: Stay(rows.stay.value.reshape(whole.shape)))
    return Rows(stay, rows.at, rows.new.reshape(-1, *whole.shape[1:])).known_as(whole)


def _at_rest(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Tensor | None:
    """Dropout outside of training, which gives back what it is given."""
    given = {"input": None, "training": True, **dict(zip(("input", "p", "training"), args, strict=False)), **named}
    return given["input"] if rows_of(given["input"]) is not None and not given["training"] else None


def _put(
    apply: Callable[..., Tensor], func: Any, rows: Rows, stays: list[Any], few: list[Any], settings: list[Any]
) -> Tensor | None:
    """`apply` to a few rows, over what it gave of all in an earlier pass; None where it leaves not as many rows."""
    others = [value for value in settings if isinstance(value, Tensor)]
    stay: Stay = rows.stay.then((func, *map(_name, settings)), others, lambda: Stay(apply(*stays)))
    new = apply(*few)
    if stay.value.shape[:1] != rows.stay.value.shape[:1] or new.shape[:1] != rows.at.shape:
        return None
    return Rows(stay, rows.at, new).whole()


def _name(setting: Any) -> Hashable:
    """By which a call is known: a parameter by itself, any other tensor by its values, which are compared."""
    if isinstance(setting, Tensor):
        return id(setting) if isinstance(setting, torch.nn.Parameter) else None
    return repr(setting)


def _moves(x: Tensor) -> bool:
    return torch.is_grad_enabled() and x.requires_grad


def _mark(x: Tensor) -> _Mark:
    return x, _address(x), version(x)


def _address(x: Tensor) -> int:
    """Where a tensor lies; sparse ones have no storage of their own."""
    return x.data_ptr() if x.layout == torch.strided else id(x)


def _same(mark: _Mark, now: Tensor) -> bool:
    """The tensor of a mark has not changed, and this is it or one with the same values."""
    x, place, then = mark
    if version(x) != then or _address(x) != place or x.shape != now.shape or x.dtype != now.dtype:
        return False
    if x.layout != torch.strided or now.layout != torch.strided:
        return now is x
    return (now.data_ptr() == place and now.stride() == x.stride()) or torch.equal(x, now)


Works = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Tensor | None]
WORKS: Mapping[Any, Works] = {
    **dict.fromkeys((functional.linear, functional.leaky_relu), _each),
    functional.layer_norm: _within,
    **dict.fromkeys((functional.relu, torch.relu, Tensor.relu, functional.elu, functional.gelu), _each),
    **dict.fromkeys((Tensor.view, Tensor.view_as, Tensor.reshape, Tensor.flatten), _shaped),
    **dict.fromkeys((Tensor.sum, torch.sum, Tensor.mean, torch.mean), _each),
    **dict.fromkeys((Tensor.add, torch.add, Tensor.__add__, Tensor.sub, torch.sub, Tensor.__sub__), _aligned),
    **dict.fromkeys((Tensor.mul, torch.mul, Tensor.__mul__), _aligned),
    functional.dropout: _at_rest,
}
