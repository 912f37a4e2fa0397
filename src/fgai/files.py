"""Files are written whole or not at all: beside their place first, then renamed into it."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fgai.errors import DataError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary file to write to, which becomes `path` at the end of the block unless an error ends it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    half = Path(name)
    try:
        yield half
        half.chmod(0o644)
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def checked_suffix(path: Path, endings: Iterable[str], what: str) -> str:
    """The ending of a file's name, if `what` can be saved as such a file; others are refused.

    >>> checked_suffix(Path("curves.svg"), (".svg", ".png"), "a figure")
    '.svg'
    """
    *others, last = endings
    if path.suffix not in (*others, last):
        known = f"{', '.join(others)} or {last}" if others else last
        raise DataError(f"{what} is saved as {known}, and {path} ends in {path.suffix or 'nothing'}")
    return path.suffix


def jsonable(value: Any) -> Any:
    """The same record for JSON: numbers that are not finite become None, tuples lists.

    >>> jsonable({"loss": (1.0, math.nan)})
    {'loss': [1.0, None]}
    """
    if isinstance(value, dict):
        return {name: jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: Any) -> None:
    """`content` as JSON, sorted and indented, so that two versions can be compared line by line."""
    with atomic_write(path) as half:
        half.write_text(json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n")
