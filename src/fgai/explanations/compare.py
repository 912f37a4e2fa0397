"""Difference of two explanations of the same nodes: V_k and JSD over edges, matched by (source, target)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fgai.divergence import jsd_terms
from fgai.errors import MatchError
from fgai.explanations.attribution import ENTRIES, Attribution, EdgeWeights
from fgai.graph import degree, edge_keys, segment_sum, union
from fgai.printing import short_repr
from fgai.settings import check_top
from fgai.topk import effective_k, topk_mask

TOP = 5


@dataclass(frozen=True)
class Difference:
    """Difference of two explanations, per node."""

    nodes: Tensor  # [n]
    overlap: Tensor  # [n], V_k: share of the top k that is in the other's top k; NaN for nodes without edges
    jsd: Tensor  # [n], in [0, log 2]; NaN for nodes without edges
    edges: Tensor  # [n], edges of the first explanation

    __repr__ = short_repr


def compare_nodes(
    one: Attribution,
    other: Attribution,
    nodes: Tensor,
    k: int | float = TOP,
    entries: int = ENTRIES,
    known: Sequence[EdgeWeights] | None = None,
) -> Difference:
    """Return V_k and JSD between two explanations of the same nodes, over the edges of both.

    V_k is the share of the top k of `one` that is in the top k of `other`. JSD compares the positive parts of the
    weights, scaled to sum to one for each node.

    Args:
        one: The first explanation.
        other: The second explanation, such as that of an attacked graph.
        nodes: The nodes, [n].
        k: A number of edges, or a fraction of them.
        entries: Pairs (node, edge) in memory at a time.
        known: The weights of `one` for these nodes, if the caller keeps them.

    Returns:
        Overlap and JSD per node.

    >>> from fgai.attention import Attention
    >>> from fgai.explanations.attribution import attribution
    >>> edges = torch.tensor([[0, 1], [2, 2]])
    >>> a, b = (attribution("last", {"": Attention(torch.tensor(w)[:, None], edges, 3)}) for w in ([.7, .3], [.4, .6]))
    >>> compare_nodes(a, b, torch.tensor([2]), k=1).overlap
    tensor([0.], dtype=torch.float64)
    """
    check_top(k)
    if min(one.num_nodes, other.num_nodes) <= int(nodes.max() if len(nodes) else -1):
        raise MatchError(f"node {int(nodes.max())} is not in both readings; compare nodes that both have")
    first, second = _common_edges(one.edge_index, other.edge_index)
    # half of the entries: the rows of `other` are in memory at the same time
    parts = [
        _difference(rows, first, rows if other is one else other.of_nodes(rows.nodes), second, k)
        for rows in (one.chunks(nodes, entries // 2) if known is None else known)
    ]
    empty = one.layers[-1].weight.new_zeros(0)
    overlap, jsd, edges = (torch.cat([empty, *(part[number] for part in parts)]) for number in range(3))
    return Difference(nodes, overlap, jsd, edges.long())


def _common_edges(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return a number for each edge, the same in both sets, which are sorted by target, then source."""
    base = max((int(edges.max()) + 1 for edges in (one, other) if edges.numel()), default=1)
    return union(edge_keys(one, base), edge_keys(other, base))[1:]


def _difference(
    one: EdgeWeights, first: Tensor, other: EdgeWeights, second: Tensor, k: int | float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return V_k, JSD and the edges of `one` per row; `first` and `second` are the numbers of the edges."""
    count, size = len(one.nodes), len(first) + len(second)
    if one is other:
        own = degree(one.row, count)
        same = torch.where(own > 0, 1.0, torch.nan).double()
        return same, same - 1.0, own
    keys, *positions = union(one.row * size + first[one.edge], other.row * size + second[other.edge])
    spread, best = [], []
    for rows, position in zip((one, other), positions, strict=True):
        empty = rows.weight.new_zeros(len(keys))
        spread.append(empty.index_copy(0, position, rows.distribution))
        best.append(empty.bool().index_fill_(0, position[topk_mask(rows.weight, rows.row, count, k)], True))
    own, row = degree(one.row, count), keys // size
    overlap = degree(row[best[0] & best[1]], count).double() / effective_k(k, own)
    jsd = segment_sum(jsd_terms(*spread), row, count)
    return overlap, torch.where(own > 0, jsd, torch.nan), own
