"""The edges to delete for each node: the most attended, the least attended, or random ones of the same hop.

In each hop of a node's computation graph, the same number of edges is deleted each time, k = share x edges of that hop.
Ties are broken at random, with a seed. Self-loops are not deleted, since layers may add them again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.explanations import EdgeWeights
from fgai.graph import degree, segment_max

TIE = 1e-6  # tolerance of ties, relative to the largest weight of a group


@dataclass(frozen=True)
class Ranked:
    """Ranks of deletable edges; a group is a node and a hop, with two or more edges that are not all tied."""

    group: Tensor  # [K], the group of each edge
    edge: Tensor  # [K], a distinct edge of the attribution
    rank: Tensor  # [K], 0 for the most attended edge of its group
    size: Tensor  # [G], edges per group
    node: Tensor  # [G], index into the nodes
    hop: Tensor  # [G]

    def effective_k(self, share: float) -> Tensor:
        """Return the number of edges to delete per group: at least one, at most half; [G]."""
        return (self.size * share).long().clamp(min=1).minimum(self.size // 2)

    def shuffled(self, generator: torch.Generator) -> Tensor:
        """Return random ranks within each group; [K]."""
        return _rank(torch.zeros_like(self.rank), self.group, self.size, generator)


def ranked(rows: EdgeWeights, deletable: Tensor, generator: torch.Generator) -> Ranked:
    """Rank the edges of `rows` within each node and hop. `deletable` is a mask over its distinct edges."""
    keep = deletable[rows.edge] & (rows.edge_index[0] != rows.edge_index[1])[rows.edge]
    row, edge, weight, hop = rows.row[keep], rows.edge[keep], rows.weight[keep], rows.hop[keep]
    hops = int(hop.max()) if len(hop) else 1
    label, count = row * hops + hop - 1, len(rows.nodes) * hops
    largest = segment_max(weight.abs(), label, count).clamp(min=torch.finfo(torch.double).tiny)
    level = (weight / largest[label] / TIE).round()
    spread = segment_max(level, label, count) + segment_max(-level, label, count)
    good = (degree(label, count) >= 2) & (spread > 0)
    inside, label = good[label], label[good[label]]
    names, group = label.unique(return_inverse=True)
    size = degree(group, len(names))
    rank = _rank(level[inside], group, size, generator)
    return Ranked(group, edge[inside], rank, size, names // hops, names % hops + 1)


def sample_test(data: Data, enough: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return at most `count` random items in the mask `enough`, and in `test_mask` if it is a mask of these items."""
    mask = data.get("test_mask")
    if isinstance(mask, Tensor) and mask.shape == enough.shape:
        enough = enough & mask.to(enough)
    chosen = enough.nonzero().flatten()
    return chosen[torch.randperm(len(chosen), generator=generator)[:count].to(chosen.device)]


def _rank(level: Tensor, group: Tensor, size: Tensor, generator: torch.Generator) -> Tensor:
    """Return the rank of each entry in its group, 0 for the largest level, ties at random; [K]."""
    order = torch.randperm(len(group), generator=generator).to(group.device)
    order = order[level[order].argsort(descending=True, stable=True)]
    order = order[group[order].argsort(stable=True)]
    first = (size.cumsum(0) - size).repeat_interleave(size)
    place = torch.arange(len(group), device=group.device) - first
    return torch.empty_like(order).scatter_(0, order, place)
