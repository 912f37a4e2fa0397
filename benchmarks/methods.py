"""Vanilla, LN, AT and FGAI under one budget each, every model through its own gradients: results/methods.json.

python benchmarks/methods.py                                      # all cells that are not there yet; hours
python benchmarks/methods.py --only amazon-photo,gat,fgai,0       # some: empty parts mean all
python benchmarks/methods.py --models DIR                         # keep trained models there, and use those
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import torch
import typer
from torch import nn
from torch_geometric.data import Data

from fgai import backbones, datasets, saved
from fgai.bench.cells import rows_of
from fgai.bench.rows import Row, read_rows, write_rows
from fgai.certificate import certified_radius
from fgai.methods import METHODS
from fgai.plots import certified_curves
from fgai.progress import progress
from fgai.reading import read

OUT, FIGURE = Path("results/methods.json"), Path("docs/certified-methods.png")
SEEDS = {"amazon-photo": 3, "amazon-computers": 1, "coauthor-cs": 1, "coauthor-physics": 1}
K, RADII = 10, (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.05, 0.1)
Cell = tuple[str, str, str, int]  # dataset, backbone, method, seed


def cells() -> Iterator[Cell]:
    for dataset, backbone, method in product(SEEDS, backbones.BACKBONES, METHODS):
        for seed in range(SEEDS[dataset]):
            yield dataset, backbone, method, seed


def shares(model: nn.Module, data: Data) -> dict[str, float]:
    """What the certificate says of the nodes with more than K neighbours: the others cannot lose a member."""
    look = read(model, data).explanation
    radius = certified_radius(look, K)[look.degree > K]
    found = {f"share_{r:g}": float((radius > r).double().mean()) for r in RADII}
    return found | {"median_radius": float(radius.median())}


def trained(cell: Cell, data: Data, models: Path | None) -> tuple[nn.Module, dict[str, Any]]:
    """The model of a cell, from the shelf or new; FGAI starts from vanilla's."""
    dataset, backbone, method, seed = cell
    shelf = None if models is None else models / "-".join(map(str, cell))
    if shelf is not None and shelf.exists():
        return saved.load(shelf).model, {}
    model = backbones.build(backbone, data, seed=seed)
    if method == "fgai":
        model, _ = trained((dataset, backbone, "vanilla", seed), data, models)
    settings, start = METHODS[method](seed=seed), time.process_time()
    fit = settings.fit(model, data)
    about = {**asdict(settings), "cpu_seconds": time.process_time() - start, "epochs_run": len(fit.history)}
    if shelf is not None and method != "ln":
        shape = {"features": data.x.size(1), "classes": int(data.y.max()) + 1}  # pyright: ignore
        saved.save(shelf, fit.model, backbone=backbone, **shape, data=dataset, method=about, seed=seed)
    return fit.model, about


def run(cell: Cell, models: Path | None) -> list[Row]:
    """One row for the clean graph, and one per attack."""
    dataset, backbone, method, seed = cell
    data = datasets.load(dataset, seed=seed)
    sha = datasets.fingerprint(data)
    data = backbones.BACKBONES[backbone].prepare(datasets.compact(data))
    model, settings = trained(cell, data, models)
    rows = list(rows_of(model, data, dataset=dataset, backbone=backbone, method=method, seed=seed, sha=sha))
    first = replace(rows[0], metrics={**rows[0].metrics, **shares(model, data)}, settings=settings)
    return [first, *rows[1:]]


def draw(rows: list[Row], path: Path, backbone: str = "gat") -> None:
    """Certified shares of the four methods side by side, mean over seeds, a panel per dataset."""
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.attack == "none" and row.backbone == backbone:
            found[row.dataset][row.method].append(row)
    panels = {
        dataset: {
            method: [(r, mean(float(row.metrics[f"share_{r:g}"] or 0) for row in group)) for r in RADII]
            for method, group in methods.items()
        }
        for dataset, methods in found.items()
    }
    certified_curves(panels).savefig(path, dpi=110)


def main(
    only: Annotated[str, typer.Option(help="dataset,backbone,method,seed; empty parts mean all.")] = ",,,",
    out: Annotated[Path, typer.Option(help="The file of rows to add to.")] = OUT,
    models: Annotated[Path | None, typer.Option(help="A shelf of trained models.")] = None,
) -> None:
    torch.set_num_threads(1)
    asked = only.split(",")
    done = {(row.dataset, row.backbone, row.method, row.seed) for row in read_rows(out)}
    wanted = [
        cell
        for cell in cells()
        if cell not in done and all(not a or str(part) in a.split("+") for a, part in zip(asked, cell, strict=True))
    ]
    with progress("methods", len(wanted)) as advance:
        for cell in wanted:
            rows = run(cell, models)
            write_rows(out, rows)
            print(*cell, *(f"{row.attack} {row.metrics['f1']:.3f}" for row in rows), flush=True)
            advance(" ".join(map(str, cell)))
    if out == OUT:
        draw(read_rows(out), FIGURE)


if __name__ == "__main__":
    typer.run(main)
