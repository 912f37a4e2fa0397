"""The result of an audit."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fgai.auditing.formats import notebook_html, write
from fgai.auditing.graph_view import GraphView
from fgai.auditing.neighbourhood import Neighbourhood
from fgai.errors import DataError, FGAIError
from fgai.faithfulness import Faithfulness
from fgai.files import jsonable, pandas_table
from fgai.grades import Grades, grade, grade_faithful
from fgai.metrics import METRICS
from fgai.metrics.explanation import TOP
from fgai.readers import read_json
from fgai.records import record

REMEDY = "AuditReport.save writes one to a .json file"
DECIDING_BASELINES = ("f1_largest_class", "g_tvd_uniform", "overlap_randomised")  # the grades need them
REQUIRED = ("f1", "overlap", "g_tvd")  # metrics that every text and page shows
FRAME = ("model", "metric", "clean", "attacked", "low", "high", "better")  # the columns of `to_frame`
NAME_LENGTH = 1_000  # maximum characters of a name in a file
MAX_NODE = 2**53  # node numbers are smaller: JavaScript cannot represent larger integers exactly
TEXT_RADII = ("0.001", "0.01", "0.05")  # radii of the certified shares in the text


@dataclass(frozen=True)
class Estimate:
    """A metric over seeds: mean, standard deviation, and a 95 % bootstrap interval of the mean."""

    mean: float
    deviation: float
    low: float
    high: float
    values: tuple[float, ...]

    def __repr__(self) -> str:
        spread = f" [{self.low:.4g}, {self.high:.4g}]" if len(self.values) > 1 else ""
        return f"{self.mean:.4g}{spread}"

    @classmethod
    def of(cls, values: list[float], resamples: int = 2_000) -> Estimate:
        """Estimate from one value per seed; the bootstrap is seeded.

        >>> Estimate.of([0.2, 0.4]).mean
        0.30000000000000004
        """
        sample = np.asarray(values, dtype=float)
        draws = np.random.default_rng(0).integers(len(sample), size=(resamples, len(sample)))
        low, high = np.percentile(sample[draws].mean(axis=1), [2.5, 97.5])
        deviation = float(sample.std(ddof=1)) if len(sample) > 1 else 0.0
        return cls(float(sample.mean()), deviation, float(low), float(high), tuple(map(float, sample)))


@dataclass(frozen=True)
class NodeShift:
    """How one node changed: mean V_k and mean change of attention over seeds, and its predictions."""

    node: int
    overlap: float
    shift: float
    answer: int | None  # predicted class on the clean graph; None if the model predicts for pairs of nodes
    answers_attacked: tuple[int, ...]

    def __repr__(self) -> str:
        classes = (
            "" if self.answer is None else f", class {self.answer} -> {', '.join(map(str, self.answers_attacked))}"
        )
        return f"NodeShift(node {self.node}: V_{TOP} {self.overlap:.3g}, shift {self.shift:.3g}{classes})"


@dataclass(frozen=True)
class Curves:
    """F(r), the share of predictions that stay correct when the share r of all edges is deleted.

    `clean` is on the clean graph, `attacked` the mean over attacks. `most` deletes the most attended edges first (F+),
    `least` the least attended (F-).
    """

    shares: tuple[float, ...]
    clean: Mapping[str, tuple[float, ...]]
    attacked: Mapping[str, tuple[float, ...]]

    def __repr__(self) -> str:
        return f"Curves(F+ and F- at {len(self.shares)} shares of deleted edges, clean and attacked)"


@dataclass(frozen=True)
class AuditReport:
    """The result of an audit: one model, one graph, one adversary.

    Attributes:
        model: Name of the model.
        graph: Number of nodes and edges.
        explanation: Name of the explanation.
        adversary: Name and settings of the adversary.
        gain: What the adversary maximised.
        seeds: Number of attacks.
        clean: Metrics on the clean graph.
        attacked: Metrics on the attacked graphs, over seeds.
        baselines: What random explanations, uniform attention and random parameters reach.
        certified: Share of nodes, by radius, whose whole top 5 no perturbation of the attention changes.
        curves: Deletion curves.
        moved: The nodes whose explanation changed most.
        views: Neighbourhoods of these nodes and of the requested ones.
        names: Names of the nodes in `views`, and `class_names` of the classes, if the graph has them; `types` if typed.
        faithfulness: The test of faithfulness; None if the model predicts for pairs of nodes.
        grades: Used, faithful, stable, each with its reason, and a summary line.
        notes: What the explanation omits, and what was not tested.
        versions: Versions of the packages.
        guaranteed: Mean V_5, by radius, below which no perturbation of the attention leads.
        graph_views: Graphs of a batch that changed most, and some others, if the model answers for graphs.
    """

    model: str
    graph: Mapping[str, int]
    explanation: str
    adversary: Mapping[str, Any]
    gain: str
    seeds: int
    clean: Mapping[str, float]
    attacked: Mapping[str, Estimate]
    baselines: Mapping[str, float]
    certified: Mapping[str, float]
    curves: Curves
    moved: tuple[NodeShift, ...]
    views: tuple[Neighbourhood, ...]
    names: Mapping[str, str]
    faithfulness: Faithfulness | None
    grades: Grades
    notes: tuple[str, ...]
    versions: Mapping[str, str]
    guaranteed: Mapping[str, float] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    graph_views: tuple[GraphView, ...] = ()

    def worst(self, count: int = 10) -> tuple[NodeShift, ...]:
        """The nodes whose explanation changed most."""
        return self.moved[:count]

    def lines(self) -> list[tuple[str, str, str, str, str]]:
        """The rows of a table: metric, clean value, mean attacked value, change, better direction.

        With several seeds, the attacked value has a 95 % interval of the mean. Metrics of the released code are left
        out; `attacked` has them.
        """
        rows = []
        for name, value in self.attacked.items():
            if not name.endswith("_released"):
                spread = f" [{value.low:.4g}, {value.high:.4g}]" if self.seeds > 1 else ""
                change = f"{value.mean - self.clean[name]:+.3g}"
                better = METRICS[name].better
                rows.append((name, f"{self.clean[name]:.4g}", f"{value.mean:.4g}{spread}", change, better))
        return rows

    def to_frame(self) -> Any:
        """Return a pandas table with a row per metric: clean value, attacked mean, 95 % interval, better direction.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return pandas_table(FRAME, self.frame_rows(self.model))

    def frame_rows(self, model: str) -> list[tuple[Any, ...]]:
        """The rows of `to_frame`, with this name."""
        return [
            (model, name, self.clean[name], value.mean, value.low, value.high, METRICS[name].better)
            for name, value in self.attacked.items()
        ]

    @property
    def head(self) -> tuple[str, str, str, str, str]:
        """The heads of the columns of `lines`."""
        return "metric", "clean", "attacked [95 %]" if self.seeds > 1 else "attacked", "change", "better"

    @property
    def attack(self) -> str:
        """The name of the threat model, or of the adversary."""
        return str(self.adversary.get("threat", self.adversary["name"]))

    @property
    def title(self) -> str:
        """The model, the explanation, the adversary with its settings that are not off, the gain and the seeds."""
        chosen = {k: v for k, v in self.adversary.items() if k not in ("name", "threat", "seed") and v is not False}
        attack = f"{self.attack}({', '.join(f'{name}={value!s:.200}' for name, value in chosen.items())})"
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.model}, explanation '{self.explanation}', under {attack}, gain {self.gain}, {seeds}"

    @property
    def proved(self) -> str:
        """A sentence with the certified shares, which hold for any attack in attention space."""
        shares = ", ".join(f"{self.certified[radius]:.1%} within {radius}" for radius in TEXT_RADII)
        what = "the top 5 of nodes with more neighbours stays whole"
        return f"Certified (exact, l1, attention of the last layer): {what} for {shares}"

    def text(self) -> str:
        """The report as text for a terminal."""
        rows = [self.head, *self.lines()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.head))]
        body = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        grades = [f"  {name:<8}  {one.value:<12}  {one.sentence}" for name, one in self.grades.items()]
        notes = [f"Note: {note}." for note in self.notes]
        return "\n".join([self.title, self.answer, *grades, "", *body, "", self.proved, *notes])

    @property
    def answer(self) -> str:
        """One line: can the explanation be trusted? If there are no grades, with the reason."""
        if self.grades.items():
            return f"Can it be trusted? {self.grades.answer.capitalize()}."
        return self.grades.line

    def markdown(self) -> str:
        """The report as Markdown."""
        head = [f"| {' | '.join(self.head)} |", f"|{' --- |' * len(self.head)}"]
        grades = [f"- **{name}**: {one.value}. {one.sentence}" for name, one in self.grades.items()]
        rows = [f"| {' | '.join(row)} |" for row in self.lines()]
        notes = [f"- {note}" for note in self.notes]
        return "\n".join([f"{self.title}\n\n**{self.answer}**\n", *grades, "", *head, *rows, "", *notes, ""])

    def json(self) -> str:
        """The report as JSON; numbers that are not finite become null."""
        return json.dumps(jsonable(asdict(self)), allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write to `.html`, `.json` (which `load` reads), `.md` or `.txt`."""
        write(self, path)

    @classmethod
    def load(cls, path: str | Path) -> AuditReport:
        """Load a report that `save` wrote to a `.json` file."""
        report = record(cls, read_json(path, f"it holds no audit; {REMEDY}"), f"{path} holds no audit", REMEDY)
        if why := _first_problem(report):
            raise DataError(f"{path} holds no audit ({why}); {REMEDY}")
        return report

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        numbers = f"F1 {self.clean['f1']:.3f} -> {self.attacked['f1'].mean:.3f} under {self.attack}"
        return f"AuditReport({self.model}: trusted {self.grades.answer}, {numbers})"

    def _repr_html_(self) -> str:
        return notebook_html(self)


def _first_problem(report: AuditReport) -> str:
    """The first reason why a loaded report cannot be shown, or an empty string."""
    nodes, unknown = report.graph.get("nodes", -1), {*report.attacked} - {*METRICS}
    rows = [*report.moved, *report.views]
    mentioned = [node for view in report.views for node in view.mentioned_nodes()]
    lengths = {len(curve) for part in (report.curves.clean, report.curves.attacked) for curve in part.values()}
    texts = [
        report.model,
        report.gain,
        *report.names.values(),
        *report.class_names,
        *report.versions.values(),
        *report.versions,
    ]
    texts += [report.explanation, *report.notes, report.grades.line, *(g.sentence for _, g in report.grades.items())]
    texts += [text for pair in report.adversary.items() for text in pair if isinstance(text, str)]
    tests = {
        "its graph has no number of nodes and edges": nodes < 0 or report.graph.get("edges", -1) < 0,
        "its adversary has no name": not isinstance(report.adversary.get("name"), str),
        f"{min(unknown, default='')[:60]!r} is not a metric": bool(unknown),
        "metrics are missing": not {*REQUIRED} <= report.attacked.keys() <= report.clean.keys(),
        "a number that decides the grades is missing": not {*DECIDING_BASELINES} <= report.baselines.keys()
        or any(not _is_number(str(report.baselines.get(name))) for name in ("f1_largest_class", "g_tvd_uniform")),
        f"{report.seeds} seeds do not have a value each": any(
            len(value.values) != report.seeds for value in report.attacked.values()
        ),
        "curves are missing or of different lengths": any(
            {*part} != {"most", "least"} for part in (report.curves.clean, report.curves.attacked)
        )
        or lengths != {len(report.curves.shares)},
        "radii are missing": not {*TEXT_RADII} <= report.certified.keys()
        or any(not _is_number(radius) for radius in (*report.certified, *report.guaranteed)),
        "it shows nodes that the graph does not have": any(not 0 <= row.node < nodes for row in rows),
        "a node number is out of range": any(not 0 <= node < MAX_NODE for node in mentioned),
        "it links nodes that it does not show": any(
            not {*link[:2]} <= {view.node, *view.neighbours} for view in report.views for link in view.links
        ),
        "a node or a graph is shown twice": len({view.node for view in report.views}) < len(report.views)
        or len({view.graph for view in report.graph_views}) < len(report.graph_views),
        "its grades do not follow from its numbers": not _grades_follow(report),
        f"a name is longer than {NAME_LENGTH} characters": any(len(text) > NAME_LENGTH for text in texts),
    }
    problems = [view.problem(report.graph, MAX_NODE) for view in report.graph_views]
    return next((why for why in (*(why for why, wrong in tests.items() if wrong), *problems) if why), "")


def _grades_follow(report: AuditReport) -> bool:
    """Whether the grades of a loaded report are those of its numbers."""
    tested, means = report.faithfulness, {name: value.mean for name, value in report.attacked.items()}
    graded = {name: one.value for name, one in report.grades.items()}
    doubt = "of the attack" if graded.get("stable") == "unknown" else ""  # it makes no grade better
    try:
        again = grade(report.clean, means, report.baselines, tested.grade if tested else None, "", doubt=doubt)
    except (FGAIError, KeyError):
        return False
    if tested and tested.grade.value not in ("unknown", grade_faithful(tested.necessity, tested.against_least).value):
        return False
    return graded == {name: one.value for name, one in again.items()} and report.grades.answer == again.answer


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
