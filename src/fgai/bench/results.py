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

ROWS_REMEDY = "delete it and run the bench again, which computes the missing rows"


def peak_mb() -> float:
    """The peak memory of this process, in megabytes.

    Linux counts the memory of the parent process in `ru_maxrss`, up to the start of the program, but not in `VmHWM`.
    """
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    own = [float(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return (own[0] if own else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) / 1024


@dataclass(frozen=True)
class Row:
    """The metrics of one model (dataset, backbone, method, preset, seed) under one attack."""

    dataset: str
    backbone: str
    method: str
    seed: int
    metrics: Mapping[str, float | None]
    preset: str = "default"
    inductive: bool = False
    attack: str = "none"
    seconds: float = 0.0
    peak_mb: float = 0.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=versions)
    data_sha256: str = ""
    model_sha256: str = ""  # of the weights: the rows of a cell are about one model
    found_by: str = ""  # the member of the attack that found the perturbation
    error: str = ""  # the message, if the cell failed
    curves: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # F+ (`most`) and F- (`least`)

    @property
    def key(self) -> tuple[str, str, str, str, bool, int, str]:
        """The identity of a row: a new row with the same key replaces the old one."""
        return (self.dataset, self.backbone, self.method, self.preset, self.inductive, self.seed, self.attack)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file; empty if the file does not exist."""
    return records(Row, read_json(path, ROWS_REMEDY), path, ROWS_REMEDY) if path.exists() else []


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a file, sorted by key; a row replaces an older one with the same key."""
    write_all(path, {row.key: row for row in (*read_rows(path), *rows)}.values())


def write_all(path: Path, rows: Iterable[Row]) -> None:
    """Replace the rows of a file, sorted by key."""
    write_json(path, [asdict(row) for row in sorted(rows, key=lambda row: row.key)])


COSTS_REMEDY = "delete it, and measure again"


@dataclass(frozen=True)
class Cost:
    """One measured cost. Published timings are ratios within one run."""

    what: str
    dataset: str
    backbone: str
    value: float
    command: str


def read_costs(path: str | Path) -> list[Cost]:
    """The rows of a file; empty if the file does not exist."""
    return records(Cost, read_json(path, COSTS_REMEDY), path, COSTS_REMEDY) if Path(path).exists() else []


def write_costs(path: str | Path, costs: Iterable[Cost]) -> None:
    """Add costs to a file, sorted; a new measurement replaces the old one."""
    by_key = {(cost.what, cost.dataset, cost.backbone): cost for cost in (*read_costs(path), *costs)}
    write_json(Path(path), [asdict(by_key[key]) for key in sorted(by_key)])


class CellStore:
    """A folder of results: `<folder>/<cell>.json` holds the rows of a cell, and its error if it failed."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, cell: Cell) -> Path:
        """The file of a cell."""
        return self.folder / f"{cell.name}.json"

    def rows(self, cell: Cell) -> list[Row]:
        """The rows of a cell; empty if it has not run."""
        return read_rows(self.path(cell))

    def all_rows(self, preset: str = "default") -> Iterator[Row]:
        """The rows of all transductive cells of a preset, without failed ones."""
        for path in sorted(self.folder.glob("*.json")):
            rows = read_rows(path)
            yield from (row for row in rows if row.preset == preset and not row.error and not row.inductive)

    def finished(self, cell: Cell, attacks: Iterable[str] = ()) -> bool:
        """Whether a cell has run without error, under at least these attacks, with one model and one graph."""
        rows = self.rows(cell)
        one = len({(row.model_sha256, row.data_sha256) for row in rows}) == 1
        return one and not any(row.error for row in rows) and {row.attack for row in rows} >= {*attacks}

    def put(self, cell: Cell, rows: Iterable[Row]) -> None:
        """Save the rows of a cell, and replace older ones."""
        write_all(self.path(cell), rows)
