"""Runs a finished cell again, and compares each number with the committed one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev
from tempfile import TemporaryDirectory
from typing import Any

from fgai import datasets
from fgai.bench.plan import Cell
from fgai.bench.results import CellStore, Row, read_rows
from fgai.bench.run import Settings, rows_of_cell
from fgai.bench.tables import grid
from fgai.errors import DataError
from fgai.intervals import NORMAL, SHOWN

ROUNDING = 1e-6  # sums in another order differ by this share of a number
SMALLEST = 1e-12  # numbers that differ by less are both 0
MIN_SEEDS = 3  # fewer give no standard deviation to rely on
REDEFINED = {"g_jsd_released": "0.1.0"}  # the last version with another definition: it compared rows, not edges


@dataclass(frozen=True)
class Comparison:
    """One number of a cell: the committed one, the one of the new run, and how much they may differ."""

    attack: str
    metric: str
    committed: float
    again: float
    allowed: float

    @property
    def distance(self) -> float:
        """How much the numbers differ."""
        return abs(self.again - self.committed)

    @property
    def ok(self) -> bool:
        """Whether the new number lies within the allowed distance."""
        return self.equal or self.distance <= self.allowed

    @property
    def equal(self) -> bool:
        """Whether the numbers are equal up to rounding."""
        return self.distance <= max(ROUNDING * abs(self.committed), SMALLEST)


@dataclass(frozen=True)
class Verification:
    """A cell that ran again.

    Attributes:
        name: The name of the cell.
        seeds: The number of seeds that the intervals are made of.
        comparisons: One per attack and metric.
        differences: Sentences on what is not the same as in the committed run: data, versions, settings, metrics.
        seconds: Training and attacks of the new run.
    """

    name: str
    seeds: int
    comparisons: tuple[Comparison, ...]
    differences: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether all numbers lie within the allowed distances."""
        return all(one.ok for one in self.comparisons)

    def text(self) -> str:
        """The comparison as a Markdown table, with the differences below it."""
        body = [
            [one.attack, one.metric, *(f"{value:.4g}" for value in (one.committed, one.again, one.allowed)), word]
            for one in self.comparisons
            for word in ["equal" if one.equal else "ok" if one.ok else "outside"]
        ]
        within, equal = sum(one.ok for one in self.comparisons), sum(one.equal for one in self.comparisons)
        lines = [
            f"{self.name}: {within} of {len(body)} numbers are within their interval, {equal} of them are equal; "
            f"cells of {self.seeds} seeds; {self.seconds:.0f} s",
            *(f"- {sentence}" for sentence in self.differences),
        ]
        return grid(["attack", "metric", "committed", "again", "allowed", ""], body) + "\n" + "\n".join(lines)


def verify(name: str, folder: str | Path, settings: Settings = Settings()) -> Verification:  # noqa: B008, frozen
    """Run a cell again from its name, and compare it with its committed rows.

    The seed is the same, so the numbers are equal on the machine that made them, and with the same versions. A number
    may differ by as much as two seeds do: the 95 % interval of the difference of two runs, from the standard deviation
    over the seeds of the committed cells. A cell with fewer than 3 seeds takes the standard deviations of the default
    preset of its method, on the same dataset and backbone. Where this has fewer than 3, too, F1 may differ as two
    samples of as many test items do, and the other numbers must be equal up to rounding.

    Args:
        name: The name of a cell, such as `cora-gat-fgai-0`.
        folder: The folder of committed cells.
        settings: The device, and the epochs if the committed cell had other than the default ones.

    Returns:
        The numbers side by side.

    Raises:
        DataError: If the folder has no such cell, or the cell failed.
    """
    store = CellStore(folder)
    committed = read_rows(store.folder / f"{name}.json")
    if "none" not in {row.attack for row in committed if not any(one.error for one in committed)}:
        raise DataError(f"{folder} holds no finished cell {name[:100]!r}; `fgai bench PLAN --out {folder}` makes cells")
    first = committed[0]
    cell = Cell(first.dataset, first.backbone, first.method, first.seed, first.preset, first.inductive)
    attacks = tuple(row.attack for row in committed if row.attack != "none")
    with TemporaryDirectory() as scratch:
        *_, rows = rows_of_cell(cell, CellStore(scratch), replace(settings, attacks=attacks))
    again = {row.attack: row for row in rows}
    same, notes = _seeds_of_intervals(cell, store)
    comparisons = [
        Comparison(row.attack, metric, float(value), float(new), _allowed(same, row, metric))
        for row in committed
        for metric, value in row.metrics.items()
        if value is not None
        and (new := again[row.attack].metrics.get(metric)) is not None
        and not _redefined(row, metric)
    ]
    differences = [*_differences({row.attack: row for row in committed}, again), *notes]
    seconds = sum(row.seconds for row in again.values())
    return Verification(name, len(same), tuple(comparisons), tuple(differences), seconds)


def _seeds_of_intervals(cell: Cell, store: CellStore) -> tuple[list[dict[str, Row]], list[str]]:
    """The rows of all seeds that the intervals are made of, and a sentence if they are of another preset."""
    same, default = _all_seeds(cell, store), _all_seeds(replace(cell, preset="default"), store)
    if len(same) >= MIN_SEEDS or len(default) < MIN_SEEDS:
        return same, []
    return default, [f"the cell has {len(same)} of {MIN_SEEDS} seeds; its intervals are those of the default preset"]


def _all_seeds(cell: Cell, store: CellStore) -> list[dict[str, Row]]:
    """The rows of all seeds of a cell, by attack."""
    stem = cell.name.removesuffix(str(cell.seed))
    seeds = sorted(int(end) for path in store.folder.glob("*.json") if (end := _after(path.stem, stem)).isdecimal())
    cells = [store.rows(replace(cell, seed=seed)) for seed in seeds]
    return [{row.attack: row for row in rows} for rows in cells if not any(row.error for row in rows)]


def _after(name: str, start: str) -> str:
    """The rest of a name after its start; empty if it starts otherwise."""
    return name.removeprefix(start) if name.startswith(start) else ""


def _allowed(same: Sequence[Mapping[str, Row]], row: Row, metric: str) -> float:
    """How much two runs of a cell may differ in one metric."""
    from scipy.special import stdtrit  # slow to import; the quantile of Student's t

    level = (1 + SHOWN) / 2
    values = [rows[row.attack].metrics.get(metric) for rows in same if row.attack in rows]
    known = [float(value) for value in values if value is not None]
    if len(known) >= MIN_SEEDS:
        return float(stdtrit(len(known) - 1, level)) * math.sqrt(2) * stdev(known)
    if metric != "f1":
        return 0.0
    share = float(row.metrics["f1"] or 0)
    return NORMAL.inv_cdf(level) * math.sqrt(2 * share * (1 - share) / _test_items(row))


def _test_items(row: Row) -> int:
    data = datasets.load(row.dataset, seed=row.seed)
    mask = data.get("test_mask")
    return int(data.num_nodes or 1) if mask is None else int(mask.sum())


def _redefined(row: Row, metric: str) -> bool:
    """Whether the version that made a row defined a metric otherwise."""
    return metric in REDEFINED and _numbers(row.versions.get("fgai", "0")) <= _numbers(REDEFINED[metric])


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".") if part.isdecimal()]


def _differences(committed: Mapping[str, Row], again: Mapping[str, Row]) -> list[str]:
    """Sentences on what is not the same in two runs of one cell, apart from the numbers."""
    old, new = committed["none"], again["none"]
    sentences = [] if old.data_sha256 == new.data_sha256 else ["the data is not that of the committed run"]
    sentences += [
        f"{package} was {old.versions.get(package)} and is {version}"
        for package, version in new.versions.items()
        if old.versions.get(package) != version
    ]
    for attack, row in committed.items():
        what = "the method" if attack == "none" else f"the attack {attack}"
        if changes := _changes(row.settings, again[attack].settings):
            sentences.append(f"settings of {what}: {', '.join(changes)}")
        if gone := sorted(_numbers_of(row) - _numbers_of(again[attack])):
            sentences.append(f"the new run of {what} has no {', '.join(gone)}")
    redefined = sorted({metric for row in committed.values() for metric in row.metrics if _redefined(row, metric)})
    sentences += [
        f"{metric} was defined otherwise up to {REDEFINED[metric]}, and is not compared" for metric in redefined
    ]
    if more := sorted(new.metrics.keys() - old.metrics.keys()):
        sentences.append(f"the committed run has no {', '.join(more)}")
    return sentences


def _numbers_of(row: Row) -> set[str]:
    """The names of the metrics that have a number."""
    return {name for name, value in row.metrics.items() if value is not None}


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """The settings that differ, as `name: old -> new`."""
    names = [name for name in {**old, **new} if old.get(name, "none") != new.get(name, "none")]
    return [f"{name}: {old.get(name, 'none')} -> {new.get(name, 'none')}" for name in names]
