"""Deletion curves: accuracy after deleting edges, most or least attended first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.attention import Attention
from fgai.computation_graph import ComputationGraph, depth_of, large_part
from fgai.explanations import class_probs
from fgai.graph import count_ends, degree, delete_edges, require, sort_edges
from fgai.reading import Reader, Reading
from fgai.topk import rank_within

MAX_NODES = 2_000  # correct nodes whose predictions are counted in a large graph
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
First = Literal["most", "least"]
Among = Literal["graph", "node"]


class DeletionCurves:
    """Deletes edges of one graph in many orders. Its edges are sorted once.

    Edges are deleted from the graph, not masked, and the model runs on what remains, sorted by target, then source. So
    its layers need not sort edges again. In a large graph, F is over a random sample of `correct`, and the model runs
    on the computation graph of these nodes.

    Args:
        read: Reader of the model, in evaluation mode.
        graph: The graph to delete edges from.
        y: Labels, [N].
        correct: Mask of the nodes that are correct on the clean graph, [N].
        now: The reading of `graph`; read if it is not given.
    """

    def __init__(self, read: Reader, graph: Data, y: Tensor, correct: Tensor, now: Reading | None = None) -> None:
        graph = sort_edges(graph)
        if isinstance(x := graph.get("x"), Tensor):  # other edges each time: nothing is known but the rows' products
            graph.x = x.detach()
        nodes = correct.nonzero()[:, 0]
        self.part = None if now is None else _sampled_part(read, graph, now, nodes)
        self._read, self._graph, self._edges, self._rows = read, graph, require(graph, "edge_index"), nodes
        if self.part is not None:
            self._graph, self._rows, nodes = self.part.graph, self.part.roots, self.part.nodes
        self._labels, self._known = y[nodes], None if now is None else now.probs[nodes].argmax(-1)
        self._lost: dict[int, Tensor] = {}  # edges that each node loses, by their sum

    def curve(
        self, explanation: Attention, first: First, among: Among = "graph", shares: Sequence[float] = SHARES
    ) -> list[float]:
        """Return F(r) for each share r of deleted edges, in the order of the weights of `explanation`."""
        return [self._accuracy(gone) for gone in self.deleted(explanation, first, among, shares)]

    def deleted(
        self, explanation: Attention, first: First, among: Among = "graph", shares: Sequence[float] = SHARES
    ) -> Iterator[Tensor]:
        """Yield, for each share, a mask of the deleted edges, sorted by target, then source.

        With `among="graph"`, weights of all nodes are compared, so degrees matter: weights are about 1/degree. With
        `among="node"`, all nodes lose their edges at the same rate: the j-th of d edges has the position (j + 1/2) / d.
        Of equal weights or positions, the first edge is deleted first.
        """
        edges, place = self._edges, explanation.edge_index.device  # the CPU if the graph's device has no float64
        counts = [round(share * edges.size(1)) for share in shares]
        columns = None if self.part is None else self.part.columns
        if among == "node" and columns is not None:
            edges = edges[:, columns]  # all edges of each of their targets
        weight = explanation.mean_heads().weights_at(edges.to(place), default=0.0)[:, 0]
        weight = weight if first == "most" else -weight
        if among == "node":
            rank = rank_within(weight, edges[1].to(place), count_ends(edges)).to(edges.device)
            yield from (rank < self._lost_per_node(count)[edges[1]] for count in counts)
        else:
            masks = (_largest(weight, count).to(edges.device) for count in counts)
            yield from (mask if columns is None else mask[columns] for mask in masks)

    def _lost_per_node(self, count: int) -> Tensor:
        """Return how many edges each node loses if all lose `count` edges at the same rate; [N]."""
        if count not in self._lost:
            target, size = self._edges[1], count_ends(self._edges)
            own = degree(target, size)
            number = torch.arange(len(target), device=target.device) - (own.cumsum(0) - own)[target]
            self._lost[count] = degree(target[_largest(-(number + 0.5) / own[target], count)], size)
        return self._lost[count]

    def _accuracy(self, gone: Tensor) -> float:
        """Return the share of the nodes that stay correct without these edges."""
        if self._known is not None and not gone.any():
            predictions = self._known
        else:
            with torch.no_grad():
                logits = self._read.logits(delete_edges(self._graph, gone))
            predictions = class_probs(logits)[self._rows].argmax(-1)
        return float((predictions == self._labels).cpu().double().mean())


def _largest(weight: Tensor, count: int) -> Tensor:
    """Return a mask of the `count` largest weights; of equal ones, the first."""
    if not 0 < count < len(weight):
        return torch.full_like(weight, count > 0, dtype=torch.bool)
    level = weight.kthvalue(len(weight) - count + 1).values
    mask = weight > level
    mask[(weight == level).nonzero()[: count - int(mask.sum()), 0]] = True
    return mask


def _sampled_part(read: Reader, graph: Data, now: Reading, nodes: Tensor) -> ComputationGraph | None:
    """Return the computation graph of a sample of the nodes, the same each time; None if the graph is not large."""
    chosen = torch.randperm(len(nodes), generator=torch.Generator().manual_seed(0))[:MAX_NODES].sort().values
    return large_part(read, graph, now.logits, nodes[chosen.to(nodes.device)], sum(depth_of(read.model, now)))


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
