"""The coefficients of `cost_model.py`, and its prediction of the largest run before that is made: results/plan.json.

python benchmarks/plan.py write --folder stores      # 10^5 and 10^6 nodes, and 10^7 as ogbn-papers100M is: 7 GB
python benchmarks/plan.py measure --folder stores    # steps of FGAI with its default adversary up to 10^6 nodes
python benchmarks/plan.py predict --folder stores    # the largest run, from its sampled batches, which no model reads
python benchmarks/plan.py check --folder stores      # that run
python benchmarks/plan.py disk --folder stores       # random rows that no memory holds
python benchmarks/plan.py exact --folder stores      # all nodes, layer by layer
python benchmarks/plan.py reduce                     # gradients of two ranks, beside DistributedDataParallel
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.distributed as group
import typer
from scipy.optimize import nnls
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from batch_runs import Pieces, Timed, model_for_all
from cost_model import (
    BATCH,
    FEATURES,
    LARGE,
    LAYERS,
    MEASURED,
    PAGE,
    PREDICTED,
    RESULTS,
    SECONDS,
    TERMS,
    coefficients,
    known,
    step_seconds,
)
from fgai import FGAI, distributed
from fgai.bench.results import Cost, write_costs
from fgai.large import DiskGraph, Loader, layerwise_readings, write_store
from fgai.launchers import launch

COMMAND = "python benchmarks/plan.py"
SMALL = {"10^5 nodes": (100_000, 10, 64), "10^6 nodes": (1_000_000, 10, 64), "10^6 nodes, wide": (1_000_000, 14.5, 128)}
GRAPHS = {**SMALL, LARGE: (10_000_000, 14.5, FEATURES)}  # nodes, degree, features; papers100M has 14.5 and 128
SHAPES = ((1_024, (10, 10)), (256, (10, 10)), (1_024, (5, 5)))  # of batches
app = typer.Typer()
Folder = Annotated[Path, typer.Option(help="Where the graphs are.")]


def record(costs: dict[str, float], dataset: str, model: str = "gat") -> None:
    print(dataset, costs, flush=True)
    rows = [Cost(what, f"generated, {dataset}", model, float(f"{value:.4g}"), COMMAND) for what, value in costs.items()]
    write_costs(RESULTS, rows)


def batches(folder: Path, name: str, batch: int, fanout: tuple[int, ...], count: int) -> Timed:
    return Timed(Loader(DiskGraph(folder / name), fanout, batch=batch), count)


@app.command()
def write(folder: Folder) -> None:
    """Write the graphs that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (nodes, degree, features) in GRAPHS.items():
        if not (folder / name).exists():
            graph, start = Pieces(nodes, degree=degree, features=features), time.process_time()
            store = write_store(folder / name, nodes, graph.edges, {"x": graph.x(), "y": graph.y()})
            print(f"{name}: {store.num_edges} edges, {time.process_time() - start:.0f} CPU s", flush=True)


@app.command()
def measure(folder: Folder, count: int = 5) -> None:
    """Run FGAI with its default adversary on batches of several shapes, and fit the seconds of a step."""
    torch.set_num_threads(1)
    sizes, seconds = [], []
    for name, (_, _, features) in SMALL.items():
        for batch, fanout in SHAPES:
            what = f"{batch} seed nodes, {fanout[0]},{fanout[1]} neighbours: "
            names = [f"{what}CPU s a step", f"{what}nodes of a step", f"{what}edges of a step"]
            if (names[0], name) not in known():
                run = batches(folder, name, batch, fanout, count)
                FGAI(epochs=1).fit(model_for_all(features), run)
                values = (run.cpu / count, run.nodes / count, run.edges / count)
                record(dict(zip(names, values, strict=True)), name)
            cpu, nodes, edges = (known()[what, name] for what in names)
            sizes.append([1.0, nodes, edges, nodes * features])
            seconds.append(cpu)
    weight = 1 / np.array(seconds)  # relative errors count
    fitted = nnls(np.array(sizes) * weight[:, None], np.ones(len(seconds)))[0]
    record({SECONDS.format(term): value * 1e6 for term, value in zip(TERMS, fitted, strict=True)}, "all sizes")
    worst = np.abs(np.array(sizes) @ fitted * weight - 1).max()
    record({"model: largest relative error where it was fitted": float(worst)}, "all sizes")


@app.command()
def predict(folder: Folder, count: int = 5) -> None:
    """Predict the largest run; its batches are sampled, and no model reads them."""
    run, features = batches(folder, LARGE, *SHAPES[0], count), GRAPHS[LARGE][2]
    for _ in run:
        pass
    nodes, edges = run.nodes / count, run.edges / count
    record({"nodes sampled for a seed node": nodes / BATCH, "edges sampled for a seed node": edges / BATCH}, LARGE)
    record({PREDICTED: step_seconds(coefficients(), nodes, edges, features)}, LARGE)


@app.command()
def check(folder: Folder, count: int = 10) -> None:
    """Make the largest run, and compare."""
    torch.set_num_threads(1)
    predicted = known()[PREDICTED, LARGE]
    run = batches(folder, LARGE, *SHAPES[0], count)
    FGAI(epochs=1).fit(model_for_all(GRAPHS[LARGE][2]), run)
    record({MEASURED: run.cpu / count, "predicted over measured": predicted / (run.cpu / count)}, LARGE)


@app.command()
def disk(folder: Folder, rows: int = 4_000) -> None:
    """Read random rows of features one after the other, after the system has dropped the pages of the file."""
    path = folder / LARGE / "x.npy"
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        where = np.random.default_rng(0).integers(0, path.stat().st_size // PAGE, rows) * PAGE
        start = time.perf_counter()
        for offset in where.tolist():
            os.pread(file.fileno(), PAGE, offset)
        seconds = time.perf_counter() - start
    record({"disk: random pages a second, one reader": rows / seconds}, LARGE)


@app.command()
def exact(folder: Folder, name: str = "10^6 nodes") -> None:
    """Read all nodes layer by layer."""
    torch.set_num_threads(1)
    graph, start = DiskGraph(folder / name), time.process_time()
    count = sum(len(part.nodes) for part in layerwise_readings(model_for_all(GRAPHS[name][2]).eval(), graph))
    assert count == graph.num_nodes
    seconds = time.process_time() - start
    record({"layer by layer: CPU ns per edge and layer": seconds / graph.num_edges / LAYERS * 1e9}, name)


def reducing(out: str) -> None:
    """Time what a step adds on two ranks: our one message, and DistributedDataParallel's backward less a plain one."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for width in (64, 1_000, 3_000):
        model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 16))
        x, weights = torch.randn(8, width), sum(p.numel() for p in model.parameters())
        parallel = DistributedDataParallel(model)
        times: dict[str, list[float]] = {"plain": [], "ours": [], "DistributedDataParallel": []}
        for _ in range(30):
            for name, spent in times.items():
                model.zero_grad()
                loss = (parallel if name == "DistributedDataParallel" else model)(x).square().mean()
                group.barrier()
                start = time.perf_counter()
                loss.backward()
                if name == "ours":
                    distributed.average_gradients(model.parameters())
                spent.append(time.perf_counter() - start)
        least = {name: float(np.median(spent[5:])) for name, spent in times.items()}
        for name in ("ours", "DistributedDataParallel"):
            results[f"2 ranks, {weights:,} weights: ms a step for gradients, {name}"] = 1e3 * (
                least[name] - least["plain"]
            )
    if distributed.rank() == 0:
        Path(out).write_text(json.dumps(results))


@app.command("reduce")
def reduce_gradients() -> None:
    """Average the gradients of two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        launch(reducing, f"{folder}/out.json", ranks=2, restarts=0)
        record(json.loads(Path(f"{folder}/out.json").read_text()), "random", "two linear layers")


if __name__ == "__main__":
    app()
