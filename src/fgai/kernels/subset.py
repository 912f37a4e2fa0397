"""Attention where only a few rows changed since an earlier pass: scores, softmax and sums of the edges they reach.

A row that changed reaches the targets that it is a source of, and itself. All other targets keep the scores, weights
and sums of the earlier pass, which are looked up in the cache of the `Rows`. Each function here also takes the order of
all edges, and then does the work in full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fgai.kernels.csr import EdgeOrder
from fgai.kernels.incremental import Rows, rows_of
from fgai.kernels.ops import aggregate, edge_softmax

Scores = Callable[[Tensor, Tensor, EdgeOrder], Tensor]  # of edges, from their sources and their targets


@dataclass(frozen=True, eq=False)
class EdgeSubset:
    """The edges into the targets that some rows reach."""

    full: EdgeOrder  # of all E edges
    part: EdgeOrder  # of these edges; targets are numbered as they lie in `targets`
    edges: Tensor  # [S], the edges into the reached targets
    targets: Tensor  # [T], the reached targets

    @classmethod
    def of(cls, full: EdgeOrder, rows: Tensor) -> EdgeSubset | None:
        """Those that these rows reach; None where they reach most edges, and nothing is saved.

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
        """The target of every one of all edges; [E]."""
        return self.full.target

    @property
    def num_targets(self) -> int:
        """Of all edges."""
        return self.full.num_targets


Order = EdgeOrder | EdgeSubset


def scored(
    scores: Scores, source: Tensor, target: Tensor, order: Order, name: object, parameters: Sequence[Tensor]
) -> Tensor:
    """The scores of all edges; `name` and `parameters` say what `scores` computes. [E, H]."""
    if isinstance(order, EdgeOrder):
        return scores(source, target, order)
    sources, targets = rows_of(source), rows_of(target)
    assert sources is not None and targets is not None, "an EdgeSubset is made for ends that are Rows"
    known = [sources.base, targets.base, *parameters, order.full.source, order.full.target]
    base = sources.cache.get(("scores", name), known, lambda: scores(sources.base, targets.base, order.full))
    new = scores(source, target.index_select(0, order.targets), order.part)
    return Rows(sources.cache, base, order.edges, new).tensor()


def segmented_softmax(src: Tensor, order: Order) -> Tensor:
    """The softmax of the scores over the edges of each target; [E, H].

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
    """sum_j w_ij u_j of all targets; [E, H], [num_sources, H, C] -> [num_targets, H, C]."""
    if isinstance(order, EdgeOrder):
        return aggregate(weight, value, order)
    weights, values = rows_of(weight), rows_of(value)
    if values is None or weights is None or weights.at is not order.edges:  # a tap has perturbed the weights
        return aggregate(weight, value, order.full)
    known = [values.base, weights.base, order.full.source, order.full.target]
    base = values.cache.get("sum", known, lambda: aggregate(weights.base, values.base, order.full))
    return Rows(values.cache, base, order.targets, aggregate(weights.new, value, order.part)).tensor()
