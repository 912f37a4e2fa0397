"""Frozen dataclasses from JSON: every entry is checked against its annotation, so that what is built can be used."""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fgai.errors import DataError

T = TypeVar("T")


def record(kind: type[T], raw: Any, where: object, remedy: str, *, more: bool = False) -> T:
    """The dataclass `kind` of what a JSON file holds; `more` lets it hold entries that `kind` does not have.

    A `float` may be null: files write NaN so. Lists become the tuples that the annotations name.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     name: str
    ...     at: tuple[float, ...] = ()
    >>> record(Point, {"name": "a", "at": [1, 2.5]}, "p.json", "write it again")
    Point(name='a', at=(1.0, 2.5))
    >>> record(Point, {"name": 7}, "p.json", "write it again")
    Traceback (most recent call last):
    fgai.errors.DataError: p.json: `name` is 7, and str is needed; write it again
    """
    try:
        return _dataclass(kind, raw, more)
    except _Wrong as error:
        raise DataError(f"{where}: {error}; {remedy}") from error


def records(kind: type[T], raw: Any, where: object, remedy: str) -> list[T]:
    """The dataclasses of a JSON list."""
    if not isinstance(raw, list):
        raise DataError(f"{where}: {_short(raw)}, and a list is needed; {remedy}")
    return [record(kind, one, f"{where}, entry {number}", remedy) for number, one in enumerate(raw)]


def checked(kind: Any, raw: Any, where: object, remedy: str) -> Any:
    """The value of a JSON file, if it is of this kind.

    >>> checked(dict[str, str], {"x": "y"}, "a.json", "write it again")
    {'x': 'y'}
    """
    try:
        return _value(kind, raw)
    except _Wrong as error:
        raise DataError(f"{where}: {error}; {remedy}") from error


class _Wrong(ValueError):
    """What is wrong with an entry; `place` grows on the way out, so that good entries cost nothing."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.place = ""

    def __str__(self) -> str:
        return f"`{self.place.removeprefix('.')}` {self.args[0]}" if self.place else f"it {self.args[0]}"


def _dataclass(kind: Any, raw: Any, more: bool = False) -> Any:
    if not isinstance(raw, dict):
        raise _Wrong(f"is {_short(raw)}, and an object is needed")
    hints, every = get_type_hints(kind), {field.name: field for field in fields(kind)}
    if (strange := [name for name in raw if name not in every]) and not more:
        raise _Wrong(f"has {_short(strange)}, and may have {', '.join(every)}")
    needed = [name for name, f in every.items() if f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in needed if name not in raw]:
        raise _Wrong(f"has no {', '.join(missing)}")
    there = [name for name in every if name in raw]
    return kind(**dict(zip(there, _each([(f".{name}", hints[name], raw[name]) for name in there]), strict=True)))


def _each(entries: Iterable[tuple[object, Any, Any]]) -> list[Any]:
    """The values of entries: where each is, what it must be, what there is."""
    found: list[Any] = []
    for place, kind, raw in entries:
        try:
            found.append(_value(kind, raw))
        except _Wrong as error:
            said = place if isinstance(place, str) else f"[{place}]"
            error.place = f"{said[:60]}{error.place}"
            raise
    return found


def _value(kind: Any, raw: Any) -> Any:
    if kind is Any or (type(raw) is kind and kind in (int, str, bool)):
        return raw
    if kind is float and (raw is None or type(raw) in (int, float)):
        return math.nan if raw is None else float(raw)
    if is_dataclass(kind):
        return _dataclass(kind, raw)
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal and isinstance(raw, str) and raw in parts:
        return raw
    if origin in (Union, types.UnionType):
        return _any_of(parts, raw)
    if origin in (tuple, list, Sequence) and isinstance(raw, list):
        return _list(origin, parts, raw)
    if origin in (dict, Mapping) and isinstance(raw, dict):
        return dict(zip(raw, _each((f".{name}", parts[1], part) for name, part in raw.items()), strict=True))
    raise _Wrong(f"is {_short(raw)}, and {_called(kind)} is needed")


def _any_of(kinds: tuple[Any, ...], raw: Any) -> Any:
    """The value as the first kind that it can be."""
    if raw is None and types.NoneType in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not types.NoneType)
    for kind in others:
        try:
            return _value(kind, raw)
        except _Wrong:
            continue
    return _value(last, raw)


def _list(origin: Any, parts: tuple[Any, ...], raw: list[Any]) -> Any:
    if origin is not tuple:
        return _each((i, parts[0], part) for i, part in enumerate(raw))
    if parts[-1] is Ellipsis:
        return tuple(_each((i, parts[0], part) for i, part in enumerate(raw)))
    if len(raw) != len(parts):
        raise _Wrong(f"has {len(raw)} entries, and {len(parts)} are needed")
    return tuple(_each(zip(range(len(raw)), parts, raw, strict=True)))


def _called(kind: Any) -> str:
    named = isinstance(kind, type) and get_origin(kind) is None
    return kind.__name__ if named else str(kind).replace("typing.", "").replace("collections.abc.", "")


def _short(value: Any) -> str:
    said = repr(value) if not isinstance(value, dict | list) or len(value) < 10 else f"a {type(value).__name__}"
    return said if len(said) <= 60 else f"{said[:60]}..."
