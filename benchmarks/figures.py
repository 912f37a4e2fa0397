"""What maps, stars and losses are drawn from: vanilla and FGAI audited, results/audits and results/histories.

python benchmarks/figures.py
python benchmarks/figures.py --models DIR    # take the models that lie there
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import torch
import typer

from fgai import backbones, datasets
from fgai.auditing import AuditReport, audit
from fgai.bench.models import ModelStore
from fgai.bench.plan import Cell
from fgai.files import write_json
from fgai.graph import degree, require
from fgai.progress import progress

SHOWN = (
    ("amazon-photo", "gat"),
    ("amazon-photo", "gatv2"),
    ("amazon-photo", "gt"),
    ("coauthor-cs", "gat"),
    ("coauthor-physics", "gat"),
)
AUDITS, HISTORIES = Path("results/audits"), Path("results/histories")
ATTACKS = 2
WATCHED, SMALL, VIEWS = 200, (11, 15), 2  # nodes that are watched, their degree, and how many are kept


def small(report: AuditReport, nodes: set[int]) -> AuditReport:
    """The report with the neighbourhoods of these nodes alone that lost most of their top."""
    views = [view for view in report.views if view.node in nodes]
    views.sort(key=lambda view: len({*view.top_before} & {*view.top_after}))
    return replace(report, views=tuple(views[:VIEWS]), moved=report.moved[:VIEWS])


def audited(cell: Cell, models: Path) -> None:
    """Keep the audit and the history of a cell; the nodes that are shown of vanilla are shown of FGAI."""
    path, first = (AUDITS / f"{c.name}.json" for c in (cell, replace(cell, method="vanilla")))
    data = datasets.compact(datasets.load(cell.dataset, seed=cell.seed))
    data = backbones.BACKBONES[cell.backbone].prepare(data)
    fitted = ModelStore(models).trained(cell, data)
    size = degree(require(data, "edge_index")[1], require(data, "y").numel())
    show_nodes = ((size >= SMALL[0]) & (size <= SMALL[1])).nonzero().flatten()[:WATCHED].tolist()
    reference = AuditReport.load(first) if first.exists() else None
    name = f"{cell.backbone} {cell.method}"
    report = audit(
        fitted.model, data, seeds=ATTACKS, name=name, show_nodes=() if reference else show_nodes, reference=reference
    )
    small(report, {view.node for view in reference.views} if reference else {*show_nodes}).save(path)
    if cell.method == "fgai":
        write_json(HISTORIES / path.name, [asdict(epoch) for epoch in fitted.history])


def main(models: Annotated[Path, typer.Option(help="A folder of saved models.")] = Path("models")) -> None:
    torch.set_num_threads(1)
    cells = [Cell(dataset, backbone, method, 0) for dataset, backbone in SHOWN for method in ("vanilla", "fgai")]
    with progress("figures", len(cells)) as advance:
        for cell in cells:
            if not (AUDITS / f"{cell.name}.json").exists():
                audited(cell, models)
            advance(cell.name)


if __name__ == "__main__":
    typer.run(main)
