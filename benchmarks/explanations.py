"""Cost of explanations on a generated graph of 10^6 edges: seconds and peak memory, results/speed.json.

python benchmarks/explanations.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from fgai import backbones, datasets
from fgai.bench.results import Cost, peak_mb, write_costs
from fgai.explanations import compare_nodes
from fgai.reading import open_reader

COMMAND = "python benchmarks/explanations.py"
NODES, EXPLAINED = 100_000, 1_000


def seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return round(time.process_time() - start, 3)


def costs(edges: int) -> list[Cost]:
    graph = datasets.synthetic(NODES, edges, features=32, classes=8, seed=0)
    model = backbones.build("gat", graph)
    nodes = torch.randperm(NODES, generator=torch.Generator().manual_seed(0))[:EXPLAINED]
    with open_reader(model) as read:
        reading = read(graph)
        values = {
            "forward pass": seconds(lambda: read.logits(graph)),
            "peak memory, GB, after the reading": round(peak_mb() / 1024, 2),
        }
        for name in ("tree", "last", "leave-one-out"):
            given = {"read": read, "graph": graph} if name == "leave-one-out" else {}
            values[f"prepare {name}"] = seconds(lambda n=name, g=given: reading.attribution(n, **g))
            ready = reading.attribution(name, **given)
            pairs = sum(len(rows.weight) for rows in ready.chunks(nodes))
            values[f"{EXPLAINED} nodes by {name}"] = seconds(lambda r=ready: [len(p.weight) for p in r.chunks(nodes)])
            values[f"{EXPLAINED} nodes by {name}, pairs (node, edge)"] = pairs
            values[f"sum over all nodes by {name}"] = seconds(ready.total)
            values[f"compare {EXPLAINED} nodes by {name}"] = seconds(lambda r=ready: compare_nodes(r, r, nodes))
            values[f"peak memory, GB, after {name}"] = round(peak_mb() / 1024, 2)
    values["one node, from the reading"] = seconds(lambda: reading.explain(int(nodes[0])))
    where = f"generated, {edges:,} edges"
    return [Cost(f"explanations: {what}", where, "gat", float(value), COMMAND) for what, value in values.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edges", type=int, default=1_000_000)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = costs(parser.parse_args().edges)
    for row in rows:
        print(f"{row.what}: {row.value}")
    write_costs("results/speed.json", rows)


if __name__ == "__main__":
    main()
