"""Rates of wrong grades for attention whose faithfulness is known by construction, results/planted.json.

The logits of a node are a sum over its edges, and half of the edges carry evidence. The attention that is read has no
effect on the logits: `true` prefers the edges with evidence, `reversed` the others, `random` and `uniform` do not
depend on it. A grade is wrong if it is `contradicted` for `true`, `supported` for
`reversed`, and either of the two for `random` and `uniform`.

Beside the measured rates stand those of a power calculation: the differences of each node are computed from the sums
directly, on one large graph, and the tests of their means are taken as normal. A row that has run is not run again.

python benchmarks/planted.py --draws 1000
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.attending import AttentionPoint
from fgai.faithfulness import measure_faithfulness
from fgai.files import write_json
from fgai.grades import MIN_NODES

SIZES = (50, 200, 1000)
KINDS = ("true", "reversed", "random", "uniform")
WRONG = {
    "true": ("contradicted",),
    "reversed": ("supported",),
    "random": ("supported", "contradicted"),
    "uniform": ("supported", "contradicted"),
}
DEGREE, EVIDENCE, STRENGTH, NOISE = 6, 0.5, 1.0, 1.0
LARGE, LARGE_SEED = 20_000, 10**6  # the graph of the power calculation


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


@dataclass(frozen=True)
class Effect:
    """Means and covariance of the two differences of a node, and the share of nodes that can be tested."""

    mean: np.ndarray  # [2]: most - random, most - least
    covariance: np.ndarray  # [2, 2]
    tested: float


@cache
def effect(kind: str, nodes: int = LARGE, seed: int = LARGE_SEED) -> Effect:
    """Compute the differences of each node of a large graph from its sum of evidence."""
    graph: Any = random_graph(nodes, kind, seed)
    order = np.argsort(target := graph.edge_index[1].numpy(), kind="stable")
    bounds = np.searchsorted(target[order], np.arange(nodes + 1))
    generator, rows = np.random.default_rng(seed), []
    for first, last in pairwise(bounds):
        pull, score = (graph[name].double().numpy()[order[first:last]] for name in ("pull", "planted"))
        if last - first >= 2 and np.ptp(score) > 0:
            ranked, gone, total = pull[np.argsort(-score)], (last - first) // 2, pull.sum()
            deleted = [ranked[:gone].sum(), generator.permutation(pull)[:gone].sum(), ranked[-gone:].sum()]
            # the drop of log sigmoid(|total|), the log-probability of the predicted class
            most, random, least = np.logaddexp(0, -np.sign(total) * (total - np.array(deleted)))
            rows.append((most - random, most - least))
    if not rows:  # all edges of each node are tied
        return Effect(np.zeros(2), np.eye(2), 0.0)
    values = np.array(rows)
    mean = np.zeros(2) if kind == "random" else values.mean(0)  # most, random and least are exchangeable
    return Effect(mean, np.cov(values.T), len(values) / nodes)


def expected(nodes: int, kind: str) -> dict[str, float]:
    """Return the rates of the grades if the mean differences are normal and tested at 99 %."""
    one = effect(kind)
    count = round(one.tested * nodes)
    if count < MIN_NODES:
        return {"supported": 0.0, "contradicted": 0.0, "unknown": 1.0}
    deviation = np.sqrt(np.diag(one.covariance))
    centre, beyond = one.mean / deviation * np.sqrt(count), stats.t.ppf(0.995, count - 1)
    correlation: Any = one.covariance / np.outer(deviation, deviation)
    together = stats.multivariate_normal(-centre, correlation)  # both means above a bound: their negatives below
    supported = float(together.cdf([-beyond, -beyond]))
    contradicted = 1 - float(together.cdf([beyond, beyond]))
    return {"supported": supported, "contradicted": contradicted, "unknown": 1 - supported - contradicted}


def rates(nodes: int, kind: str, draws: int) -> dict[str, Any]:
    """Return the measured rates of the grades."""
    model, counts = Planted(), {"supported": 0, "contradicted": 0, "unknown": 0}
    start = time.process_time()
    for seed in range(draws):
        graph = random_graph(nodes, kind, seed)
        counts[measure_faithfulness(model, graph, "last", nodes=nodes, seed=seed).grade.value] += 1
    return {
        "nodes": nodes,
        "planted": kind,
        "draws": draws,
        **{word: count / draws for word, count in counts.items()},
        "wrong": sum(counts[word] for word in WRONG[kind]) / draws,
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
            rows = json.loads(given.out.read_text()) if given.out.exists() else []
            done = {(row["nodes"], row["planted"]): row for row in rows}
            row = done.get((nodes, kind))
            row = row if row and row["draws"] == given.draws else rates(nodes, kind, given.draws)
            row |= {f"expected_{word}": round(rate, 4) for word, rate in expected(nodes, kind).items()}
            print({name: value for name, value in row.items() if name != "command"}, flush=True)
            done[nodes, kind] = row
            write_json(given.out, [done[key] for key in sorted(done)])


if __name__ == "__main__":
    main()
