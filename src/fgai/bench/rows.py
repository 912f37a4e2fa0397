"""Result rows: one per cell and attack, the same shape everywhere, so that tables, figures and docs read one thing."""

from __future__ import annotations

import resource
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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
