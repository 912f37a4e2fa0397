"""Is what is proved true? Random attentions and random boxes, each against an independent source.

`python benchmarks/soundness.py [--count 10000] [--programs 300]` prints a row per comparison, and how often a proof was
broken. Attentions have parallel edges, ties, weights of zero, nodes with fewer neighbours than k, and single precision;
pushes are shorter than the radius by 1e-6, the rounding of such weights.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from scipy.optimize import linprog
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from fgai.adversaries import GAINS, AttentionBall
from fgai.attention import Attention
from fgai.certificates import certified_radius, eviction_costs, guaranteed_overlap, worst_push
from fgai.certificates.explanation import Norm
from fgai.certificates.intervals import Box, softmax_bounds
from fgai.metrics import top_overlap
from fgai.reading import Reader

WIDE = 6  # neighbours of a node, at most
SLACK = 1e-6
NORMS: tuple[Norm, ...] = ("l1", "l2", "linf")
Row = tuple[str, int, int]  # what was compared, how often, how often the proof was broken


def attentions(count: int, draw: torch.Generator) -> Attention:
    """As many nodes, each with 1 to 8 edges from at most 6 neighbours: softmax weights, ties, and zeros; float32."""
    size = torch.randint(1, 9, (count,), generator=draw)
    target = torch.arange(count).repeat_interleave(size)
    source = torch.randint(WIDE, (len(target),), generator=draw)
    raw = torch.rand(len(target), generator=draw) ** 3
    kind = torch.arange(count)[target] % 3
    raw = torch.where(kind == 1, (4 * raw).ceil(), raw)  # ties
    raw = torch.where((kind == 2) & (torch.rand(len(target), generator=draw) < 0.3), 0.0, raw + 1e-3)
    total = torch.zeros(count).index_add(0, target, raw).clamp(min=1e-6)
    return Attention((raw / total[target])[:, None], torch.stack([source, target]), count)


def dense(attention: Attention) -> tuple[Tensor, Tensor]:
    """Weights of neighbours [N, WIDE], parallel edges added up, and which neighbours there are."""
    at = (attention.target, attention.source)
    weight = torch.zeros(attention.num_targets, WIDE, dtype=torch.double)
    there = torch.zeros(attention.num_targets, WIDE, dtype=torch.bool).index_put(at, torch.tensor(True))
    return weight.index_put(at, attention.weight[:, 0].double(), accumulate=True), there


def members(weight: Tensor, there: Tensor, k: int) -> Tensor:
    """The top k of each row, ties to the smaller id; [N, WIDE]."""
    order = torch.where(there, weight, -torch.inf).argsort(dim=1, descending=True, stable=True)
    place = torch.empty_like(order).scatter_(1, order, torch.arange(WIDE).expand_as(order))
    return there & (place < k)


def closed_forms(attention: Attention, k: int) -> Iterator[Row]:
    """The radius of every node is half, or 1/sqrt 2, or the whole of the least gap between a member and another."""
    weight, there = dense(attention)
    inside = members(weight, there, k)
    gap = weight[:, :, None] - weight[:, None, :]
    gap = gap.masked_fill(~(inside[:, :, None] & (there & ~inside)[:, None, :]), torch.inf).flatten(1).amin(1)
    for norm, share in zip(NORMS, (1.0, 2**-0.5, 0.5), strict=True):
        radius = certified_radius(attention, k, norm=norm)
        wrong = radius > gap.clamp(min=0) * share + SLACK
        yield f"radius against all pairs, k={k}, {norm}", len(radius), int(wrong.sum())


def pushes(attention: Attention, k: int, radius: float, draw: torch.Generator, times: int = 3) -> Iterator[Row]:
    """Neither the worst push nor random ones of this size undercut what is promised."""
    first = attention.coalesce()
    for norm in NORMS:
        promised = guaranteed_overlap(attention, k, radius, norm)
        tried = [worst_push(attention, k, max(radius - SLACK, 0), norm)]
        for _ in range(times):
            entry = torch.randn(len(first.weight), generator=draw, dtype=torch.double)
            tried.append(_on_edges(entry, first, attention, norm, radius - SLACK))
        broken = 0
        for push in tried:
            now = Attention(attention.weight.double() + push[:, None], attention.edge_index, attention.num_targets)
            broken += int((top_overlap(attention, now, k) < promised - 1e-9).sum())
        yield f"pushes, k={k}, {norm}, radius {radius:g}", len(tried) * attention.num_targets, broken


def _on_edges(entry: Tensor, once: Attention, attention: Attention, norm: Norm, radius: float) -> Tensor:
    """A push of neighbours, scaled to this size at every node, on the first of their parallel edges."""
    size = torch.zeros(once.num_targets, dtype=torch.double)
    if norm == "linf":
        size = size.scatter_reduce(0, once.target, entry.abs(), "amax")
    else:
        size = size.index_add(0, once.target, entry.abs() if norm == "l1" else entry.square())
    entry = radius * entry / (size.sqrt() if norm == "l2" else size)[once.target]
    keys, asked = (a.target * WIDE + a.source for a in (attention, once))
    row = torch.full((once.num_targets * WIDE,), -1).index_put((keys.flip(0),), torch.arange(len(keys)).flip(0))
    return torch.zeros(len(keys), dtype=torch.double).index_put((row[asked],), entry)


def programs(attention: Attention, count: int, k: int) -> Iterator[Row]:
    """A linear program for each exchange of m members of the first nodes: none is cheaper than the cost of m."""
    weight, there = dense(attention)
    inside = members(weight, there, k)
    for norm in ("l1", "linf"):
        costs, broken, asked = eviction_costs(attention, k, norm), 0, 0
        for node, m, cost in zip(costs.node.tolist(), costs.members.tolist(), costs.cost.tolist(), strict=True):
            if node >= count:
                break
            a, b = (part.nonzero().flatten().tolist() for part in (inside[node], there[node] & ~inside[node]))
            swaps = itertools.product(itertools.combinations(a, m), itertools.combinations(b, m))
            least = min(_program(weight[node].numpy(), out, into, norm) for out, into in swaps)
            asked, broken = asked + 1, broken + (cost > least + SLACK)
        yield f"costs against linear programs, k={k}, {norm}", asked, broken


def _program(weight: np.ndarray, out: tuple[int, ...], into: tuple[int, ...], norm: str) -> float:
    """The least push after which every one of `into` is as large as every one of `out`."""
    extra = WIDE if norm == "l1" else 1
    rows, limits = [], []
    for i, j in itertools.product(out, into):
        row = np.zeros(WIDE + extra)
        row[i], row[j] = 1, -1
        rows.append(row)
        limits.append(weight[j] - weight[i])
    for i, sign in itertools.product(range(WIDE), (1, -1)):
        row = np.zeros(WIDE + extra)
        row[i], row[WIDE + (i if norm == "l1" else 0)] = sign, -1
        rows.append(row)
        limits.append(0)
    goal = np.r_[np.zeros(WIDE), np.ones(extra)]
    return float(linprog(goal, np.array(rows), limits, bounds=[(None, None)] * len(goal), method="highs").fun)


def attacks(count: int, k: int, radius: float, draw: torch.Generator, steps: int = 10) -> Iterator[Row]:
    """`AttentionBall` through a layer of PyG on a graph with parallel edges does not undercut what is promised."""
    edges = torch.randint(count, (2, 5 * count), generator=draw)
    data = Data(x=torch.randn(count, 8, generator=draw), edge_index=torch.cat([edges, edges[:, ::3]], dim=1))
    torch.manual_seed(0)
    read = Reader(GATConv(8, 3, add_self_loops=False).eval())
    clean = read(data).detach()
    for norm in NORMS:
        ball = AttentionBall(radius - SLACK, norm, steps=steps)
        now = ball(read, data, GAINS["soft-top-k"](clean)).detach()
        promised = guaranteed_overlap(clean.explanation, k, radius, norm)
        broken = top_overlap(clean.explanation, now.explanation, k) < promised - 1e-9
        yield f"AttentionBall, k={k}, {norm}, radius {radius:g}", len(broken), int(broken.sum())


def boxes(count: int, draw: torch.Generator) -> Iterator[Row]:
    """The ends of a softmax over a box of radius up to 1000 lie within the bound, by a log-sum-exp of the others."""
    size = torch.randint(2, WIDE + 1, (count,), generator=draw)
    target = torch.arange(count).repeat_interleave(size)
    scale = [1000 ** torch.rand(count, generator=draw, dtype=torch.double)[target] for _ in range(2)]
    middle = torch.randn(len(target), generator=draw, dtype=torch.double) * scale[0]
    radius = torch.rand(len(target), generator=draw, dtype=torch.double) * scale[1]
    box = Box(middle[:, None], radius[:, None])
    bounds = softmax_bounds(box, target, count)
    column = torch.arange(len(target)) - (size.cumsum(0) - size)[target]
    low, high = (
        torch.full((count, WIDE), -torch.inf, dtype=torch.double).index_put((target, column), end[:, 0])
        for end in (box.low, box.high)
    )
    alone = torch.eye(WIDE, dtype=torch.bool)

    def others(score: Tensor) -> Tensor:
        return score[:, None, :].expand(-1, WIDE, -1).masked_fill(alone, -torch.inf).logsumexp(2)

    least, most = (torch.sigmoid(a - others(b))[target, column] for a, b in ((low, high), (high, low)))
    unsound = torch.maximum(bounds.low[:, 0] - least, most - bounds.high[:, 0]) > 1e-9
    loose = torch.maximum(least - bounds.low[:, 0], bounds.high[:, 0] - most).max()
    broken = torch.zeros(count, dtype=torch.bool).index_put((target[unsound],), torch.tensor(True))
    yield f"boxes of the softmax (loose by at most {float(loose):.0e})", count, int(broken.sum())


def campaign(count: int, programs_of: int, *, quick: bool = False) -> Iterator[Row]:
    """Everything; the rows as they are found. If `quick`, a tenth of it: one k and radius, and few programs."""
    draw = torch.Generator().manual_seed(0)
    attention = attentions(count, draw)
    yield from boxes(count, draw)
    if quick:
        yield from closed_forms(attention, 2)
        yield from programs(attention, programs_of, 2)
        yield from pushes(attention, 2, 0.05, draw)
        yield from attacks(200, 2, 0.1, draw)
        return
    for k in (1, 2, 3):
        yield from closed_forms(attention, k)
        yield from programs(attention, programs_of, k)
    for k, radius in itertools.product((1, 3), (0.01, 0.05, 0.2, 0.5)):
        yield from pushes(attention, k, radius, draw)
    for radius in (0.01, 0.1):
        yield from attacks(max(count // 10, 50), 2, radius, draw)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--programs", type=int, default=300)
    asked = parser.parse_args()
    total = broken = 0
    for what, count, wrong in campaign(asked.count, asked.programs):
        print(f"{what:55} {count:8} {wrong:6}", flush=True)
        total, broken = total + count, broken + wrong
    print(f"{'all':55} {total:8} {broken:6}")


if __name__ == "__main__":
    main()
