"""The result of an audit, and the formats in which it is written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fgai.auditing.neighbourhood import Neighbourhood
from fgai.auditing.verdict import Verdict
from fgai.errors import DataError
from fgai.files import atomic_write, checked_suffix, jsonable
from fgai.metrics import METRICS
from fgai.readers import read_json
from fgai.records import record
from fgai.registry import Registry

WRITERS: Registry[Callable[[Any], str]] = Registry("format of a report")
WRITERS.add(".json", lambda found: found.json(), "everything, to be read back")
WRITERS.add(".md", lambda found: found.markdown(), "a table for a page")
WRITERS.add(".txt", lambda found: found.text(), "for the terminal")


def write(found: Any, path: str | Path) -> None:
    """Write a report or a comparison to a file, in the format that its name asks for."""
    path = Path(path)
    content = writer_for(path)(found)
    with atomic_write(path) as half:
        half.write_text(content + "\n", encoding="utf-8")


def writer_for(path: Path) -> Callable[[Any], str]:
    """The format that the name of a file asks for."""
    return WRITERS[checked_suffix(path, WRITERS, "a report")]


def in_notebook(found: Any) -> str:
    """The page of a report in a frame of its own, as notebooks show it."""
    page = escape(WRITERS[".html"](found))
    return f'<iframe sandbox="allow-scripts" srcdoc="{page}" width="100%" height="720" title="audit"></iframe>'


REMEDY = "AuditReport.save writes one to a .json file"
NEEDED = ("f1", "overlap", "g_tvd")  # metrics that every text and page names
NAME = 1_000  # characters of a name in a file
IDS = 2**53  # numbers of nodes lie below: a page could not tell larger ones apart
TOLD = ("0.001", "0.01", "0.05")  # radii of the certificate that the text names


@dataclass(frozen=True)
class Estimate:
    """A metric over seeds: mean, standard deviation, and a 95 % bootstrap interval of the mean."""

    mean: float
    deviation: float
    low: float
    high: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: list[float], resamples: int = 2_000) -> Estimate:
        """The figure of these values, one per seed; the resampling is seeded.

        >>> Estimate.of([0.2, 0.4]).mean
        0.30000000000000004
        """
        found = np.asarray(values, dtype=float)
        draws = np.random.default_rng(0).integers(len(found), size=(resamples, len(found)))
        low, high = np.percentile(found[draws].mean(axis=1), [2.5, 97.5])
        deviation = float(found.std(ddof=1)) if len(found) > 1 else 0.0
        return cls(float(found.mean()), deviation, float(low), float(high), tuple(map(float, found)))


@dataclass(frozen=True)
class NodeShift:
    """A node whose explanation moved: mean V_k and moved attention over seeds, and its answers."""

    node: int
    overlap: float
    shift: float
    answer: int | None  # none where the model answers for pairs of nodes
    answers_attacked: tuple[int, ...]


@dataclass(frozen=True)
class Curves:
    """F(r), the share of answers that stay right without the share r of all edges: clean, and mean over attacks.

    `most` deletes the most attended edges first (F+), `least` the least attended (F-).
    """

    shares: tuple[float, ...]
    clean: Mapping[str, tuple[float, ...]]
    attacked: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class AuditReport:
    """The answer to "can I trust this attention?" for one model, one graph and one adversary."""

    model: str
    graph: Mapping[str, int]
    adversary: Mapping[str, Any]
    gain: str
    seeds: int
    clean: Mapping[str, float]
    attacked: Mapping[str, Estimate]
    baselines: Mapping[str, float]
    certified: Mapping[str, float]  # radius -> share of nodes whose whole top 5 no perturbation of the attention moves
    curves: Curves
    moved: tuple[NodeShift, ...]
    views: tuple[Neighbourhood, ...]  # of the nodes that moved most, and of those asked for
    names: Mapping[str, str]  # of the nodes that are shown, if the graph has names
    verdict: Verdict
    versions: Mapping[str, str]
    guaranteed: Mapping[str, float] = field(
        default_factory=dict
    )  # radius -> the mean V_5 that no perturbation undercuts

    def worst(self, count: int = 10) -> tuple[NodeShift, ...]:
        """The nodes whose explanation moved most."""
        return self.moved[:count]

    def lines(self) -> list[tuple[str, str, str, str]]:
        """Metric, clean value, attacked value with its spread, direction: the body of every table."""
        return [
            (
                name,
                f"{self.clean[name]:.4g}",
                f"{figure.mean:.4g} ± {figure.deviation:.2g} [{figure.low:.4g}, {figure.high:.4g}]",
                METRICS[name].better,
            )
            for name, figure in self.attacked.items()
        ]

    @property
    def title(self) -> str:
        """What was audited, by what."""
        settings = ", ".join(
            f"{name}={value!s:.200}" for name, value in self.adversary.items() if name not in ("name", "seed")
        )
        return f"{self.model} under {self.adversary['name']}({settings}), gain {self.gain}, {self.seeds} seed(s)"

    @property
    def proved(self) -> str:
        """What is certain whatever the attack, in attention space."""
        shares = ", ".join(f"{self.certified[radius]:.1%} within {radius}" for radius in TOLD)
        return (
            f"Certified (exact, l1, attention space): the top 5 of nodes with more neighbours stays whole for {shares}"
        )

    def text(self) -> str:
        """For the terminal."""
        rows = [("", "clean", "attacked: mean ± deviation [95 %]", "better"), *self.lines()]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        body = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        reasons = map("  because {}".format, self.verdict.reasons)
        return "\n".join([self.title, f"Verdict: {self.verdict.word}", *reasons, *body, self.proved])

    def markdown(self) -> str:
        """For a page."""
        head = ["| metric | clean | attacked: mean ± deviation [95 %] | better |", "| --- | --- | --- | --- |"]
        reasons = "; ".join(self.verdict.reasons)
        rows = [f"| {' | '.join(row)} |" for row in self.lines()]
        return "\n".join([f"{self.title}\n\n**{self.verdict.word}**: {reasons}\n", *head, *rows, ""])

    def json(self) -> str:
        """Everything, as JSON; numbers that are not finite become null."""
        return json.dumps(jsonable(asdict(self)), allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write to `.html` to look at, `.json` (which `load` reads), `.md` or `.txt`."""
        write(self, path)

    @classmethod
    def load(cls, path: str | Path) -> AuditReport:
        """Read back what `save` wrote to a `.json` file."""
        report = record(cls, read_json(path, f"it holds no audit; {REMEDY}"), f"{path} holds no audit", REMEDY)
        if why := _wrong(report):
            raise DataError(f"{path} holds no audit ({why}); {REMEDY}")
        return report

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return in_notebook(self)


def _wrong(report: AuditReport) -> str:
    """What keeps a report from being told, drawn and written, if anything does."""
    nodes, strange = report.graph.get("nodes", -1), {*report.attacked} - {*METRICS}
    shown = [*report.moved, *report.views]
    named = [node for view in report.views for node in _named(view)]
    lengths = {len(curve) for part in (report.curves.clean, report.curves.attacked) for curve in part.values()}
    texts = [report.model, report.gain, *report.names.values(), *report.versions.values(), *report.versions]
    texts += [text for pair in report.adversary.items() for text in pair if isinstance(text, str)]
    tests = {
        "its graph has no number of nodes and edges": nodes < 0 or report.graph.get("edges", -1) < 0,
        "its adversary has no name": not isinstance(report.adversary.get("name"), str),
        f"{_some(strange)} is no metric here": bool(strange),
        "metrics are missing": not {*NEEDED} <= report.attacked.keys() <= report.clean.keys(),
        f"{report.seeds} seeds do not have a value each": any(
            len(figure.values) != report.seeds for figure in report.attacked.values()
        ),
        "curves are missing or of different lengths": any(
            {*part} != {"most", "least"} for part in (report.curves.clean, report.curves.attacked)
        )
        or lengths != {len(report.curves.shares)},
        "radii are missing": not {*TOLD} <= report.certified.keys()
        or any(not _is_number(radius) for radius in (*report.certified, *report.guaranteed)),
        "it shows nodes that the graph does not have": any(not 0 <= row.node < nodes for row in shown),
        "it names nodes by no number": any(not 0 <= node < IDS for node in named),
        "it links nodes that it does not show": any(
            not {*link[:2]} <= {view.node, *view.neighbours} for view in report.views for link in view.links
        ),
        "a node is shown twice": len({view.node for view in report.views}) < len(report.views),
        f"a name is longer than {NAME} characters": any(len(text) > NAME for text in texts),
    }
    return next((why for why, wrong in tests.items() if wrong), "")


def _named(view: Neighbourhood) -> tuple[int, ...]:
    ends = (end for link in view.links for end in link[:2])
    return (*view.neighbours, *view.top_before, *view.top_after, *ends)


def _some(names: set[str]) -> str:
    return f"{min(names, default='')[:60]!r}"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
