"""Plain training of the three backbones on the four node datasets: results/vanilla.json.

python benchmarks/vanilla.py                  # everything that is not there yet; hours on two cores
python benchmarks/vanilla.py --only gat       # one backbone
"""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import torch
import typer

from fgai import backbones, datasets, saved
from fgai.bench.rows import Row, peak_mb, read_rows, write_rows
from fgai.methods import Vanilla
from fgai.metrics import mean_nonuniformity, micro_f1
from fgai.progress import progress
from fgai.reading import read

SEEDS = {"amazon-photo": 3, "coauthor-cs": 3, "coauthor-physics": 1, "amazon-computers": 3}


def cell(dataset: str, backbone: str, seed: int, models: Path | None) -> Row:
    """Train one model and judge it on its test nodes, on one thread."""
    torch.set_num_threads(1)
    data = datasets.load(dataset, seed=seed)
    sha = datasets.fingerprint(data)
    data = backbones.BACKBONES[backbone].prepare(datasets.compact(data))
    method, start = Vanilla(seed=seed), time.perf_counter()
    fit = method.fit(backbones.build(backbone, data, seed=seed), data)
    seconds = time.perf_counter() - start
    reading = read(fit.model, data)
    metrics = {
        "f1": micro_f1(reading.logits[data.test_mask], data.y[data.test_mask]),
        "nonuniformity": mean_nonuniformity(reading.explanation),
    }
    settings = asdict(method) | {
        "epochs_run": len(fit.history),
        "best_epoch": fit.best.number,
        "val_f1": fit.best.val_f1,
    }
    if models:
        folder = models / f"{dataset}-{backbone}-vanilla-{seed}"
        saved.save(
            folder,
            fit.model,
            backbone=backbone,
            **backbones.shape_for(data),
            data=dataset,
            method=asdict(method),
            seed=seed,
            metrics=metrics,
        )
    return Row(
        dataset,
        backbone,
        "vanilla",
        seed,
        metrics,
        seconds=seconds,
        peak_mb=peak_mb(),
        settings=settings,
        data_sha256=sha,
    )


def main(
    only: Annotated[str, typer.Option(help="One backbone; all by default.")] = "",
    out: Annotated[Path, typer.Option(help="The file of rows to add to.")] = Path("results/vanilla.json"),
    models: Annotated[Path | None, typer.Option(help="Also save the models here.")] = None,
    workers: Annotated[int, typer.Option(help="Processes, one thread each.")] = 1,
) -> None:
    done = {(row.dataset, row.backbone, row.seed) for row in read_rows(out)}
    wanted = [
        (dataset, backbone, seed)
        for backbone, dataset in product([only] if only else ("gat", "gatv2", "gt"), SEEDS)
        for seed in range(SEEDS[dataset])
        if (dataset, backbone, seed) not in done
    ]
    pool = ProcessPoolExecutor(workers, get_context("spawn"), max_tasks_per_child=1)
    with pool, progress("vanilla", len(wanted)) as advance:
        for future in as_completed([pool.submit(cell, *name, models) for name in wanted]):
            row = future.result()
            write_rows(out, [row])
            advance(f"{row.dataset} {row.backbone} {row.metrics['f1']:.3f}")


if __name__ == "__main__":
    typer.run(main)
