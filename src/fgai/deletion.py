"""Deletion curves: accuracy after deleting edges, most or least attended first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.attention import Attention
from fgai.graph import degree, delete_edges, edge_keys, require
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
    size = int(edge_index.max()) + 1 if edge_index.numel() else 1
    fixed = edge_keys(edge_index, size).argsort(stable=True)
    weight, target = explanation.mean_heads().weights_at(edge_index, default=0.0)[fixed, 0], edge_index[1, fixed]
    weight = weight if first == "most" else -weight
    if among == "node":
        weight = -(rank_within(weight, target, size) + 0.5) / degree(target, size)[target]
    return fixed[weight.argsort(descending=True, stable=True)]


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
    edges = require(graph, "edge_index")
    place = explanation.edge_index.device  # the CPU if the device of the graph has no float64
    order = deletion_order(explanation, edges.to(place), first, among).to(edges.device)
    curve = []
    for share in shares:
        deleted = torch.zeros(edges.size(1), dtype=torch.bool, device=edges.device)
        deleted[order[: round(share * edges.size(1))]] = True
        with torch.no_grad():
            predictions = read(delete_edges(graph, deleted)).probs[: len(y)].argmax(-1)
        curve.append(float((predictions == y)[correct].cpu().double().mean()))
    return curve


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
