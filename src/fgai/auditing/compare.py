"""Several models under one budget, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn
from torch_geometric.data import Data

from fgai.adversaries import Adversary, NodeInjection
from fgai.auditing.audit import audit
from fgai.auditing.record import AuditReport, in_notebook, write
from fgai.calling import Call
from fgai.errors import SettingError
from fgai.files import jsonable
from fgai.metrics import g_tvd, top_overlap
from fgai.reading import Reading, read


@dataclass(frozen=True)
class Likeness:
    """How far a model still is the first one, on the clean graph, mean over nodes."""

    similarity: float  # V_5 of the explanations
    closeness: float  # total variation distance of the answers

    @classmethod
    def between(cls, first: Reading, other: Reading) -> Likeness:
        """Both models have read the same graph."""
        return cls(float(top_overlap(first.explanation, other.explanation).nanmean()), g_tvd(first, other))


@dataclass(frozen=True)
class Comparison:
    """Reports of several models, by name; the adversary, the budget and the seeds were the same for all."""

    reports: Mapping[str, AuditReport]
    likeness: Mapping[str, Likeness]  # of every model to the first

    def markdown(self) -> str:
        """One row per model, clean -> attacked."""
        columns = ("f1", "g_tvd", "g_jsd", "overlap", "f_slope_plus", "f_slope_minus", "nonuniformity")
        rows = [f"| model | verdict | {' | '.join(columns)} |", f"| --- | --- |{' --- |' * len(columns)}"]
        for name, report in self.reports.items():
            cells = [f"{report.clean[c]:.3g} → {report.attacked[c].mean:.3g}" for c in columns]
            rows.append(f"| {name} | {report.verdict.word} | {' | '.join(cells)} |")
        return "\n".join(rows) + "\n"

    def text(self) -> str:
        """Every report, one after the other."""
        return "\n\n".join(report.text() for report in self.reports.values())

    def json(self) -> str:
        """Everything, as JSON; numbers that are not finite become null."""
        return json.dumps(jsonable(asdict(self)), allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write to `.html` to look at, `.json`, `.md` or `.txt`."""
        write(self, path)

    def __str__(self) -> str:
        return self.markdown()

    def _repr_html_(self) -> str:
        return in_notebook(self)


def compare(
    models: Mapping[str, nn.Module],
    data: Data,
    by: Adversary = NodeInjection(),
    *,
    gain: str = "cross-entropy",
    seeds: int = 5,
    call: Call | None = None,
    show_nodes: Sequence[int] = (),
) -> Comparison:
    """Audit several models on one graph under one budget, each attacked through its own gradients.

    What is kept of the first model's neighbourhoods is kept of the others' too.
    """
    if not models:
        raise SettingError("no models to compare; give some by name, such as {'vanilla': model, 'fgai': faithful}")
    reports: dict[str, AuditReport] = {}
    for name, model in models.items():
        reference = next(iter(reports.values()), None)
        reports[name] = audit(
            model, data, by, gain=gain, seeds=seeds, call=call, name=name, show_nodes=show_nodes, reference=reference
        )
    first = read(next(iter(models.values())), data, call)
    return Comparison(reports, {n: Likeness.between(first, read(m, data, call)) for n, m in models.items()})
