"""Frozen dataclasses from JSON; each entry is checked against its annotation."""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from fgai.errors import DataError

T = TypeVar("T")


def record(kind: type[T], raw: Any, where: object, remedy: str, *, more: bool = False) -> T:
    """Return the dataclass `kind` with the entries of a JSON object; `more` allows entries that `kind` does not have.

    A `float` may be null, which becomes NaN. Lists become tuples where the annotation is a tuple.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     name: str
    ...     at: tuple[float, ...] = ()
    >>> record(Point, {"name": "a", "at": [1, 2.5]}, "p.json", "write it again")
    Point(name='a', at=(1.0, 2.5))
    >>> record(Point, {"name": 7}, "p.json", "write it again")
    Traceback (most recent call last):
    fgai.errors.DataError: p.json: `name` is 7, but str is required; write it again
    """
    try:
        return _dataclass(kind, raw, more)
    except _InvalidEntry as error:
        raise DataError(f"{where}: {error}; {remedy}") from error


def records(kind: type[T], raw: Any, where: object, remedy: str) -> list[T]:
    """Return the dataclasses of a JSON list."""
    if not isinstance(raw, list):
        raise DataError(f"{where}: {_short(raw)}, but a list is required; {remedy}")
    return [record(kind, entry, f"{where}, entry {number}", remedy) for number, entry in enumerate(raw)]


def checked_value(kind: Any, raw: Any, where: object, remedy: str) -> Any:
    """Return a single value, converted to `kind`; raise if it has another type.

    >>> checked_value(tuple[int, ...], [20, 40], "--set edges=20,40", "give whole numbers")
    (20, 40)
    """
    try:
        return _value(kind, raw)
    except _InvalidEntry as error:
        raise DataError(f"{where}: {error}; {remedy}") from error


class _InvalidEntry(ValueError):
    """The error of an entry; each level of nesting prepends to `path`, so valid entries need no path."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path = ""

    def __str__(self) -> str:
        return f"`{self.path.removeprefix('.')}` {self.args[0]}" if self.path else f"it {self.args[0]}"


def _dataclass(kind: Any, raw: Any, more: bool = False) -> Any:
    if not isinstance(raw, dict):
        raise _InvalidEntry(f"is {_short(raw)}, but an object is required")
    hints, known = get_type_hints(kind), {field.name: field for field in fields(kind)}
    if (unknown := [name for name in raw if name not in known]) and not more:
        raise _InvalidEntry(f"has {_short(unknown)}, but may have only {', '.join(known)}")
    required = [name for name, f in known.items() if f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in required if name not in raw]:
        raise _InvalidEntry(f"has no {', '.join(missing)}")
    given = [name for name in known if name in raw]
    return kind(**dict(zip(given, _values([(f".{name}", hints[name], raw[name]) for name in given]), strict=True)))


def _values(entries: Iterable[tuple[object, Any, Any]]) -> list[Any]:
    """Return the checked values of entries (key, type, raw value)."""
    values: list[Any] = []
    for key, kind, raw in entries:
        try:
            values.append(_value(kind, raw))
        except _InvalidEntry as error:
            step = key if isinstance(key, str) else f"[{key}]"
            error.path = f"{step[:60]}{error.path}"
            raise
    return values


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
        return dict(zip(raw, _values((f".{name}", parts[1], part) for name, part in raw.items()), strict=True))
    raise _InvalidEntry(f"is {_short(raw)}, but {_type_name(kind)} is required")


def _any_of(kinds: tuple[Any, ...], raw: Any) -> Any:
    """Return the value as the first type of a union that fits."""
    if raw is None and types.NoneType in kinds:
        return None
    *others, last = (kind for kind in kinds if kind is not types.NoneType)
    for kind in others:
        try:
            return _value(kind, raw)
        except _InvalidEntry:
            continue
    return _value(last, raw)


def _list(origin: Any, parts: tuple[Any, ...], raw: list[Any]) -> Any:
    if origin is not tuple:
        return _values((i, parts[0], part) for i, part in enumerate(raw))
    if parts[-1] is Ellipsis:
        return tuple(_values((i, parts[0], part) for i, part in enumerate(raw)))
    if len(raw) != len(parts):
        raise _InvalidEntry(f"has {len(raw)} entries, but {len(parts)} are required")
    return tuple(_values(zip(range(len(raw)), parts, raw, strict=True)))


def _type_name(kind: Any) -> str:
    named = isinstance(kind, type) and get_origin(kind) is None
    return kind.__name__ if named else str(kind).replace("typing.", "").replace("collections.abc.", "")


def _short(value: Any) -> str:
    text = repr(value) if not isinstance(value, dict | list) or len(value) < 10 else f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}..."
