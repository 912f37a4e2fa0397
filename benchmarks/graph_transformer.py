"""The graph transformer at ogbn-arXiv's size, on a generated graph: results/scale.json.

    python benchmarks/graph_transformer.py

The paper ran out of memory here (214 GiB for dense Laplacian encodings).
"""

from __future__ import annotations

import time

import torch

from fgai import backbones, datasets
from fgai.bench.results import Cost, peak_mb, write_costs
from fgai.datasets.split import split_nodes
from fgai.methods import Vanilla

COMMAND = "python benchmarks/graph_transformer.py"
EPOCHS = 3


def main() -> None:
    torch.set_num_threads(1)
    graph = datasets.synthetic(nodes=169_343, edges=1_170_000, features=128, classes=40, seed=0)
    data = split_nodes(graph, seed=0)
    start = time.perf_counter()
    data = backbones.GT.prepare(data)
    encoded = time.perf_counter()
    fit = Vanilla(epochs=EPOCHS).fit(backbones.build("gt", data), data)
    trained = time.perf_counter()
    terms = [epoch.terms["label"] for epoch in fit.history]
    print(
        f"encodings {encoded - start:.0f} s; {EPOCHS} epochs {trained - encoded:.0f} s, loss {terms}; "
        f"peak {peak_mb():.0f} MB"
    )
    generated = {"dataset": "synthetic (generated, ogbn-arXiv's size)", "backbone": "gt", "command": COMMAND}
    write_costs(
        "results/scale.json",
        [
            Cost("gt-encodings-seconds", value=round(encoded - start, 1), **generated),
            Cost("gt-epoch-seconds", value=round((trained - encoded) / EPOCHS, 1), **generated),
            Cost("gt-peak-mb", value=round(peak_mb()), **generated),
        ],
    )


if __name__ == "__main__":
    main()
