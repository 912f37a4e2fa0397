"""Audits of several models under one budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from torch_geometric.data import Data

from fgai.adversaries import Adversary, Threat
from fgai.auditing.audit import audit
from fgai.auditing.formats import notebook_html, write
from fgai.auditing.record import FRAME, AuditReport
from fgai.calling import Call
from fgai.checks import GraphInput, one_graph
from fgai.errors import SettingError
from fgai.explanations import compare_nodes
from fgai.files import jsonable, pandas_table
from fgai.grades import GRADES
from fgai.metrics import g_tvd, top_overlap
from fgai.reading import open_reader
from fgai.trial import Trial, clean_trial

COLUMNS = {"f1": "F1", "overlap": "V_5", "g_tvd": "g-TVD"}  # the metrics of the table


@dataclass(frozen=True)
class Agreement:
    """How close a model is to the first one on the clean graph, mean over nodes."""

    similarity: float  # V_5 of the explanations
    closeness: float  # total variation distance of the predictions

    @classmethod
    def between(cls, first: Trial, other: Trial) -> Agreement:
        """Compare two models on the same clean graph."""
        if first.layers is not None and other.layers is not None:
            overlap = top_overlap(first.layers[0], other.layers[0])
        else:
            overlap = compare_nodes(first.attribution, other.attribution, first.nodes).overlap
        return cls(float(overlap.nanmean()), g_tvd(first.clean, other.clean))


@dataclass(frozen=True)
class Comparison:
    """Reports of several models, by name, under the same adversary, budget and seeds."""

    reports: Mapping[str, AuditReport]
    agreement: Mapping[str, Agreement] = field(default_factory=dict)  # of each model to the first, if it was measured

    def table(self) -> list[tuple[str, ...]]:
        """One row per model: the grades, and main metrics on the clean and the attacked graph."""
        rows: list[tuple[str, ...]] = [("model", "trusted", *GRADES, *COLUMNS.values())]
        for name, report in self.reports.items():
            grades = dict(report.grades.items())
            values = [grades[name].value if name in grades else "-" for name in GRADES]
            changes = [f"{report.clean[metric]:.3f} → {report.attacked[metric].mean:.3f}" for metric in COLUMNS]
            rows.append((name, report.grades.answer, *values, *changes))
        return rows

    def markdown(self) -> str:
        """One row per model, clean → attacked."""
        head, *rows = [f"| {' | '.join(row)} |" for row in self.table()]
        return "\n".join([head, f"|{' --- |' * len(self.table()[0])}", *rows]) + "\n"

    def text(self) -> str:
        """The text of all reports."""
        return "\n\n".join(report.text() for report in self.reports.values())

    def to_frame(self) -> Any:
        """Return a pandas table with a row per model and metric, see `AuditReport.to_frame`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return pandas_table(FRAME, [row for name, report in self.reports.items() for row in report.frame_rows(name)])

    def json(self) -> str:
        """The comparison as JSON; numbers that are not finite become null."""
        return json.dumps(jsonable(asdict(self)), allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write to `.html`, `.json`, `.md` or `.txt`."""
        write(self, path)

    def __str__(self) -> str:
        """The table with aligned columns, and for each model the reasons of its grades."""
        rows = self.table()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in rows]
        reasons = [f"{name}: {report.grades.line}" for name, report in self.reports.items()]
        return "\n".join([*lines, "", *reasons])

    def __repr__(self) -> str:
        return f"Comparison({', '.join(f'{name}: {report.grades.answer}' for name, report in self.reports.items())})"

    def _repr_html_(self) -> str:
        return notebook_html(self)


def compare(
    models: Mapping[str, nn.Module],
    data: GraphInput,
    by: Adversary | Threat | str | None = None,
    *,
    explanation: str = "tree",
    gain: str | None = None,
    seeds: int = 5,
    sample: int = 500,
    call: Call | Mapping[str, Call | None] | None = None,
    show_nodes: Sequence[int] = (),
) -> Comparison:
    """Audit several models on one graph under one budget. Each is attacked through its own gradients.

    Args:
        models: Models by name. The first one is the reference: the others are compared with it, and their reports
            contain the same neighbourhoods.
        data: The graph, or a batch of graphs, see `audit`.
        by: The adversary, or the name of a threat model; the one of `audit` by default.
        explanation: Name of the explanation, see `audit`.
        gain: What the adversary maximises, a name in `fgai.adversaries.GAINS`, see `audit`.
        seeds: Number of attacks per model.
        sample: Number of nodes or graphs in the test of faithfulness, see `audit`.
        call: How to call the models, or one call per name; by default, by the signature of `forward`.
        show_nodes: Nodes whose neighbourhoods the reports must contain.

    Returns:
        A report per model, and how close each model is to the first.

    >>> from fgai import NodeInjection, backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> models = {f"seed {seed}": backbones.build("gat", data, seed=seed) for seed in (0, 1)}
    >>> comparison = compare(models, data, NodeInjection(nodes=2, edges=5, steps=1), seeds=1)
    >>> list(comparison.reports), comparison.agreement["seed 0"].similarity
    (['seed 0', 'seed 1'], 1.0)
    """
    if not models:
        raise SettingError("no models to compare; give them by name, such as {'vanilla': model, 'fgai': faithful}")
    data = one_graph(data)
    calls = call if isinstance(call, Mapping) else dict.fromkeys(models, call)
    if unknown := [name for name in calls if name not in models]:
        raise SettingError(f"call has {unknown}, and the models are {list(models)}; give a call by the name of a model")
    reports: dict[str, AuditReport] = {}
    for name, model in models.items():
        reference = next(iter(reports.values()), None)
        reports[name] = audit(
            model,
            data,
            by,
            explanation=explanation,
            gain=gain,
            seeds=seeds,
            sample=sample,
            call=calls.get(name),
            name=name,
            show_nodes=show_nodes,
            reference=reference,
        )
    trials = {name: _clean_trial(model, data, explanation, calls.get(name)) for name, model in models.items()}
    first = next(iter(trials.values()))
    return Comparison(reports, {name: Agreement.between(first, trial) for name, trial in trials.items()})


def _clean_trial(model: nn.Module, data: Data, explanation: str, call: Call | None) -> Trial:
    """The trial of the clean graph, with its explanation."""
    with open_reader(model, call) as read:
        trial = clean_trial(read, data, explanation)
        trial.attribution  # noqa: B018, computed while the reader is open
    return trial
