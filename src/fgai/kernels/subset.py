"""Recomputes attention only for the edges that changed rows reach: their scores, softmax and sums.

A changed row reaches the targets that it is a source of, and itself. The scores, weights and sums of all other targets
are those of the earlier pass, which the cache of the `Rows` holds. Each function also accepts the order of all edges,
and then computes everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fgai.kernels.csr import EdgeOrder
from fgai.kernels.incremental import Rows, rows_of
from fgai.kernels.ops import aggregate, edge_softmax

Scores = Callable[[Tensor, Tensor, EdgeOrder], Tensor]  # (source, target, order) -> scores of the edges


@dataclass(frozen=True, eq=False)
class EdgeSubset:
    """The edges into the targets that a set of rows reaches."""

    full: EdgeOrder  # of all E edges
    part: EdgeOrder  # of these edges; targets are numbered by their position in `targets`
    edges: Tensor  # [S], the edges into the reached targets
    targets: Tensor  # [T], the reached targets

    @classmethod
    def of(cls, full: EdgeOrder, rows: Tensor) -> EdgeSubset | None:
        """Return the edges that the rows reach; None if these are more than half of all edges.

        >>> order = EdgeOrder.of(torch.tensor([[0, 0, 1, 3], [1, 2, 2, 1]]), 4, 4)
        >>> subset = EdgeSubset.of(order, torch.tensor([3]))
        >>> subset.targets, subset.edges
        (tensor([1, 3]), tensor([0, 3]))
        """
        changed = torch.zeros(full.num_sources, dtype=torch.bool, device=rows.device).index_fill(0, rows, True)
        reached = changed.clone().index_fill(0, full.target[changed[full.source]], True)
        targets, edges = reached.nonzero()[:, 0], reached[full.target].nonzero()[:, 0]
        if 2 * len(edges) > len(full.source):
            return None
        number = reached.cumsum(0) - 1
        ends = torch.stack([full.source[edges], number[full.target[edges]]])
        return cls(full, EdgeOrder.of(ends, full.num_sources, len(targets)), edges, targets)

    @property
    def target(self) -> Tensor:
        """Target of each of all edges; [E]."""
        return self.full.target

    @property
    def num_targets(self) -> int:
        """Number of targets of all edges."""
        return self.full.num_targets


Order = EdgeOrder | EdgeSubset


def scored(
    scores: Scores, source: Tensor, target: Tensor, order: Order, name: object, parameters: Sequence[Tensor]
) -> Tensor:
    """Return the scores of all edges; [E, H]. The cache identifies `scores` by `name` and `parameters`."""
    if isinstance(order, EdgeOrder):
        return scores(source, target, order)
    sources, targets = rows_of(source), rows_of(target)
    assert sources is not None and targets is not None, "an EdgeSubset is made for ends that are Rows"
    known = [sources.base, targets.base, *parameters, order.full.source, order.full.target]
    base = sources.cache.get(("scores", name), known, lambda: scores(sources.base, targets.base, order.full))
    new = scores(source, target.index_select(0, order.targets), order.part)
    return Rows(sources.cache, base, order.edges, new).tensor()


def segmented_softmax(src: Tensor, order: Order) -> Tensor:
    """Return the softmax of the scores over the edges of each target; [E, H].

    >>> segmented_softmax(torch.zeros(2, 1), EdgeOrder.of(torch.tensor([[0, 1], [0, 0]]), 2, 1)).flatten()
    tensor([0.5000, 0.5000])
    """
    if isinstance(order, EdgeOrder):
        return edge_softmax(src, order)
    rows = rows_of(src)
    if rows is None or rows.at is not order.edges:  # a tap has perturbed the scores
        return edge_softmax(src, order.full)
    base = rows.cache.get("softmax", [rows.base, order.target], lambda: edge_softmax(rows.base, order.full))
    return Rows(rows.cache, base, rows.at, edge_softmax(rows.new, order.part)).tensor()


def weighted_sum(weight: Tensor, value: Tensor, order: Order) -> Tensor:
    """Return sum_j w_ij u_j of all targets; [E, H], [num_sources, H, C] -> [num_targets, H, C]."""
    if isinstance(order, EdgeOrder):
        return aggregate(weight, value, order)
    weights, values = rows_of(weight), rows_of(value)
    if values is None or weights is None or weights.at is not order.edges:  # a tap has perturbed the weights
        return aggregate(weight, value, order.full)
    known = [values.base, weights.base, order.full.source, order.full.target]
    base = values.cache.get("sum", known, lambda: aggregate(weights.base, values.base, order.full))
    return Rows(values.cache, base, order.targets, aggregate(weights.new, value, order.part)).tensor()
