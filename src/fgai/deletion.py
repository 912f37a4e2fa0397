"""Does the prediction rest on what the explanation names? Delete edges, most or least attended first, and see."""

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
    """The columns of `edge_index` by attention, most or least first; ties by target, then source, whatever the rows.

    Among the `graph`, weights of different nodes compete, and 1/degree decides much. Among a `node`, each node loses
    its own edges at the same pace: the j-th of its d edges stands at (j + 1/2) / d.
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
    """F(r): the share of the nodes `correct` that are right after deleting the share r of all edges, for each r.

    Edges are deleted from the graph, not masked. `correct` are the nodes that were right on the clean graph. F+ deletes
    the most attended edges first, F- the least.
    """
    edges = require(graph, "edge_index")
    order = deletion_order(explanation, edges, first, among)
    curve = []
    for share in shares:
        gone = torch.zeros(edges.size(1), dtype=torch.bool, device=edges.device)
        gone[order[: round(share * edges.size(1))]] = True
        with torch.no_grad():
            answers = read(delete_edges(graph, gone)).probs[: len(y)].argmax(-1)
        curve.append(float((answers == y)[correct].cpu().double().mean()))
    return curve


def f_slope(curve: Sequence[float], shares: Sequence[float] = SHARES) -> float:
    """The slope of the least-squares line through F(r), with its sign: negative where deleting hurts.

    >>> round(f_slope([1.0, 0.9, 0.8, 0.7, 0.6, 0.5]), 6)
    -1.0
    """
    return float(np.polyfit(np.asarray(shares), np.asarray(curve), 1)[0])
