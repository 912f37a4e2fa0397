"""What it costs to grow, on generated graphs of 10^5 to 10^7 nodes on disk: results/scale.json.

python benchmarks/scale.py write --folder stores      # 10 edges a node, 64 features; 3.5 GB at 10^7
python benchmarks/scale.py grow --folder stores       # FGAI and plain PyG up to 10^6 nodes; the prediction for 10^7
python benchmarks/scale.py check --folder stores      # 10^7 nodes, against the prediction
python benchmarks/scale.py limited --folder stores    # the same with less memory than the features take (as root)
python benchmarks/scale.py interleaved --folder stores  # FGAI's default adversary and plain PyG, taking turns
python benchmarks/scale.py together --folder stores   # two ranks against one; nothing else should run
python benchmarks/scale.py quality --models MODELS    # mini-batches against whole graphs, from vanilla models
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from scipy.optimize import nnls

from batch_runs import QUICK, Memory, Pieces, Timed, default, faithful, model_for_all, opened, plain, sampling
from fgai import FGAI, datasets, distributed, read, saved
from fgai.adversaries import THREATS
from fgai.bench.plan import Plan
from fgai.bench.results import CellStore as Cells
from fgai.bench.results import Cost, read_costs, write_costs
from fgai.certificates import certified_radius
from fgai.kernels.pyg import accelerated
from fgai.large import Loader, audit_batches, concat_readings, full_neighbour_loader, layerwise_readings, write_store
from fgai.launchers import launch
from fgai.metrics import micro_f1
from fgai.metrics.base import measure
from fgai.modes import eval_mode
from fgai.reading import Reader
from fgai.trial import attacked_trial, clean_trial

COMMAND = "python benchmarks/scale.py"
RESULTS = Path("results/scale.json")
SIZES = (100_000, 1_000_000, 10_000_000)
FANOUT, BATCH, FEW = (10, 10), 1_024, 256
LIMIT_MB = 1_500
ATTACKS = ("injection-20x20", "injection-20x40", "ensemble", "ensemble-explanation")
app = typer.Typer()
Folder = Annotated[Path, typer.Option(help="Where the graphs are.")]


@app.command()
def write(folder: Folder, size: Annotated[list[int] | None, typer.Option()] = None) -> None:
    """Write the graphs, piece by piece."""
    for nodes in size or SIZES:
        if not (folder / f"{nodes}").exists():
            start = time.perf_counter()
            graph = Pieces(nodes)
            store = write_store(folder / f"{nodes}", nodes, graph.edges, {"x": graph.x(), "y": graph.y()})
            print(f"{store.num_nodes} nodes, {store.num_edges} edges, {time.perf_counter() - start:.0f} s", flush=True)


@app.command()
def one(
    folder: Folder,
    nodes: int,
    batch: int = BATCH,
    fanout: str = "10,10",
    count: int = 10,
    ways: str = "sampling,plain,faithful",
) -> None:
    """One run of each way in this process, as JSON."""
    torch.set_num_threads(1)
    hops = tuple(int(part) for part in fanout.split(","))
    results: dict[str, Any] = {}
    for way in ways.split(","):
        batches = opened(folder, nodes, batch, hops, count)
        with Memory() as memory:
            {"sampling": sampling, "plain": plain, "faithful": faithful}[way](batches)
        size = {name: getattr(batches, name) / count for name in ("cpu", "wall", "nodes", "edges", "seeds")}
        results[way] = {**size, "anon_mb": round(memory.peak_mb, 1)}
    print(json.dumps({"size": nodes, "batch": batch, "fanout": fanout, **results}))


def measured(folder: Path, nodes: int, batch: int = BATCH, fanout: str = "10,10", count: int = 10) -> dict[str, Any]:
    """`one` in a process of its own."""
    words = [
        "one",
        str(nodes),
        "--folder",
        str(folder),
        "--batch",
        str(batch),
        "--fanout",
        fanout,
        "--count",
        str(count),
    ]
    run = subprocess.run([sys.executable, __file__, *words], check=True, capture_output=True, text=True)
    print(run.stdout, flush=True)
    return json.loads(run.stdout.splitlines()[-1])


@app.command()
def grow(folder: Folder) -> None:
    """Measure the smaller graphs, fit the cost model, and write down what it says of the largest."""
    shapes = [(BATCH, "10,10"), (FEW, "10,10"), (BATCH, "5,5")]
    runs = [measured(folder, nodes, batch, fanout) for nodes in SIZES[:2] for batch, fanout in shapes]
    costs = [cost for run in runs if run["fanout"] == shapes[0][1] for cost in costs_of(run)]
    parts = [run["faithful"] for run in runs]
    table = np.array([[1.0, part["nodes"], part["edges"]] for part in parts])
    seconds = nnls(table, np.array([part["cpu"] for part in parts]))[0]
    memory = nnls(table, np.array([part["anon_mb"] for part in parts]))[0]
    for name, values, unit in (("seconds", seconds * 1e6, "us"), ("memory", memory * 1e6, "B")):
        for what, value in zip(("step", "sampled node", "sampled edge"), values, strict=True):
            costs.append(row(f"model: {name}, {unit} a {what}", "generated", value))
    like = runs[len(shapes)]["faithful"]  # the largest measured has the batches that the next one will have
    predicted = seconds @ [1.0, like["nodes"], like["edges"]] / like["seeds"]
    costs.append(row("predicted before it ran: FGAI, CPU us a seed node", name_of(SIZES[2]), predicted * 1e6))
    write_costs(RESULTS, costs)


@app.command()
def interleaved(
    folder: Folder, size: Annotated[list[int] | None, typer.Option()] = None, count: int = 5, repeats: int = 3
) -> None:
    """FGAI with its default adversary beside plain PyG, in turns in one process; medians of CPU time."""
    torch.set_num_threads(1)
    for nodes in size or SIZES[:2]:
        runs: dict[str, list[Timed]] = {"plain": [], "default": []}
        for _ in range(repeats):
            for way, run in (("plain", plain), ("default", default)):
                runs[way].append(opened(folder, nodes, BATCH, FANOUT, count))
                run(runs[way][-1])
        seed_node = {way: median(one.cpu / one.seeds for one in done) for way, done in runs.items()}
        edge = {way: median(one.cpu / one.edges for one in done) for way, done in runs.items()}
        print(nodes, seed_node, edge, flush=True)
        figures = {
            "FGAI's seed nodes/s over plain PyG's, default adversary": seed_node["plain"] / seed_node["default"],
            "FGAI, default adversary, CPU ns a sampled edge": edge["default"] * 1e9,
            "plain PyG beside FGAI with the default adversary, CPU ns a sampled edge": edge["plain"] * 1e9,
        }
        write_costs(RESULTS, [row(what, name_of(nodes), value) for what, value in figures.items()])


@app.command()
def check(folder: Folder, count: int = 10) -> None:
    """Measure the largest graph and compare it with the prediction."""
    costs = [cost for batch in (BATCH, FEW) for cost in costs_of(measured(folder, SIZES[2], batch, count=count))]
    known = {(cost.what, cost.dataset): cost.value for cost in (*read_costs(RESULTS), *costs)}
    us = "FGAI, CPU us a seed node"
    predicted, actual = known[f"predicted before it ran: {us}", name_of(SIZES[2])], known[us, name_of(SIZES[2])]
    costs.append(row("predicted over measured", name_of(SIZES[2]), predicted / actual))
    costs.append(row("CPU a seed node, over 10^6 nodes", name_of(SIZES[2]), actual / known[us, name_of(SIZES[1])]))
    for batch in (BATCH, FEW):
        mb = f"FGAI, peak MB of its own, {batch} seed nodes a batch"
        grown = known[mb, name_of(SIZES[2])] / known[mb, name_of(SIZES[0])]
        costs.append(row(f"peak memory over that of 10^5 nodes, {batch} seed nodes a batch", name_of(SIZES[2]), grown))
    write_costs(RESULTS, costs)


@app.command()
def limited(folder: Folder, nodes: int = SIZES[2], limit_mb: int = LIMIT_MB, count: int = 5) -> None:
    """The largest graph, FGAI, in a memory group of its own (cgroup v1) that is smaller than the features."""
    group = Path("/sys/fs/cgroup/memory/fgai-scale")
    store = folder / f"{nodes}"
    size = (store / "x.npy").stat().st_size / 2**20
    assert limit_mb < size, f"{limit_mb} MB is no limit, the features take {size:.0f}"
    for file in store.glob("*.npy"):  # what is cached counts for whoever read it first
        with file.open("rb") as open_file:
            os.posix_fadvise(open_file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit_mb * 2**20))
        words = ["one", str(nodes), "--folder", str(folder), "--ways", "faithful", "--count", str(count)]
        shell = f"echo $$ > {group}/cgroup.procs && exec {shlex.join([sys.executable, __file__, *words])}"
        run = subprocess.run(["sh", "-c", shell], check=True, capture_output=True, text=True)
        ours = json.loads(run.stdout.splitlines()[-1])["faithful"]
        most = int((group / "memory.max_usage_in_bytes").read_text()) / 2**20
    finally:
        group.rmdir()
    figures = {
        "features on disk, MB": size,
        "memory limit, MB": limit_mb,
        "under the limit: most memory, files in use included, MB": most,
        "under the limit: peak MB of its own": ours["anon_mb"],
        "under the limit: seconds a batch on the wall": ours["wall"],
    }
    write_costs(RESULTS, [row(what, name_of(nodes), value) for what, value in figures.items()])
    print(figures)


@app.command()
def quality(models: Annotated[Path, typer.Option()], dataset: str = "amazon-photo", epochs: int = 40) -> None:
    """Mini-batch FGAI beside FGAI on the whole graph, seed 0; and what streams beside what is computed at once."""
    torch.set_num_threads(1)
    vanilla, data = saved.load(models / f"{dataset}-gat-vanilla-0").model, datasets.load(dataset, seed=0)
    compact = datasets.compact(data)
    graph = (
        compact if dataset == "coauthor-physics" else data
    )  # sparse rows are slow to batch where a third is not zero
    model = FGAI(epochs=epochs, adversary=QUICK).fit(vanilla, Loader(graph, (20, 20), batch=BATCH)).model
    cell = Plan.read("table2").cells({"dataset": dataset, "backbone": "gat", "method": "fgai", "seed": "0"})[0]
    full_graph = {row.attack: row.metrics["f1"] for row in Cells("results/cells").rows(cell)}
    costs = []
    with eval_mode(model), accelerated(model):
        clean = clean_trial(Reader(model), compact)
        for name in ("none", *ATTACKS):
            now = clean if name == "none" else attacked_trial(THREATS[name].adversary, THREATS[name].gain, clean, 0)
            f1 = micro_f1(now.predictions, now.labels)
            costs.append(row(f"mini-batch FGAI's F1, {name}", dataset, f1))
            costs.append(
                row(f"mini-batch FGAI's F1 less the whole graph's, {name}", dataset, f1 - (full_graph[name] or 0))
            )
            print(costs[-2:], flush=True)
    full, batches = measure(clean), full_neighbour_loader(compact, 2, batch=BATCH)
    streamed = audit_batches(model, batches, seeds=0).clean
    difference = max(abs(full[name] - streamed[name]) for name in streamed)
    costs.append(row("streamed metrics, largest difference", dataset, difference))
    by_layer, at_once = concat_readings(layerwise_readings(model, compact), len(clean.y)), read(model, compact)
    radii = [certified_radius(reading.explanation, 10) for reading in (by_layer, at_once)]
    off = (by_layer.logits.softmax(1) - at_once.logits.softmax(1)).abs().max()
    costs.append(row("layer by layer: largest difference of a probability", dataset, float(off)))
    costs.append(row("layer by layer: largest difference of a certified radius", dataset, distance(*radii)))
    write_costs(RESULTS, costs)


def distance(one: torch.Tensor, two: torch.Tensor) -> float:
    known = one.isfinite() & two.isfinite()
    return float((one[known] - two[known]).abs().max())


def costs_of(run: dict[str, Any]) -> list[Cost]:
    where, ours, theirs, bare = name_of(run["size"]), run["faithful"], run["plain"], run["sampling"]
    figures = {
        "FGAI, CPU us a seed node": ours["cpu"] / ours["seeds"] * 1e6,
        "plain PyG, CPU us a seed node": theirs["cpu"] / theirs["seeds"] * 1e6,
        "sampler alone, CPU us a seed node": bare["cpu"] / bare["seeds"] * 1e6,
        "FGAI's seed nodes/s over plain PyG's, same sampler": (theirs["cpu"] / theirs["seeds"])
        / (ours["cpu"] / ours["seeds"]),
        "edges sampled for a seed node": ours["edges"] / ours["seeds"],
        "nodes sampled for a seed node": ours["nodes"] / ours["seeds"],
    }
    memory = row(f"FGAI, peak MB of its own, {run['batch']} seed nodes a batch", where, ours["anon_mb"])
    return [memory, *(row(what, where, value) for what, value in figures.items() if run["batch"] == BATCH)]


def row(what: str, dataset: str, value: float) -> Cost:
    return Cost(what, dataset, "gat", float(f"{value:.4g}"), COMMAND)


def name_of(nodes: int) -> str:
    return f"generated, 10^{len(str(nodes)) - 1} nodes"


def one_rank(folder: Path, nodes: int, count: int, out: Path) -> None:
    """What each rank does: its own batches, by the clock on the wall, and by its own, which stands while it waits."""
    torch.set_num_threads(1)
    batches = opened(folder, nodes, BATCH, FANOUT, count)
    FGAI(epochs=1, adversary=QUICK).fit(model_for_all(), batches)
    speed = distributed.all_reduce(torch.tensor([batches.seeds / batches.wall, batches.seeds / batches.cpu]))
    if distributed.rank() == 0:
        out.write_text(json.dumps(speed.tolist()))


@app.command()
def together(folder: Folder, nodes: int = SIZES[1], count: int = 20) -> None:
    """Two ranks against one, one thread each; nothing else should run on the machine."""
    speed = {}
    for number in (1, 2):
        out = folder / f"ranks{number}.json"
        launch(one_rank, folder, nodes, count, out, ranks=number, restarts=0)
        speed[number] = json.loads(out.read_text())
        print(number, speed[number], flush=True)
    parameters = sum(p.numel() for p in model_for_all().parameters())
    costs = []
    for at, clock in enumerate(("on the wall", "of CPU time")):
        costs += [row(f"FGAI, seed nodes a second {clock}, ranks: {n}", name_of(nodes), speed[n][at]) for n in speed]
        costs.append(row(f"seed nodes a second {clock}, 2 ranks over 1", name_of(nodes), speed[2][at] / speed[1][at]))
    costs.append(row("network: bytes a rank sends per step, 2 ranks", name_of(nodes), 4 * parameters))
    write_costs(RESULTS, costs)


if __name__ == "__main__":
    app()
