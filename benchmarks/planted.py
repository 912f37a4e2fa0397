"""Rates of wrong grades for attention whose faithfulness is known by construction, results/planted.json.

The logits of a node are a sum over its edges, and half of the edges carry evidence. The attention that is read has no
effect on the logits: `true` prefers the edges with evidence, `reversed` the others, `random` and `uniform` do not
depend on it. A grade is wrong if it is `contradicted` for `true`, `supported` for
`reversed`, and either of the two for `random` and `uniform`.

python benchmarks/planted.py --draws 1000
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.faithfulness import measure_faithfulness
from fgai.files import write_json
from fgai.tap import AttentionPoint

SIZES = (50, 200, 1000)
KINDS = ("true", "reversed", "random", "uniform")
WRONG = {
    "true": ("contradicted",),
    "reversed": ("supported",),
    "random": ("supported", "contradicted"),
    "uniform": ("supported", "contradicted"),
}
DEGREE, EVIDENCE, STRENGTH, NOISE = 6, 0.5, 1.0, 1.0


class Planted(nn.Module):
    """Logits (0, sum of the evidence of a node's edges); the attention `planted` is read and has no effect."""

    def __init__(self) -> None:
        super().__init__()
        self.point = AttentionPoint()

    def forward(self, x: Tensor, edge_index: Tensor, planted: Tensor, pull: Tensor) -> Tensor:
        """[N, 1], [2, E], [E], [E] -> [N, 2]."""
        self.point(planted[:, None], edge_index, num_targets=len(x))
        positive = torch.zeros(len(x)).index_add(0, edge_index[1], pull)
        return torch.stack([torch.zeros_like(positive), positive], dim=1)


def random_graph(nodes: int, kind: str, seed: int) -> Data:
    """Return a graph in which half of the edges carry evidence for the class of their target, the others only noise."""
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes, (2, nodes * DEGREE), generator=generator)
    ends = ends[:, ends[0] != ends[1]].unique(dim=1)
    y = torch.randint(2, (nodes,), generator=generator)
    reason = (torch.rand(ends.size(1), generator=generator) < EVIDENCE).float()
    jitter = torch.rand(ends.size(1), generator=generator)
    noise = NOISE * torch.randn(ends.size(1), generator=generator)
    pull = reason * STRENGTH * (2.0 * y[ends[1]] - 1) + noise
    planted = {"true": reason + 0.1 * jitter, "reversed": -reason + 0.1 * jitter, "random": jitter}
    score = planted.get(kind, torch.zeros_like(jitter))
    return Data(x=torch.ones(nodes, 1), edge_index=ends, y=y, planted=score, pull=pull)


def rates(nodes: int, kind: str, draws: int) -> dict[str, object]:
    model, counts = Planted(), {"supported": 0, "contradicted": 0, "unknown": 0}
    start = time.process_time()
    for seed in range(draws):
        graph = random_graph(nodes, kind, seed)
        counts[measure_faithfulness(model, graph, "last", nodes=nodes, seed=seed).grade.value] += 1
    wrong = sum(counts[word] for word in WRONG[kind]) / draws
    return {
        "nodes": nodes,
        "planted": kind,
        "draws": draws,
        **{word: count / draws for word, count in counts.items()},
        "wrong": wrong,
        "cpu_seconds_each": round((time.process_time() - start) / draws, 4),
        "command": f"python benchmarks/planted.py --draws {draws}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--out", type=Path, default=Path("results/planted.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for nodes in given.sizes:
        for kind in KINDS:
            row = rates(nodes, kind, given.draws)
            print({name: value for name, value in row.items() if name != "command"}, flush=True)
            old = json.loads(given.out.read_text()) if given.out.exists() else []
            others = [one for one in old if (one["nodes"], one["planted"]) != (nodes, kind)]
            write_json(given.out, sorted([*others, row], key=lambda one: (one["nodes"], one["planted"])))


if __name__ == "__main__":
    main()
