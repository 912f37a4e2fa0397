"""The grades of vanilla, LN, AT and FGAI by two explanations, on seven datasets: results/faithful.json.

Each cell is trained once and kept in the folder of models. A cell with rows in the file is not run again. Where 500
nodes leave the grade open, 2,000 nodes decide (or all there are), for every method alike: two looks at the
data, so a wrong grade has at most twice the probability of one look.

python benchmarks/faithful.py --models DIR
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import nn
from torch_geometric.data import Data

from fgai import backbones, datasets, saved
from fgai.auditing import AuditReport, audit
from fgai.bench.models import ModelStore
from fgai.bench.plan import Cell
from fgai.calling import Call
from fgai.faithfulness import Faithfulness, measure_faithfulness
from fgai.intervals import Interval
from fgai.methods import METHODS
from fgai.progress import progress
from resumable import Row, keep, rows_in

RESULTS = Path("results/faithful.json")
EXPLANATIONS = ("tree", "last")
DATASETS = ("amazon-photo", "cora", "citeseer", "pubmed", "coauthor-cs", "amazon-computers", "coauthor-physics")
BACKBONES = ("gat", "gatv2", "gt")
NORMED = (("amazon-photo", "gat-norm"), ("cora", "gat-norm"))  # the model that holds under `strongest`
SEEDS = {("amazon-photo", "gat"): 3, ("cora", "gat"): 3}  # one model elsewhere
ATTACKS = 2  # attacks per model
SAMPLE = 500  # nodes in the test of faithfulness
MORE = 2000  # nodes in a second test, if the first one leaves the grade open
BOUNDED = {  # by preset
    "bounded": [*product(DATASETS[:5], BACKBONES[:1]), *product(DATASETS[:2], BACKBONES[1:2])],
    "bounded-labels": [("cora", "gat"), *product(DATASETS[:2], BACKBONES[1:2])],
}
SUPPORT = Cell("coauthor-physics", "gatv2", "fgai", 0, "support")  # the cell that the default leaves open
KEY = ("dataset", "backbone", "method", "seed", "explanation")


def cells() -> list[Cell]:
    """All cells: vanilla and FGAI first, the others later."""
    pairs = [*product(DATASETS, BACKBONES), *NORMED]
    graded = [
        Cell(dataset, backbone, method, seed)
        for methods in (("vanilla", "fgai"), ("ln", "at"))
        for dataset, backbone in pairs
        for seed in range(SEEDS.get((dataset, backbone), 1))
        for method in methods
    ]
    bounded = [
        Cell(dataset, backbone, "fgai", 0, preset) for preset, models in BOUNDED.items() for dataset, backbone in models
    ]
    return [*graded, SUPPORT, *bounded]


def row(cell: Cell, report: AuditReport) -> Row:
    """A row of the file: the grades, and the numbers that decided them."""
    tested, grades = report.faithfulness, dict(report.grades.items())
    assert tested is not None
    values: Row = {
        "dataset": cell.dataset,
        "backbone": cell.backbone,
        "method": cell.label,
        "seed": cell.seed,
        "explanation": report.explanation,
        "used": grades["used"].holds if grades else None,
        "faithful": grades["faithful"].value if grades else None,
        "stable": grades["stable"].holds if grades else None,
        "trusted": report.grades.answer,
    }
    values |= differences(tested)
    values |= {"attack": report.adversary["name"], "attacks": report.seeds, "looks": 1}
    values |= {"f1": report.clean["f1"], "f1_attacked": report.attacked["f1"].mean}
    values |= {"overlap": report.attacked["overlap"].mean, "g_tvd": report.attacked["g_tvd"].mean}
    return rounded(values)


def second_look(first: Row, model: nn.Module, data: Data, call: Call | None) -> Row:
    """The row with the grade of a test on more nodes, among them those of the first test."""
    tested = measure_faithfulness(model, data, first["explanation"], nodes=MORE, call=call)
    failed = tested.grade.value == "contradicted" or first["trusted"] == "no"
    holds = tested.grade.holds and first["used"] and first["stable"]
    answer = "no" if failed else "yes" if holds else "not shown"
    return rounded({**first, **differences(tested), "faithful": tested.grade.value, "trusted": answer, "looks": 2})


def differences(tested: Faithfulness) -> Row:
    """The differences that decide the grade, with their intervals, and the number of nodes."""
    values: Row = {"nodes": tested.nodes}
    for name in ("necessity", "against_least", "sufficiency"):
        interval: Interval = getattr(tested, name)
        values |= {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return values


def is_open(first: Row) -> bool:
    """Whether a first test left the grade open."""
    return first["faithful"] == "unknown" and first["looks"] == 1


def rounded(values: Row) -> Row:
    """The values with five decimals."""
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
            about = [cell.dataset, cell.backbone, cell.label, cell.seed]
            rows = {one["explanation"]: one for one in rows_in(RESULTS) if [one[name] for name in KEY[:4]] == about}
            if len(rows) < len(EXPLANATIONS) or any(map(is_open, rows.values())):
                data = datasets.compact(datasets.load(cell.dataset, seed=cell.seed))
                data = backbones.BACKBONES[cell.backbone].prepare(data)
                model = ModelStore(models).trained(cell, data).model
                call = saved.call_of(METHODS[cell.method](seed=cell.seed))
                settings = {"seeds": ATTACKS, "sample": SAMPLE, "name": cell.name, "call": call}
                for name in EXPLANATIONS:
                    one = rows.get(name) or row(cell, audit(model, data, explanation=name, **settings))
                    keep(RESULTS, KEY, [second_look(one, model, data, call) if is_open(one) else one])
            advance(cell.name)


if __name__ == "__main__":
    typer.run(main)
