"""Audits of a model of molecules, vanilla and FGAI, for the picture of the report in docs/graphs.md: results/audits.

python benchmarks/molecule_audits.py
python benchmarks/screenshots.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fgai import FGAI, Vanilla, audit, backbones, datasets
from fgai.auditing import AuditReport
from fgai.items import select_graphs
from fgai.large.fitting import fit_graph

AUDITS = Path("results/audits")
BATCH, RATE, EPOCHS, TUNED = 64, 0.005, 30, 8
TESTED, ATTACKS = 200, 2  # test graphs, and attacks on them
SHOWN = 6  # graphs that a file keeps


def small(report: AuditReport, graphs: set[int]) -> AuditReport:
    """Return the report with these graphs, and without the neighbourhoods, which its page does not show."""
    views = tuple(view for view in report.graph_views if view.graph in graphs)
    return replace(report, views=(), moved=report.moved[:SHOWN], graph_views=views)


def main() -> None:
    torch.set_num_threads(1)
    paths = [AUDITS / f"mutagenicity-gat-graphs-{method}-0.json" for method in ("vanilla", "fgai")]
    if all(path.exists() for path in paths):
        return
    data: Any = datasets.load("mutagenicity", seed=0)
    first = data.test_mask & (data.test_mask.cumsum(0) <= TESTED)
    start, tested = backbones.build("gat-graphs", data), select_graphs(data, first)
    plain = fit_graph(Vanilla(epochs=EPOCHS, lr=RATE), start, data, batch=BATCH).model
    vanilla = audit(plain, tested, seeds=ATTACKS, name="GAT")
    shown = {view.graph for view in vanilla.graph_views[:SHOWN]}
    faithful = fit_graph(FGAI.preset("graphs", epochs=TUNED, lr=RATE), plain, data, batch=BATCH).model
    fgai = audit(faithful, tested, seeds=ATTACKS, name="GAT with FGAI", reference=vanilla)
    for path, report in zip(paths, (vanilla, fgai), strict=True):
        small(report, shown).save(path)


if __name__ == "__main__":
    main()
