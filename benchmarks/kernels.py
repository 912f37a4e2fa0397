"""What the sparse products gain over PyG's own layers, in one run on one thread: results/speed.json.

python benchmarks/kernels.py                       # one training step of the paper's backbones, Photo and Physics
python benchmarks/kernels.py --sweep               # single layers, by heads, width, edges and threads; printed
python benchmarks/kernels.py --growth              # 10^5 to 10^7 edges, time per edge
python benchmarks/kernels.py --trim                # a sampled batch with edges trimmed, and with rows trimmed too
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Annotated, Any

import torch
import typer
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from fgai import accelerated, backbones, datasets
from fgai.backbones import base, gat, gt
from fgai.bench.results import Cost, peak_mb, write_costs
from fgai.graph import require
from fgai.large import Loader
from fgai.progress import progress

COMMAND = "python benchmarks/kernels.py"
OUT = "results/speed.json"
LAYERS = {"GATConv": GATConv, "GATv2Conv": GATv2Conv, "TransformerConv": TransformerConv}
ROUNDS = 7


def best(run: Callable[[], object], rounds: int = ROUNDS) -> float:
    """CPU seconds of the fastest of several runs, after one that warms up: the machine may be shared."""
    run()
    times = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def step(model: nn.Module, data: Data, names: Sequence[str]) -> Callable[[], None]:
    """One training step: forward and backward."""
    known, labels = require(data, "train_mask"), require(data, "y")

    def run() -> None:
        model.zero_grad()
        logits = model(*(data[name] for name in names))
        nn.functional.cross_entropy(logits[known], labels[known]).backward()

    return run


def prepared(dataset: str, backbone: str) -> tuple[Data, nn.Module, list[str]]:
    data = backbones.BACKBONES[backbone].prepare(datasets.load(dataset, seed=0))
    return data, backbones.build(backbone, data).train(), ["x", "edge_index", *(["pe"] if backbone == "gt" else [])]


def way(dataset: str, backbone: str, how: str) -> tuple[float, float]:
    """Seconds of a step, and the peak memory of this process in MB: plain PyG, the same loop in a block, or compact."""
    torch.set_num_threads(1)
    data, model, names = prepared(dataset, backbone)
    if how != "compact":  # torch's own dropout, as a user writes it
        for module in (base, gat, gt):
            module.dropout = nn.functional.dropout  # pyright: ignore[reportAttributeAccessIssue]
    given = datasets.compact(data) if how == "compact" else data
    del data
    block = {"plain": nullcontext(), "block": accelerated(model), "compact": accelerated(model, exact=False)}[how]
    with block:
        seconds = best(step(model, given, names), 3 if dataset == "coauthor-physics" and how != "compact" else ROUNDS)
    return seconds, peak_mb()


def steps() -> list[Cost]:
    """Each way in a process of its own, so that its peak memory is its own."""
    costs, cells = [], [(d, b) for d in ("amazon-photo", "coauthor-physics") for b in ("gat", "gatv2", "gt")]
    with progress("kernels", 3 * len(cells)) as advance:
        for dataset, backbone in cells:
            measured: dict[str, list[float]] = {}
            for how in ("plain", "block", "compact"):
                line = subprocess.run(
                    [sys.executable, __file__, "--one", f"{dataset},{backbone},{how}"],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stdout
                measured[how] = [float(part) for part in line.split()[-2:]]
                advance(f"{dataset} {backbone} {how}")
            for how, what in (("block", "in the block"), ("compact", "in the block, compact features, cheaper masks")):
                for number, name in enumerate(("training step", "peak memory")):
                    value = round(measured[how][number] / measured["plain"][number], 3)
                    costs.append(
                        Cost(f"{name} {what} over PyG's", dataset, backbone, value, "python benchmarks/kernels.py")
                    )
                    print(costs[-1], flush=True)
    return costs


def layer_step(layer: str, heads: int, width: int, edges: int) -> tuple[Any, Callable[[], None]]:
    nodes = max(edges // 20, 2)
    torch.manual_seed(0)
    conv = LAYERS[layer](32, width, heads=heads)
    x, ends = torch.randn(nodes, 32), torch.randint(nodes, (2, edges))
    ends = ends[:, ends[1].argsort()]  # as most graphs are stored

    def run() -> None:
        conv.zero_grad()
        conv(x, ends).square().sum().backward()

    return conv, run


def layer_ratio(layer: str, heads: int, width: int, edges: int) -> float:
    conv, run = layer_step(layer, heads, width, edges)
    plain = best(run, 3)
    with accelerated(conv):
        return best(run, 3) / plain


def sweep() -> None:
    print("layer, heads, width, edges, threads: accelerated over PyG, forward and backward")
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for layer in LAYERS:
            for heads, width, edges in (
                (1, 8, 100_000),
                (8, 8, 100_000),
                (8, 16, 100_000),
                (1, 64, 100_000),
                (8, 8, 2_000),
                (8, 8, 5_000),
                (8, 8, 20_000),
                (8, 8, 1_000_000),
            ):
                print(
                    layer, heads, width, edges, threads, round(layer_ratio(layer, heads, width, edges), 2), flush=True
                )


def growth() -> list[Cost]:
    torch.set_num_threads(1)
    costs = []
    for layer in LAYERS:
        for edges in (10**5, 10**6, 10**7):
            conv, run = layer_step(layer, 1, 8, edges)
            with accelerated(conv, exact=False):
                nanoseconds = round(1e9 * best(run, 2) / edges, 1)
            command = "python benchmarks/kernels.py --growth"
            costs.append(
                Cost("ns per edge, forward and backward", f"generated, {edges:.0e} edges", layer, nanoseconds, command)
            )
            print(costs[-1], flush=True)
    return costs


def trim() -> list[Cost]:
    """Forward and backward of a batch of 1,024 seed nodes, fan-out 10, 10, on a graph of 10^5 nodes and degree 10.

    Rows are trimmed by hand, between the two layers of a known model: a model that fgai is given does not do so.
    """
    torch.set_num_threads(1)
    graph = datasets.synthetic(100_000, 1_000_000, features=64, classes=16, seed=0)
    batch = next(iter(Loader(graph, (10, 10), batch=1_024)))
    x, edges, labels, hops = batch.x, batch.edge_index, batch.y, batch.num_sampled_nodes
    seeds, one_hop = hops[0], hops[0] + hops[1]
    last_edges = edges[:, edges[1] < seeds]

    def sliced(model: Any) -> Any:
        return model.conv2(nn.functional.elu(model.conv1(x, edges)[:one_hop]), last_edges)

    def full(model: Any) -> Any:
        return model(x, edges)

    costs = []
    for backbone in ("gat", "gatv2"):
        model = backbones.build(backbone, graph).eval()
        times: dict[str, list[float]] = {"none": [], "edges": [], "rows too": []}
        with accelerated(model, exact=False) as trimmed:
            for name in [*times] * 3 * ROUNDS:
                start = time.process_time()
                with trimmed.batch(None if name == "none" else hops):
                    logits = (sliced if name == "rows too" else full)(model)
                    nn.functional.cross_entropy(logits[:seeds], labels[:seeds]).backward()
                times[name].append(time.process_time() - start)
        for name, over in (("edges", "none"), ("rows too", "edges")):
            value = round(median(times[name][2:]) / median(times[over][2:]), 3)
            what = f"sampled batch, trimmed: {name} over {over}"
            costs.append(Cost(what, "generated, 1e+05 nodes", backbone, value, f"{COMMAND} --trim"))
            print(costs[-1], flush=True)
    return costs


def main(
    sweeping: Annotated[bool, typer.Option("--sweep", help="Ratios of single layers.")] = False,
    growing: Annotated[bool, typer.Option("--growth", help="Time per edge.")] = False,
    trimming: Annotated[bool, typer.Option("--trim", help="A sampled batch, trimmed.")] = False,
    one: Annotated[str, typer.Option(help="dataset,backbone,way: one measurement, for this script itself.")] = "",
) -> None:
    if one:
        print(*way(*one.split(",")))
    elif sweeping:
        sweep()
    else:
        write_costs(OUT, growth() if growing else trim() if trimming else steps())


if __name__ == "__main__":
    typer.run(main)
