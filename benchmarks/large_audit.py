"""An audit of one seed, certificates and tree explanations of a generated graph in memory: results/scale.json.

python benchmarks/large_audit.py --edges 1000000       # 10 edges a node, 64 features, an untrained GAT
python benchmarks/large_audit.py --edges 10000000

Each part runs in a process of its own and is written when it is measured: CPU seconds and peak memory. An untrained
model costs what a trained one does.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Annotated

import numpy as np
import torch
import typer
from torch_geometric.data import Data

from batch_runs import DEGREE, Pieces, model_for_all
from fgai import audit, read
from fgai.bench.results import Cost, peak_mb, write_costs
from fgai.certificates import certified_radius
from fgai.graph import edge_keys

RESULTS, NODES, TOP = "results/scale.json", 1_000, 10
PARTS = ("reading", "audit", "certificates", "tree explanations")


def generated(edges: int) -> Data:
    """The graph of `scale.py`, in memory, with its edges sorted by target and each once, as in PyG's datasets."""
    graph = Pieces(edges // DEGREE)
    ends = torch.from_numpy(np.concatenate([*graph.edges()], axis=1)).long()
    keys = edge_keys(ends, graph.nodes).unique()
    ends = torch.stack([keys % graph.nodes, keys // graph.nodes])
    x, y = (torch.from_numpy(np.concatenate([*parts])) for parts in (graph.x(), graph.y()))
    test = torch.rand(graph.nodes, generator=torch.Generator().manual_seed(0)) < 0.1
    return Data(x=x, edge_index=ends, y=y, test_mask=test)


def run(part: str, edges: int) -> tuple[float, float]:
    """CPU seconds of one part, and the peak memory of this process in MB."""
    data, model = generated(edges), model_for_all().eval()
    reading = None if part in ("reading", "audit") else read(model, data)
    start = time.process_time()
    if part == "audit":
        audit(model, data, seeds=1)
    elif part == "certificates":
        assert reading is not None
        certified_radius(reading.explanation, TOP)
    elif part == "tree explanations":
        assert reading is not None
        nodes = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(0))[:NODES]  # pyright: ignore[reportArgumentType]
        for _ in reading.attribution("tree").chunks(nodes):
            pass
    else:
        read(model, data)
    return time.process_time() - start, peak_mb()


def main(
    edges: int = 1_000_000,
    part: Annotated[list[str] | None, typer.Option(help="Some of the parts; all by default.")] = None,
    one: Annotated[str, typer.Option(help="A part, for this script itself.")] = "",
) -> None:
    if one:
        print(*run(one, edges))
        return
    for name in part or PARTS:
        command = [sys.executable, __file__, "--edges", str(edges), "--one", name]
        line = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds, memory = (float(value) for value in line.split()[-2:])
        what = f"{name} of {NODES} nodes" if name == PARTS[-1] else f"{name}, one seed" if name == "audit" else name
        figures = {f"in memory: {what}, CPU seconds": seconds, f"in memory: {what}, peak MB": memory}
        for figure, value in figures.items():
            command = f"python benchmarks/large_audit.py --edges {edges}"
            cost = Cost(figure, f"generated, {edges:.0e} edges", "gat", float(f"{value:.4g}"), command)
            write_costs(RESULTS, [cost])
            print(cost, flush=True)


if __name__ == "__main__":
    typer.run(main)
