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
            f"{name}={value}" for name, value in self.adversary.items() if name not in ("name", "seed")
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
        try:
            raw = _with_nan(json.loads(Path(path).read_text()))
            raw["attacked"] = {
                name: Estimate(**{**figure, "values": tuple(figure["values"])})
                for name, figure in raw["attacked"].items()
            }
            raw["moved"] = tuple(
                NodeShift(**{**row, "answers_attacked": tuple(row["answers_attacked"])}) for row in raw["moved"]
            )
            raw["curves"] = Curves(**{name: _tuples(part) for name, part in raw["curves"].items()})
            raw["views"] = tuple(Neighbourhood(**{k: _tuples(v) for k, v in view.items()}) for view in raw["views"])
            raw["verdict"] = Verdict(raw["verdict"]["word"], tuple(raw["verdict"]["reasons"]))
            return cls(**raw)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path} holds no audit ({error!r}); AuditReport.save writes one") from error

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return in_notebook(self)


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    if isinstance(value, dict):
        return {name: _tuples(part) for name, part in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _with_nan(raw: dict[str, Any]) -> dict[str, Any]:
    """Nulls among the figures are numbers that were not finite."""
    for part in (raw["clean"], raw["baselines"], *raw["attacked"].values()):
        part.update({name: math.nan for name, value in part.items() if value is None})
    for curves in (raw["curves"]["clean"], raw["curves"]["attacked"]):
        curves.update({name: [math.nan if y is None else y for y in curve] for name, curve in curves.items()})
    for figure in raw["attacked"].values():
        figure["values"] = [math.nan if value is None else value for value in figure["values"]]
    return raw
