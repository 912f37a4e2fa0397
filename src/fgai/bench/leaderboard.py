"""The leaderboard: one entry for each model and threat model, from the files in `results/` alone."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from fgai.adversaries import THREATS
from fgai.bench.findings import Graded, Proved, read_findings
from fgai.bench.plan import INDUCTIVE, Cell, Plan, plans
from fgai.bench.results import Row, read_rows
from fgai.bench.tables import spread, worst_rows
from fgai.bench.winners import Standing, standings

AUDITED = "injection-20x20"  # the attack of `fgai audit`, under which `results/faithful.json` grades stability
GROUPS = 11  # of the votes whose proofs are shown
RANKED = {"clean": True, "attacked": True, "g_jsd": False, "overlap": True, "g_tvd": False}  # whether higher is better
LOGARITHMIC = {"g_jsd": 1e-9}  # its values differ by orders of magnitude, so ratios are compared; at least this
DIGITS = {"g_jsd": ".1e", "median_radius": ".1e", "seconds": ".0f", "attack_seconds": ".0f", "peak_mb": ".0f"}
MASKED = {  # methods that fail the rule on gradients, and why
    "gnnguard": "It prunes the links of injected nodes, and then the attack has no gradient. The score measures masked "
    "gradients, not robustness."
}
GRADES = ("supported", "contradicted", "unknown")
Model = tuple[str, str, str]  # dataset, backbone, method with its preset
BySeed = dict[int, float]
F = TypeVar("F", Graded, Proved)


@dataclass(frozen=True)
class Entry:
    """One model under one threat model.

    Attributes:
        numbers: Numbers by column and seed.
        standings: The places of the ranked columns among the methods with the same dataset, backbone and threat.
        rows: The rows of the cells, clean and attacked; empty if only grades or proofs are known.
        grades: The faithfulness grades of the audited models.
    """

    dataset: str
    backbone: str
    method: str
    threat: str
    numbers: Mapping[str, BySeed]
    rows: Sequence[Row] = ()
    grades: Sequence[str] = ()
    standings: Mapping[str, Standing] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """What the model answers for: nodes, links or graphs."""
        kind = self.backbone.rpartition("-")[2]
        return kind if kind in ("links", "graphs") else "nodes"

    @property
    def warning(self) -> str:
        """Why the scores of the row say nothing about robustness; empty if they do."""
        return MASKED.get(self.method, "")

    @property
    def model(self) -> Model:
        """Dataset, backbone and method."""
        return self.dataset, self.backbone, self.method

    @property
    def seeds(self) -> list[int]:
        """The seeds of the trained models."""
        return sorted({seed for by_seed in self.numbers.values() for seed in by_seed})

    def value(self, column: str) -> float | None:
        """The mean over seeds; None if nothing is known."""
        return mean(self.numbers[column].values()) if self.numbers.get(column) else None

    def text(self, column: str) -> str:
        """Mean and deviation over seeds, or counts for grades."""
        if column == "faithful":
            return ", ".join(f"{self.grades.count(name)} {name}" for name in GRADES if name in self.grades) or "-"
        known = [*self.numbers.get(column, {}).values()]
        if column in ("used", "stable"):
            return f"{sum(known):.0f} of {len(known)}" if known else "-"
        return spread(known, DIGITS.get(column, ".3f"))

    def files(self, folder: Path) -> list[str]:
        """The files in `results/` behind the entry, with the worst perturbations of its models if they are kept."""
        cells = [_cell(row).name for row in self.rows if row.attack == "none"]
        worst = [f"perturbations/{name}.safetensors" for name in cells]
        names = [f"cells/{name}.json" for name in cells] + [name for name in worst if (folder / name).exists()]
        names += ["faithful.json"] * bool(self.grades)
        return [*names, *["certified.json"] * ("deletions" in self.numbers or "votes" in self.numbers)]


class Leaderboard:
    """All entries of a folder of results.

    Args:
        folder: A folder with `cells/`, and `faithful.json` and `certified.json` if there are any.

    Example:
        >>> import tempfile
        >>> from fgai.bench import write_rows
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for attack, f1 in (("none", 0.9), ("ensemble", 0.8)):
        ...         row = Row("cora", "gat", "fgai", 0, {"f1": f1}, attack=attack)
        ...         write_rows(Path(folder) / "cells" / "cora-gat-fgai-0.json", [row])
        ...     (entry,) = Leaderboard(folder).entries
        >>> entry.threat, entry.text("clean"), entry.text("attacked")
        ('ensemble', '0.900', '0.800')
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @cached_property
    def entries(self) -> list[Entry]:
        """The entries with their standings, by task, dataset, backbone and threat; the best attacked score first."""
        cells = self._rows()
        grades = _by_model(
            row for row in read_findings(Graded, self.folder / "faithful.json") if row.explanation == "tree"
        )
        proofs = _by_model(read_findings(Proved, self.folder / "certified.json"))
        entries = []
        for model in sorted({*cells, *grades, *proofs}):
            rows = cells.get(model, [])
            known = _about_model(rows, grades.get(model, []), proofs.get(model, []))
            named = tuple(row.faithful for row in grades.get(model, []) if row.faithful)
            threats = dict.fromkeys(row.attack for row in rows if row.attack != "none" and "budget" not in row.settings)
            if threats:
                own = {name: _attacked(rows, name) for name in threats}
            elif model in grades:
                own = {AUDITED: _audited(grades[model])}
            else:
                own = {"none": {} if rows else _certified(proofs[model])}
            for name, numbers in own.items():
                used = (*worst_rows(rows, "none"), *worst_rows(rows, name))
                entries.append(Entry(*model, name, _known(known | numbers), used, named))
        return sorted(_ranked(entries), key=_order)

    def _rows(self) -> dict[Model, list[Row]]:
        by_model: dict[Model, list[Row]] = defaultdict(list)
        for path in sorted((self.folder / "cells").glob("*.json")):
            for row in read_rows(path):
                if not row.error:
                    by_model[row.dataset, row.backbone, _cell(row).label].append(row)
        return by_model


def command(entry: Entry) -> str:
    """The command that makes the numbers of an entry.

    >>> command(Entry("amazon-photo", "gat", "fgai:paper", "ensemble", {}, [Row("amazon-photo", "gat", "fgai", 0, {})]))
    'fgai bench ablation --only dataset=amazon-photo --only backbone=gat --only method=fgai --only preset=paper'
    """
    if not entry.rows:
        script = "faithful.py" if entry.grades else "certified.py --methods " + entry.method
        return f"python benchmarks/{script}"
    method = entry.method.removesuffix(INDUCTIVE)
    name, _, preset = method.partition(":")
    only = {"dataset": entry.dataset, "backbone": entry.backbone, "method": name, "preset": preset}
    cell = " ".join(f"--only {part}={text}" for part, text in only.items() if text)
    line, inductive = (entry.dataset, entry.backbone, method), method != entry.method
    named = [plan for plan in _plans() if plan.inductive == inductive and line in plan.lines()]
    named.sort(key=lambda plan: -plan.seeds[entry.dataset])
    attacked = [plan for plan in named if entry.threat in plan.attacks]
    if attacked:
        return f"fgai bench {attacked[0].name} {cell}"
    if named:
        return f"fgai bench {named[0].name}.toml {cell}, after a column of {entry.threat} is added to the plan"
    return f"fgai bench PLAN.toml {cell}, with a plan that names this method"


def settings(rows: Iterable[Row]) -> str:
    """The settings that all rows share, as JSON; those that differ by seed are left out."""
    by_row = [dict(row.settings) for row in rows]
    shared = {name: value for name, value in by_row[0].items() if all(one.get(name) == value for one in by_row)}
    return json.dumps({name: value for name, value in shared.items() if name != "seed"}, sort_keys=True)


@cache
def _plans() -> list[Plan]:
    return [Plan.read(name) for name in plans()]


def _by_model(rows: Iterable[F]) -> dict[Model, list[F]]:
    by_model: dict[Model, list[F]] = defaultdict(list)
    for row in rows:
        by_model[row.dataset, row.backbone, row.method].append(row)
    return by_model


def _cell(row: Row) -> Cell:
    return Cell(row.dataset, row.backbone, row.method, row.seed, row.preset, row.inductive)


def _score(row: Row) -> float | None:
    """ROC-AUC for links, else micro-F1."""
    return row.metrics.get("auc" if row.backbone.endswith("-links") else "f1")


def _by_seed(rows: Iterable[Row], name: str) -> BySeed:
    pairs = ((row.seed, row.metrics.get(name)) for row in rows)
    return {seed: value for seed, value in pairs if value is not None}


def _scores(rows: Iterable[Row]) -> BySeed:
    return {row.seed: value for row in rows if (value := _score(row)) is not None}


def _attacked(rows: Sequence[Row], threat: str) -> dict[str, BySeed]:
    """The numbers of a model under one threat."""
    attacked = worst_rows(rows, threat)
    clean, scores = _scores(row for row in rows if row.attack == "none"), _scores(attacked)
    metrics = ("g_jsd", "g_tvd", "overlap", "f_slope_plus", "f_slope_minus")
    return {
        "attacked": scores,
        "lost": {seed: clean[seed] - value for seed, value in scores.items() if seed in clean},
        "attack_seconds": {row.seed: row.seconds for row in attacked},
        **{name: _by_seed(attacked, name) for name in metrics},
    }


def _about_model(rows: Sequence[Row], grades: Sequence[Graded], proofs: Sequence[Proved]) -> dict[str, BySeed]:
    """The numbers of a model that no threat changes."""
    clean = [row for row in rows if row.attack == "none"]
    numbers = {name: _by_seed(clean, name) for name in ("nonuniformity", "share_0.01", "median_radius")}
    numbers |= {f"{name}_clean": _by_seed(clean, name) for name in ("f_slope_plus", "f_slope_minus")}
    numbers |= {"clean": _scores(clean), "seconds": {row.seed: row.seconds for row in clean}}
    numbers |= {"peak_mb": {row.seed: row.peak_mb for row in clean}}
    for name in ("used", "stable", "necessity", "against_least"):
        numbers[name] = {row.seed: float(getattr(row, name)) for row in grades if getattr(row, name) is not None}
    numbers["faithful"] = {row.seed: float(row.faithful == "supported") for row in grades if row.faithful}
    numbers["deletion"] = {row.seed: min(row.necessity, row.against_least) for row in grades}
    numbers["overlap_tree"] = {row.seed: row.overlap for row in grades}
    for column, against, groups, budget in (
        ("votes", "links", GROUPS, 1),
        ("votes_5", "links", GROUPS, 5),
        ("deletions", "deletions", 1, 1),
        ("injection", "injection-realistic", 1, 1),
    ):
        asked = (against, groups, budget)
        same = [row for row in proofs if (row.against, row.groups, row.budget) == asked]
        numbers[column] = {row.seed: row.certified_and_right for row in same}
    return numbers


def _known(numbers: Mapping[str, BySeed]) -> dict[str, BySeed]:
    """The columns with a number, without what is not known."""
    columns = {name: {s: v for s, v in by_seed.items() if math.isfinite(v)} for name, by_seed in numbers.items()}
    return {name: by_seed for name, by_seed in columns.items() if by_seed}


def _audited(grades: Sequence[Graded]) -> dict[str, BySeed]:
    """The numbers of a model that was audited but is no cell of a table."""
    return {
        "clean": {row.seed: row.f1 for row in grades},
        "attacked": {row.seed: row.f1_attacked for row in grades},
        "lost": {row.seed: row.f1 - row.f1_attacked for row in grades},
        "g_tvd": {row.seed: row.g_tvd for row in grades},
    }


def _certified(proofs: Sequence[Proved]) -> dict[str, BySeed]:
    """The numbers of a model about which there are only proofs."""
    return {"clean": {row.seed: row.plain for row in proofs}}


def _ranked(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with their standings."""
    groups: dict[tuple[str, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.dataset, entry.backbone, entry.threat].append(entry)
    ranked: list[Entry] = []
    for same in groups.values():
        placed = {
            column: standings({e.method: _comparable(e, column) for e in same if not e.warning}, higher=higher)
            for column, higher in RANKED.items()
        }
        for one in same:
            own = {column: by_method[one.method] for column, by_method in placed.items() if one.method in by_method}
            ranked.append(replace(one, standings=own))
    return ranked


def _comparable(entry: Entry, column: str) -> BySeed:
    """The numbers by which methods are compared: logarithms to base 10 where ratios count."""
    by_seed, least = entry.numbers.get(column, {}), LOGARITHMIC.get(column)
    return by_seed if least is None else {seed: math.log10(max(value, least)) for seed, value in by_seed.items()}


def _order(entry: Entry) -> tuple[Any, ...]:
    threats = ["none", *THREATS]
    task = ("nodes", "links", "graphs").index(entry.task)
    place = threats.index(entry.threat) if entry.threat in threats else len(threats)
    return task, entry.dataset, entry.backbone, place, -(entry.value("attacked") or 0.0), entry.method
