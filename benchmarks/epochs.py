"""What an epoch of FGAI costs beside plain training, interleaved in one process: results/speed.json.

python benchmarks/epochs.py                                 # all datasets and models
python benchmarks/epochs.py --dataset amazon-photo --backbone gat

Four ways to train the same model: plain PyG with an evaluation pass in each epoch, as most examples do, plain PyG
without it, a plain loop in `fgai.accelerated` with compact features, and FGAI's default. The ways take turns, a round
each, and the figures are medians over the rounds of CPU seconds per epoch, over those of another way. Peak memory is
that of a process for each way. Each cell is written when it is measured.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Annotated, Any, cast

import torch
import typer
from torch import nn
from torch_geometric.data import Data

from fgai import FGAI, accelerated, backbones, datasets
from fgai.backbones import base, gat, gt
from fgai.bench.results import Cost, peak_mb, write_costs
from fgai.calling import call_by_signature
from fgai.graph import require
from fgai.modes import eval_mode
from fgai.progress import progress

COMMAND = "python benchmarks/epochs.py"
EPOCHS = {"amazon-photo": 20, "coauthor-physics": 10}  # as many as an adversary keeps two places for
PLAIN = {"amazon-photo": 4, "coauthor-physics": 1}  # epochs of a round of the other ways
MODELS = ("gat", "gatv2", "gt")
WAYS = ("plain", "plain, no evaluation", "accelerated", "FGAI")
RATIOS = {
    "FGAI's seconds per epoch over plain PyG's": ("FGAI", "plain"),
    "FGAI's seconds per epoch over plain PyG's without evaluation": ("FGAI", "plain, no evaluation"),
    "FGAI's seconds per epoch over our accelerated loop's": ("FGAI", "accelerated"),
    "plain PyG's seconds per epoch without evaluation over with it": ("plain, no evaluation", "plain"),
    "our accelerated loop's seconds per epoch over plain PyG's": ("accelerated", "plain"),
}


@contextmanager
def torch_dropout() -> Iterator[None]:
    """Let our backbones draw torch's dropout masks inside a `with` block."""
    ours, modules = base.dropout, [cast(Any, module) for module in (base, gat, gt)]
    for module in modules:
        module.dropout = nn.functional.dropout
    try:
        yield
    finally:
        for module in modules:
            module.dropout = ours


def train(model: nn.Module, data: Data, epochs: int, evaluate: bool) -> float:
    """Seconds per epoch of a loop as a user writes it."""
    known, labels = require(data, "train_mask"), require(data, "y")
    optimizer = torch.optim.Adam(model.parameters(), 0.01, weight_decay=5e-4)
    start = time.process_time()
    for _ in range(epochs):
        model.train()
        optimizer.zero_grad()
        nn.functional.cross_entropy(call_by_signature(model, data)[known], labels[known]).backward()
        optimizer.step()
        if evaluate:
            with eval_mode(model), torch.no_grad():
                call_by_signature(model, data)
    return (time.process_time() - start) / epochs


def rounds(dataset: str, backbone: str, way: str, epochs: int = 0) -> Callable[[], float]:
    """Return a function that trains for a round and returns its CPU seconds per epoch."""
    plain, prepare = way.startswith("plain"), backbones.BACKBONES[backbone].prepare
    data = datasets.load(dataset, seed=0)
    data = prepare(data if plain else datasets.compact(data))
    few = epochs or PLAIN[dataset]

    def run() -> float:
        model = backbones.build(backbone, data)
        if way == "FGAI":
            count, start = epochs or EPOCHS[dataset], time.process_time()
            FGAI(epochs=count).fit(model, data)  # all that `fit` does is counted
            return (time.process_time() - start) / count
        if way == "accelerated":
            with accelerated(model, exact=False):
                return train(model, data, few, evaluate=False)
        with torch_dropout():
            return train(model, data, few, evaluate=way == "plain")

    return run


def memory_of(dataset: str, backbone: str, way: str) -> float:
    """Peak memory in MB of a process that trains in one way."""
    command = [sys.executable, __file__, "--one", f"{way};{dataset};{backbone}"]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main(
    dataset: Annotated[str, typer.Option(help="One dataset; all by default.")] = "",
    backbone: Annotated[str, typer.Option(help="One model; all by default.")] = "",
    repeats: Annotated[int, typer.Option(help="Rounds of each way.")] = 3,
    one: Annotated[str, typer.Option(help="way;dataset;backbone, for this script itself.")] = "",
) -> None:
    torch.set_num_threads(1)
    if one:
        way, name, model = one.split(";")
        rounds(name, model, way, epochs=EPOCHS[name])()
        print(peak_mb())
        return
    cells = [(d, b) for d in ([dataset] if dataset else EPOCHS) for b in ([backbone] if backbone else MODELS)]
    with progress("epochs", repeats * len(WAYS) * len(cells)) as advance:
        for cell in cells:
            ways = {way: rounds(*cell, way) for way in WAYS}
            seconds: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(repeats):
                for way, run in ways.items():
                    seconds[way].append(run())
                    advance(f"{', '.join(cell)}, {way}: {seconds[way][-1]:.3f} s")
            middle = {way: median(values) for way, values in seconds.items()}
            print(*cell, {way: round(value, 3) for way, value in middle.items()}, flush=True)
            values = {what: middle[above] / middle[below] for what, (above, below) in RATIOS.items()}
            del ways
            values["FGAI's peak memory over plain PyG's"] = memory_of(*cell, "FGAI") / memory_of(*cell, "plain")
            costs = [Cost(what, *cell, round(value, 3), COMMAND) for what, value in values.items()]
            write_costs("results/speed.json", costs)
            print(*costs, sep="\n", flush=True)


if __name__ == "__main__":
    typer.run(main)
