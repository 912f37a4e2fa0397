"""Short text for dataclasses that hold tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

MAX_ENTRIES, MAX_TEXT = 4, 60  # longer lists and texts are cut


def short_repr(self: Any) -> str:
    """Return one line for a dataclass: tensors by their shape, long lists by their length, without empty fields.

    Use it as `__repr__ = short_repr`.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     name: str
    ...     at: tuple[float, ...]
    ...     note: str | None = None
    ...     __repr__ = short_repr
    >>> Point("a", (0.123456,)), Point("b", (0.0,) * 100)
    (Point(name='a', at=(0.1235,)), Point(name='b', at=100 entries))
    """
    held = {field.name: getattr(self, field.name) for field in fields(self) if field.repr}
    parts = [f"{name}={_brief(part)}" for name, part in held.items() if not _is_empty(part)]
    return f"{type(self).__name__}({', '.join(parts)})"


def _is_empty(part: Any) -> bool:
    return part is None or (isinstance(part, Mapping | tuple | list | str) and not part)


def _brief(part: Any) -> str:
    """Return the text of one field."""
    if hasattr(part, "shape") and hasattr(part, "dtype"):
        return f"{type(part).__name__}{list(part.shape)}"
    if hasattr(part, "named_parameters"):  # a module, which prints its layers
        return type(part).__name__
    if isinstance(part, float):
        return f"{part:.4g}"
    if isinstance(part, tuple | list):
        inside = ", ".join(map(_brief, part))
        return f"{len(part)} entries" if len(part) > MAX_ENTRIES else f"({inside}{',' * (len(part) == 1)})"
    if isinstance(part, Mapping):
        inside = ", ".join(f"{name}: {_brief(entry)}" for name, entry in part.items())
        return f"{len(part)} entries" if len(part) > MAX_ENTRIES else f"{{{inside}}}"
    text = repr(part)
    return text if len(text) <= MAX_TEXT or not isinstance(part, str) else f"{text[:MAX_TEXT]}…"
