"""The grades of vanilla, LN, AT and FGAI by two explanations, on seven datasets: results/faithful.json.

Each cell is trained once and kept in the folder of models. A cell with rows in the file is not run again.

python benchmarks/faithful.py --models DIR
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from fgai import backbones, datasets, saved
from fgai.auditing import AuditReport, audit
from fgai.bench.plan import Cell
from fgai.files import write_json
from fgai.methods import METHODS
from fgai.progress import progress
from figures import trained
from resumable import rows_in

RESULTS = Path("results/faithful.json")
EXPLANATIONS = ("tree", "last")
DATASETS = ("amazon-photo", "cora", "citeseer", "pubmed", "coauthor-cs", "amazon-computers", "coauthor-physics")
BACKBONES = ("gat", "gatv2", "gt")
SEEDS = {("amazon-photo", "gat"): 3, ("cora", "gat"): 3}  # one model elsewhere
ATTACKS = 2  # attacks per model
KEY = ("dataset", "backbone", "method", "seed", "explanation")


def cells() -> list[Cell]:
    """All cells: vanilla and FGAI first, the others later."""
    pairs = [(dataset, backbone) for dataset in DATASETS for backbone in BACKBONES]
    return [
        Cell(dataset, backbone, method, seed)
        for methods in (("vanilla", "fgai"), ("ln", "at"))
        for dataset, backbone in pairs
        for seed in range(SEEDS.get((dataset, backbone), 1))
        for method in methods
    ]


def row(cell: Cell, report: AuditReport) -> dict[str, Any]:
    """A row of the file: the grades, and the numbers that decided them."""
    tested, grades = report.faithfulness, dict(report.grades.items())
    assert tested is not None
    values: dict[str, Any] = {
        "dataset": cell.dataset,
        "backbone": cell.backbone,
        "method": cell.method,
        "seed": cell.seed,
        "explanation": report.explanation,
        "used": grades["used"].holds if grades else None,
        "faithful": grades["faithful"].value if grades else None,
        "stable": grades["stable"].holds if grades else None,
        "trusted": report.grades.answer,
    }
    for name, interval in (
        ("necessity", tested.necessity),
        ("against_least", tested.against_least),
        ("sufficiency", tested.sufficiency),
    ):
        values |= {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
    values |= {"nodes": tested.nodes, "attack": report.adversary["name"], "attacks": report.seeds}
    values |= {"f1": report.clean["f1"], "f1_attacked": report.attacked["f1"].mean}
    values |= {"overlap": report.attacked["overlap"].mean, "g_tvd": report.attacked["g_tvd"].mean}
    return {name: round(value, 5) if isinstance(value, float) else value for name, value in values.items()}


def main(
    models: Annotated[Path, typer.Option(help="A folder of saved models.")] = Path("models"),
    only: Annotated[str, typer.Option(help="Cells whose names contain this.")] = "",
) -> None:
    """Grade the cells that have no rows yet."""
    torch.set_num_threads(1)
    asked = [cell for cell in cells() if only in cell.name]
    with progress("faithful", len(asked)) as advance:
        for cell in asked:
            rows = rows_in(RESULTS)
            about = [cell.dataset, cell.backbone, cell.method, cell.seed]
            if not any([one[name] for name in KEY[:4]] == about for one in rows):
                data = datasets.compact(datasets.load(cell.dataset, seed=cell.seed))
                data = backbones.BACKBONES[cell.backbone].prepare(data)
                model, _ = trained(cell, data, models)
                call = saved.call_of(METHODS[cell.method](seed=cell.seed))
                for name in EXPLANATIONS:
                    report = audit(model, data, explanation=name, seeds=ATTACKS, name=cell.name, call=call)
                    rows.append(row(cell, report))
                    print({key: rows[-1][key] for key in (*KEY, "used", "faithful", "stable")}, flush=True)
                rows.sort(key=lambda one: [one[name] for name in KEY])
                write_json(RESULTS, rows)
            advance(cell.name)


if __name__ == "__main__":
    typer.run(main)
