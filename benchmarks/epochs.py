"""What an epoch of FGAI costs, over one of plain training with PyG's own layers: results/speed.json.

python benchmarks/epochs.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Annotated

import torch
import typer
from torch import nn

from fgai import FGAI, backbones, datasets
from fgai.backbones import base, gat, gt
from fgai.bench.results import Cost, peak_mb, write_costs
from fgai.calling import call_by_signature, eval_mode
from fgai.graph import require
from fgai.progress import progress

COMMAND = "python benchmarks/epochs.py"
EPOCHS = {"amazon-photo": 20, "coauthor-physics": 10}  # as many as an adversary keeps two places for


def plain(dataset: str, backbone: str) -> float:
    """Seconds per epoch of a loop as a user writes it: dense features, torch's dropout, PyG's layers, validation."""
    for module in (base, gat, gt):
        module.dropout = nn.functional.dropout  # pyright: ignore[reportAttributeAccessIssue]
    data = backbones.BACKBONES[backbone].prepare(datasets.load(dataset, seed=0))
    model, known, labels = backbones.build(backbone, data), require(data, "train_mask"), require(data, "y")
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=5e-4)
    epochs = 3 if dataset == "coauthor-physics" else 10
    start = time.process_time()
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(call_by_signature(model, data)[known], labels[known]).backward()
        optimizer.step()
        with eval_mode(model), torch.no_grad():
            call_by_signature(model, data)
    return (time.process_time() - start) / epochs


def faithful(dataset: str, backbone: str) -> float:
    """Seconds per epoch of FGAI's default, all that `fit` does included."""
    data = backbones.BACKBONES[backbone].prepare(datasets.compact(datasets.load(dataset, seed=0)))
    model, epochs = backbones.build(backbone, data), EPOCHS[dataset]
    start = time.process_time()
    FGAI(epochs=epochs).fit(model, data)
    return (time.process_time() - start) / epochs


def main(
    only: Annotated[str, typer.Option(help="One dataset; all by default.")] = "",
    one: Annotated[str, typer.Option(help="way,dataset,backbone, for this script itself.")] = "",
) -> None:
    torch.set_num_threads(1)
    if one:
        way, *cell = one.split(",")
        print({"plain": plain, "faithful": faithful}[way](*cell), peak_mb())
        return
    cells = [(dataset, backbone) for dataset in ([only] if only else EPOCHS) for backbone in ("gat", "gatv2", "gt")]
    costs = []
    with progress("epochs", 2 * len(cells)) as advance:
        for dataset, backbone in cells:
            measured = {}
            for way in ("plain", "faithful"):
                command = [sys.executable, __file__, "--one", f"{way},{dataset},{backbone}"]
                line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                measured[way] = [float(part) for part in line.split()[-2:]]
                advance(f"{dataset} {backbone} {way}")
            for number, what in enumerate(("seconds per epoch", "peak memory")):
                ratio = round(measured["faithful"][number] / measured["plain"][number], 3)
                costs.append(Cost(f"FGAI's {what} over plain PyG's", dataset, backbone, ratio, COMMAND))
                print(costs[-1], flush=True)
    write_costs("results/speed.json", costs)


if __name__ == "__main__":
    typer.run(main)
