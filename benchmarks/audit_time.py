"""CPU time of `fgai.audit` on Amazon-Photo with GAT, over that of an earlier version: results/speed.json.

git worktree add --detach ../first 172397b
python benchmarks/audit_time.py --first ../first

Both versions run in processes of their own and take turns; the figure is the ratio of the medians. The model is
untrained: it costs what a trained one does. Audits of today also test faithfulness per node, compare trees of attention
in place of one layer, and grade the result.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer

from fgai import audit, backbones, datasets

ROOT = Path(__file__).parent.parent


def one(seeds: int) -> float:
    """CPU seconds of one audit."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    data = datasets.load("amazon-photo", seed=0)
    model = backbones.build("gat", data).eval()
    start = time.process_time()
    audit(model, data, seeds=seeds)
    return time.process_time() - start


def main(
    first: Annotated[Path | None, typer.Option(help="A checkout of the earlier version.")] = None,
    seeds: int = 5,
    repeats: int = 1,
) -> None:
    if first is None:  # one version, as a process of this script
        print(one(seeds))
        return
    from fgai.bench.results import Cost, write_costs

    seconds: dict[Path, list[float]] = {first: [], ROOT: []}
    for _ in range(repeats):
        for version, measured in seconds.items():
            command = [sys.executable, __file__, "--seeds", str(seeds)]
            environment = {**os.environ, "PYTHONPATH": str(version / "src")}
            run = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
            measured.append(float(run.stdout.split()[-1]))
            print(version.name, measured[-1], flush=True)
    ratio = median(seconds[ROOT]) / median(seconds[first])
    what = f"audit, {seeds} seeds: CPU time over that of commit 172397b"
    cost = Cost(what, "amazon-photo", "gat", round(ratio, 3), "python benchmarks/audit_time.py")
    write_costs("results/speed.json", [cost])
    print(cost, flush=True)


if __name__ == "__main__":
    typer.run(main)
