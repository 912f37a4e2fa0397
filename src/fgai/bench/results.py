"""Result rows on disk: one per cell and attack, and one per measured cost."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fgai.bench.plan import Cell
from fgai.files import write_json
from fgai.readers import read_json
from fgai.records import records
from fgai.versions import versions

REMEDY = "delete it and run the bench again, which makes the rows that are missing"


def peak_mb() -> float:
    """The most memory that this process has held so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@dataclass(frozen=True)
class Row:
    """The figures of one model (dataset, backbone, method, preset, seed) under one attack."""

    dataset: str
    backbone: str
    method: str
    seed: int
    metrics: Mapping[str, float | None]
    preset: str = "default"
    attack: str = "none"
    seconds: float = 0.0
    peak_mb: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=versions)
    data_sha256: str = ""
    error: str = ""  # what ended it, where it failed
    curves: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # F+ (`most`) and F- (`least`)

    @property
    def key(self) -> tuple[str, str, str, str, int, str]:
        """What makes a row this row: a second run of it replaces the first."""
        return (self.dataset, self.backbone, self.method, self.preset, self.seed, self.attack)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; none if it is not there."""
    return records(Row, read_json(path, REMEDY), path, REMEDY) if path.exists() else []


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a file, sorted; a row with the key of an older one takes its place."""
    write_all(path, {row.key: row for row in (*read_rows(path), *rows)}.values())


def write_all(path: Path, rows: Iterable[Row]) -> None:
    """Make these the rows of a file, sorted."""
    write_json(path, [asdict(row) for row in sorted(rows, key=lambda row: row.key)])


REMEDY = "take it away, and measure again"


@dataclass(frozen=True)
class Cost:
    """One measured figure; timings are ratios within one run wherever they are claims."""

    what: str
    dataset: str
    backbone: str
    value: float
    command: str


def read_costs(path: str | Path) -> list[Cost]:
    """The rows of a file; none if it is not there."""
    return records(Cost, read_json(path, REMEDY), path, REMEDY) if Path(path).exists() else []


def write_costs(path: str | Path, costs: Iterable[Cost]) -> None:
    """Add rows to a file, sorted; a later measurement of the same thing takes the place of an older one."""
    kept = {(cost.what, cost.dataset, cost.backbone): cost for cost in (*read_costs(path), *costs)}
    write_json(Path(path), [asdict(kept[key]) for key in sorted(kept)])


class CellStore:
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
