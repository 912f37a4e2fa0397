"""Finished cells on disk: one JSON file each, there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from fgai.bench.plan import Cell
from fgai.bench.rows import Row, read_rows, write_all


class Store:
    """A folder of cells: `<folder>/<cell>.json` holds its rows, or one row with the error that ended it."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, cell: Cell) -> Path:
        """Where a cell is kept."""
        return self.folder / f"{cell.name}.json"

    def rows(self, cell: Cell) -> list[Row]:
        """The rows of a cell; none if it has not run."""
        return read_rows(self.path(cell))

    def every(self, preset: str = "default") -> Iterator[Row]:
        """The rows of all cells that did not fail, with this preset."""
        for path in sorted(self.folder.glob("*.json")):
            yield from (row for row in read_rows(path) if row.preset == preset and not row.error)

    def finished(self, cell: Cell, attacks: Iterable[str] = ()) -> bool:
        """It has run, at least under these attacks, and did not fail."""
        rows = self.rows(cell)
        return bool(rows) and not any(row.error for row in rows) and {row.attack for row in rows} >= {*attacks}

    def put(self, cell: Cell, rows: Iterable[Row]) -> None:
        """Keep the rows of a cell, in place of what was there."""
        write_all(self.path(cell), rows)
