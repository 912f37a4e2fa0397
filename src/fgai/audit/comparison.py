"""Several models under one budget, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn
from torch_geometric.data import Data

from fgai.adversary import Adversary, NodeInjection
from fgai.audit.record import AuditReport
from fgai.audit.run import audit
from fgai.reading import Call


@dataclass(frozen=True)
class Comparison:
    """Reports of several models, by name; the adversary, the budget and the seeds were the same for all."""

    reports: Mapping[str, AuditReport]

    def markdown(self) -> str:
        """One row per model, clean -> attacked."""
        columns = ("f1", "g_tvd", "g_jsd", "overlap", "f_slope_plus", "f_slope_minus", "nonuniformity")
        rows = [f"| model | verdict | {' | '.join(columns)} |", f"| --- | --- |{' --- |' * len(columns)}"]
        for name, report in self.reports.items():
            cells = [f"{report.clean[c]:.3g} → {report.attacked[c].mean:.3g}" for c in columns]
            rows.append(f"| {name} | {report.verdict.word} | {' | '.join(cells)} |")
        return "\n".join(rows) + "\n"

    def __str__(self) -> str:
        return self.markdown()


def compare(
    models: Mapping[str, nn.Module],
    data: Data,
    by: Adversary = NodeInjection(),
    *,
    gain: str = "cross-entropy",
    seeds: int = 5,
    call: Call | None = None,
) -> Comparison:
    """Audit several models on one graph under one budget, each attacked through its own gradients."""
    return Comparison(
        {name: audit(model, data, by, gain=gain, seeds=seeds, call=call, name=name) for name, model in models.items()}
    )
