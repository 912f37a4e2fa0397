"""Deletion curves: accuracy after deleting edges, most or least attended first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.attention import Attention
from fgai.explanations import class_probs
from fgai.graph import count_ends, degree, delete_edges, require, sort_edges, sorted_edges
from fgai.reading import Reader
from fgai.topk import rank_within

SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
First = Literal["most", "least"]
Among = Literal["graph", "node"]


def deletion_order(explanation: Attention, edge_index: Tensor, first: First, among: Among = "graph") -> Tensor:
    """Return the columns of `edge_index` in order of attention; ties are ordered by target, then source.

    With `among="graph"`, weights of all nodes are compared, so degrees matter: weights are about 1/degree. With
    `among="node"`, all nodes lose their edges at the same rate: the j-th of d edges has the position (j + 1/2) / d.
    """
    fixed = sorted_edges(edge_index)
    return fixed[_order(explanation, edge_index[:, fixed], first, among)]


def _order(explanation: Attention, edges: Tensor, first: First, among: Among) -> Tensor:
    """Return the columns of sorted edges in order of attention."""
    weight, target, size = explanation.mean_heads().weights_at(edges, default=0.0)[:, 0], edges[1], count_ends(edges)
    weight = weight if first == "most" else -weight
    if among == "node":
        weight = -(rank_within(weight, target, size) + 0.5) / degree(target, size)[target]
    return weight.argsort(descending=True, stable=True)


class DeletionCurves:
    """Deletes edges of one graph in many orders. Its edges are sorted once.

    Edges are deleted from the graph, not masked, and the model runs on what remains, sorted by target, then source. So
    its layers need not sort edges again.

    Args:
        read: Reader of the model, in evaluation mode.
        graph: The graph to delete edges from.
        y: Labels, [N].
        correct: Mask of the nodes that are correct on the clean graph, [N].
        predictions: The predicted classes on `graph`, [N] or more; read if they are not given.
    """

    def __init__(
        self, read: Reader, graph: Data, y: Tensor, correct: Tensor, predictions: Tensor | None = None
    ) -> None:
        self._read, self._y, self._correct, self._predictions = read, y, correct, predictions
        self._graph = sort_edges(graph)
        if isinstance(x := graph.get("x"), Tensor):  # other edges each time: nothing is known but the rows' products
            self._graph.x = x.detach()

    def curve(
        self, explanation: Attention, first: First, among: Among = "graph", shares: Sequence[float] = SHARES
    ) -> list[float]:
        """Return F(r) for each share r of deleted edges, in the order of the weights of `explanation`."""
        edges = require(self._graph, "edge_index")
        place = explanation.edge_index.device  # the CPU if the device of the graph has no float64
        order = _order(explanation, edges.to(place), first, among).to(edges.device)
        return [self._accuracy(order[: round(share * edges.size(1))]) for share in shares]

    def _accuracy(self, columns: Tensor) -> float:
        """Return the share of `correct` nodes that stay correct without these edges."""
        predictions = self._predictions
        if predictions is None or len(columns):
            gone = torch.zeros(require(self._graph, "edge_index").size(1), dtype=torch.bool, device=columns.device)
            gone[columns] = True
            with torch.no_grad():
                logits = self._read.logits(delete_edges(self._graph, gone))
            predictions = class_probs(logits).argmax(-1)
        return float((predictions[: len(self._y)] == self._y)[self._correct].cpu().double().mean())


def f_curve(
    read: Reader,
    graph: Data,
    explanation: Attention,
    y: Tensor,
    correct: Tensor,
    first: First,
    among: Among = "graph",
    shares: Sequence[float] = SHARES,
) -> list[float]:
    """Compute F(r): the share of `correct` nodes that stay correct after deleting the share r of all edges.

    Edges are deleted from the graph, not masked. F+ deletes the most attended edges first, F- the least attended.

    Args:
        read: Reader of the model, in evaluation mode.
        graph: The graph to delete edges from.
        explanation: Attention that orders the edges.
        y: Labels, [N].
        correct: Mask of the nodes that are correct on the clean graph, [N].
        first: Which edges to delete first: `most` or `least` attended.
        among: Compare weights in the whole `graph`, or within each `node`.
        shares: The values of r.

    Returns:
        F(r) for each r.
    """
    return DeletionCurves(read, graph, y, correct).curve(explanation, first, among, shares)


def f_slope(curve: Sequence[float], shares: Sequence[float] = SHARES) -> float:
    """Compute the slope of the least-squares line through F(r); negative if deletion hurts.

    Args:
        curve: F(r), as `f_curve` returns it.
        shares: The values of r.

    Returns:
        The slope, with its sign.

    >>> round(f_slope([1.0, 0.9, 0.8, 0.7, 0.6, 0.5]), 6)
    -1.0
    """
    return float(np.polyfit(np.asarray(shares), np.asarray(curve), 1)[0])
