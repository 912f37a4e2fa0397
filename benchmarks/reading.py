"""What it costs to read attention, at Coauthor-Physics' size: a tapped over a plain forward pass, results/speed.json.

python benchmarks/reading.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv

from fgai.bench.results import Cost, write_costs
from fgai.tap import Tap

COMMAND = "python benchmarks/reading.py"
NODES, EDGES, WIDTH = 34_493, 495_924, 64


def cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def ratio(layer: type, rounds: int = 15) -> float:
    """Tapped over plain, the best of interleaved rounds: the machine may be shared."""
    x, edges = torch.randn(NODES, WIDTH), torch.randint(NODES, (2, EDGES))
    conv = layer(WIDTH, 8, heads=8).eval()
    tap = Tap(conv)

    def tapped() -> None:
        with tap.open() as caught:
            conv(x, edges)
        assert caught.attention

    with torch.no_grad():
        times = [(cpu_seconds(lambda: conv(x, edges)), cpu_seconds(tapped)) for _ in range(rounds)]
    plain, read = map(min, zip(*times, strict=True))
    return read / plain


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    costs = []
    for layer in (GATConv, GATv2Conv, TransformerConv):
        value = round(ratio(layer), 3)
        print(f"{layer.__name__}: tapped over plain {value}")
        costs.append(Cost("tapped-over-plain-forward", "coauthor-physics' size", layer.__name__, value, COMMAND))
    write_costs("results/speed.json", costs)


if __name__ == "__main__":
    main()
