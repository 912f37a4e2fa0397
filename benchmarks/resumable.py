"""Result files of benchmarks that can be stopped and continued: a JSON list of rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fgai.files import write_json

Row = dict[str, Any]


def rows_in(path: Path) -> list[Row]:
    """Return the rows of a file; empty if the file does not exist."""
    return json.loads(path.read_text()) if path.exists() else []


def keep(path: Path, key: Sequence[str], new: Sequence[Row]) -> None:
    """Add rows to a file, sorted, in place of those of the same key, and print them."""
    rows = {tuple(row[name] for name in key): row for row in [*rows_in(path), *new]}
    write_json(path, [rows[value] for value in sorted(rows)])
    for row in new:
        print(row, flush=True)
