"""Audits of several models under one budget."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn
from torch_geometric.data import Data

from fgai.adversaries import Adversary, NodeInjection
from fgai.auditing.audit import audit
from fgai.auditing.record import AuditReport, notebook_html, write
from fgai.calling import Call
from fgai.errors import SettingError
from fgai.files import jsonable
from fgai.metrics import g_tvd, top_overlap
from fgai.reading import Reading, read


@dataclass(frozen=True)
class Agreement:
    """How close a model is to the first one on the clean graph, mean over nodes."""

    similarity: float  # V_5 of the explanations
    closeness: float  # total variation distance of the predictions

    @classmethod
    def between(cls, first: Reading, other: Reading) -> Agreement:
        """Compare the readings of two models on the same graph."""
        return cls(float(top_overlap(first.explanation, other.explanation).nanmean()), g_tvd(first, other))


@dataclass(frozen=True)
class Comparison:
    """Reports of several models, by name, under the same adversary, budget and seeds."""

    reports: Mapping[str, AuditReport]
    agreement: Mapping[str, Agreement]  # of each model to the first

    def markdown(self) -> str:
        """One row per model, clean -> attacked."""
        columns = ("f1", "g_tvd", "g_jsd", "overlap", "f_slope_plus", "f_slope_minus", "nonuniformity")
        rows = [f"| model | verdict | {' | '.join(columns)} |", f"| --- | --- |{' --- |' * len(columns)}"]
        for name, report in self.reports.items():
            cells = [f"{report.clean[c]:.3g} → {report.attacked[c].mean:.3g}" for c in columns]
            rows.append(f"| {name} | {report.verdict.word} | {' | '.join(cells)} |")
        return "\n".join(rows) + "\n"

    def text(self) -> str:
        """The text of all reports."""
        return "\n\n".join(report.text() for report in self.reports.values())

    def json(self) -> str:
        """The comparison as JSON; numbers that are not finite become null."""
        return json.dumps(jsonable(asdict(self)), allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write to `.html`, `.json`, `.md` or `.txt`."""
        write(self, path)

    def __str__(self) -> str:
        return self.markdown()

    def _repr_html_(self) -> str:
        return notebook_html(self)


def compare(
    models: Mapping[str, nn.Module],
    data: Data,
    by: Adversary = NodeInjection(),
    *,
    gain: str = "cross-entropy",
    seeds: int = 5,
    call: Call | Mapping[str, Call | None] | None = None,
    show_nodes: Sequence[int] = (),
) -> Comparison:
    """Audit several models on one graph under one budget. Each is attacked through its own gradients.

    Args:
        models: Models by name. The first one is the reference: the others are compared with it, and their reports
            contain the same neighbourhoods.
        data: The graph.
        by: The adversary.
        gain: What the adversary maximises, a name in `fgai.adversaries.GAINS`.
        seeds: Number of attacks per model.
        call: How to call the models, or one call per name; by default, by the signature of `forward`.
        show_nodes: Nodes whose neighbourhoods the reports must contain.

    Returns:
        A report per model, and how close each model is to the first.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> models = {f"seed {seed}": backbones.build("gat", data, seed=seed) for seed in (0, 1)}
    >>> comparison = compare(models, data, NodeInjection(nodes=2, edges=5, steps=1), seeds=1)
    >>> list(comparison.reports), comparison.agreement["seed 0"].similarity
    (['seed 0', 'seed 1'], 1.0)
    """
    if not models:
        raise SettingError("no models to compare; give them by name, such as {'vanilla': model, 'fgai': faithful}")
    calls = call if isinstance(call, Mapping) else dict.fromkeys(models, call)
    reports: dict[str, AuditReport] = {}
    for name, model in models.items():
        reference = next(iter(reports.values()), None)
        reports[name] = audit(
            model,
            data,
            by,
            gain=gain,
            seeds=seeds,
            call=calls.get(name),
            name=name,
            show_nodes=show_nodes,
            reference=reference,
        )
    readings = {name: read(model, data, calls.get(name)) for name, model in models.items()}
    first = next(iter(readings.values()))
    return Comparison(reports, {name: Agreement.between(first, reading) for name, reading in readings.items()})
