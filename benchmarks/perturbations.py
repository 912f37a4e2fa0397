"""Perturbations of trained models, and models of Photo and Cora against all of their dataset: results/unit_tests.json.

A perturbation that exists is not made again. The links of each perturbation are in results/winning_links.json.

python benchmarks/perturbations.py --models DIR
"""

from __future__ import annotations

import time
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn
from torch_geometric.data import Data

from fgai import backbones, datasets, saved
from fgai.adversaries import LINKS, THREATS
from fgai.adversaries.links import LinkBudget
from fgai.bench.models import ModelStore
from fgai.bench.perturbations import FOLDER, SavedPerturbation, Worst, load_all, unit_test
from fgai.bench.plan import Cell
from fgai.bench.run import rows_of_model
from fgai.calling import Call
from fgai.methods import METHODS
from resumable import keep

RESULTS, WINNING = Path("results/unit_tests.json"), Path("results/winning_links.json")
DATASETS, MODELS = ("amazon-photo", "cora"), ("vanilla", "fgai")
THREAT = "strongest"


def loaded(cell: Cell, models: Path) -> tuple[nn.Module, Data, Call | None, str]:
    """The model of a cell, its graph, how it is called, and the fingerprint of the graph."""
    raw = datasets.load(cell.dataset, seed=cell.seed)
    data = backbones.BACKBONES[cell.backbone].prepare(datasets.compact(raw))
    call = saved.call_of(METHODS[cell.method](seed=cell.seed))
    return ModelStore(models).trained(cell, data).model, data, call, datasets.fingerprint(raw)


def rows(cell: Cell, models: Path) -> list[dict[str, Any]]:
    """One row per perturbation of the dataset."""
    start = time.perf_counter()
    model, data, call, sha = loaded(cell, models)
    outcomes = unit_test(model, data, load_all(FOLDER, cell.dataset), sha=sha, call=call)
    seconds = round(time.perf_counter() - start, 1)
    return [
        {
            "model": cell.name,
            "against": one.origin.model,
            "threat": one.origin.threat,
            "f1": round(one.f1, 5),
            "f1_attacked": round(one.f1_attacked, 5),
            "overlap": round(one.overlap, 5),
            "stable": one.stable.value,
            "seconds": seconds,
        }
        for one in outcomes
    ]


def links_of(one: SavedPerturbation, data: Data) -> str:
    """The choice of links that made these links; only `coverage` depends on the model."""
    attack: Any = THREATS[one.origin.threat].adversary
    (edges,) = attack.edges
    budget = LinkBudget(attack.nodes, edges, torch.arange(int(data.num_nodes or 0)), one.origin.seed)
    linked = one.perturbation.added[1, one.perturbation.added[0] >= int(data.num_nodes or 0)].sort().values
    for name in ("random", "degree", "reach"):
        if torch.equal(LINKS[name](data, budget, None).flatten().sort().values, linked):
            return name
    return "coverage"


def winning_links() -> list[dict[str, Any]]:
    """The choice of links of each saved perturbation whose attacker had a choice."""
    chosen = [name for name, threat in THREATS.items() if "coverage" in getattr(threat.adversary, "links", ())]
    asked = [one for one in load_all(FOLDER) if one.origin.threat in chosen]
    graphs = {name: datasets.load(name, seed=0) for name in {one.origin.dataset for one in asked}}
    return [
        {"model": one.origin.model, "threat": one.origin.threat, "links": links_of(one, graphs[one.origin.dataset])}
        for one in asked
    ]


def main(models: Annotated[Path, typer.Option(help="A folder of saved models.")] = Path("models")) -> None:
    """Make the perturbations that do not exist, and test all models."""
    torch.set_num_threads(1)
    cells = [Cell(dataset, "gat", method, 0) for dataset, method in product(DATASETS, MODELS)]
    for cell in cells:
        if not (FOLDER / f"{cell.name}.safetensors").exists():
            model, data, call, sha = loaded(cell, models)
            list(rows_of_model(model, data, cell, (THREAT,), sha=sha, call=call, worst=Worst(cell.name, FOLDER)))
    for cell in cells:
        keep(RESULTS, ("model", "against"), rows(cell, models))
    keep(WINNING, ("model", "threat"), winning_links())


if __name__ == "__main__":
    typer.run(main)
