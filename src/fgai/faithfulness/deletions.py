"""What a model answers for a node after some edges of that node's computation graph are deleted, many nodes at a time.

Each deletion is about one node. A node that the deletion touches is copied, with its remaining incoming edges, beside
the graph; sources that are untouched stay shared. One forward pass then answers many deletions, through any model. A
copy is needed for node t at distance d from the deletion's node i if the deletion reaches t by layer L - d, the last at
which t matters for i:

    reach(t) = 1 if t loses an edge, else 1 + min of reach over its sources;  t is copied if reach(t) <= L - d(t).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.explanations import class_logits
from fgai.graph import delete_edges, require

FAR = 10**6  # a reach that no depth has


@dataclass(frozen=True)
class Deletions:
    """Edges to delete: `column[k]` of the graph's edges is deleted for the node `node[case[k]]`."""

    node: Tensor  # [D], whose answer is asked for
    case: Tensor  # [K]
    column: Tensor  # [K]

    def part(self, first: int, last: int) -> Deletions:
        """The deletions `first` to `last`; `case` must be sorted."""
        start, end = torch.searchsorted(self.case, torch.tensor([first, last], device=self.case.device)).tolist()
        return Deletions(self.node[first:last], self.case[start:end] - first, self.column[start:end])


class Incoming:
    """The edges into each node, looked up for many nodes at once."""

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        self.source, self.num_nodes = edge_index[0], num_nodes
        self.order = edge_index[1].argsort(stable=True)
        self.count = torch.bincount(edge_index[1], minlength=num_nodes)
        self.start = self.count.cumsum(0) - self.count

    def of(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Whose each edge is, as a position in `node`, and its column."""
        count = self.count[node]
        owner = torch.arange(len(node), device=node.device).repeat_interleave(count)
        before = (count.cumsum(0) - count).repeat_interleave(count)
        at = self.start[node][owner] + torch.arange(len(owner), device=node.device) - before
        return owner, self.order[at]


def whole_graph_logits(read: Any, graph: Data, deletions: Deletions) -> Tensor:
    """The logits after each deletion, one forward pass on the whole graph for each; [D, C]."""
    rows = []
    edges = require(graph, "edge_index")
    for number, node in enumerate(deletions.node.tolist()):
        gone = torch.zeros(edges.size(1), dtype=torch.bool, device=edges.device)
        gone[deletions.column[deletions.case == number]] = True
        with torch.no_grad():
            rows.append(class_logits(read(delete_edges(graph, gone)).logits)[node])
    return torch.stack(rows)


def copied_logits(
    read: Any, graph: Data, deletions: Deletions, incoming: Incoming, depth: int, early: int = 0
) -> Tensor:
    """The same by copies of the touched nodes, in one forward pass; [D, C].

    `early` is 1 where a layer's messages depend on the degree of their source (GCN): a lost edge then shows one layer
    sooner, and from one hop further away.
    """
    case, node = touched(deletions, incoming, depth, early)
    size = incoming.num_nodes
    known = case * size + node  # sorted
    owner, column = incoming.of(node)
    gone = torch.isin(
        case[owner] * len(incoming.source) + column, deletions.case * len(incoming.source) + deletions.column
    )
    owner, column = owner[~gone], column[~gone]
    source = incoming.source[column]
    at = _position(case[owner] * size + source, known)
    source = torch.where(at >= 0, size + at, source)
    wider = _with_copies(graph, node, column, torch.stack([source, size + owner]))
    roots = _position(torch.arange(len(deletions.node), device=node.device) * size + deletions.node, known)
    with torch.no_grad():
        return class_logits(read(wider).logits)[size + roots]


def touched(deletions: Deletions, incoming: Incoming, depth: int, early: int = 0) -> tuple[Tensor, Tensor]:
    """The nodes that each deletion changes where it matters, the asked ones always: pairs (case, node), sorted."""
    size = incoming.num_nodes
    pairs = torch.arange(len(deletions.node), device=deletions.node.device) * size + deletions.node
    distance = torch.zeros_like(pairs)
    ring = pairs
    for step in range(1, depth + early):  # a node further away cannot be reached in time
        owner, column = incoming.of(ring % size)
        found = (ring // size)[owner] * size + incoming.source[column]
        ring = torch.unique(found)
        ring = ring[_position(ring, pairs.sort().values) < 0]
        pairs, distance = torch.cat([pairs, ring]), torch.cat([distance, torch.full_like(ring, step)])
    order = pairs.argsort()
    pairs, distance = pairs[order], distance[order]
    reach = torch.full_like(pairs, FAR)
    target = _targets(deletions, incoming)
    hit = _position(deletions.case * size + target, pairs)
    reach[hit[hit >= 0]] = 1 - early
    owner, column = incoming.of(pairs % size)
    below = _position((pairs // size)[owner] * size + incoming.source[column], pairs)
    owner, below = owner[below >= 0], below[below >= 0]
    for _ in range(depth):
        reach = reach.scatter_reduce(0, owner, reach[below] + 1, "amin")
    needed = (reach <= depth - distance) | (distance == 0)
    return pairs[needed] // size, pairs[needed] % size


def _targets(deletions: Deletions, incoming: Incoming) -> Tensor:
    """The target of each deleted column."""
    target = torch.empty_like(incoming.order)
    target[incoming.order] = torch.arange(incoming.num_nodes, device=target.device).repeat_interleave(incoming.count)
    return target[deletions.column]


def _position(asked: Tensor, known: Tensor) -> Tensor:
    """Where each key stands among sorted ones, or -1."""
    if len(known) == 0:
        return torch.full_like(asked, -1)
    at = torch.searchsorted(known, asked).clamp_(max=len(known) - 1)
    return torch.where(known[at] == asked, at, -1)


def _with_copies(graph: Data, node: Tensor, column: Tensor, edge_index: Tensor) -> Data:
    """The graph with copies of some nodes and of some edges, which then have these ends."""
    wider = copy.copy(graph)
    for name, value in graph.to_dict().items():
        if isinstance(value, Tensor) and name != "edge_index":
            if graph.is_node_attr(name):
                wider[name] = torch.cat([value, value.index_select(0, node)])
            elif graph.is_edge_attr(name):
                wider[name] = torch.cat([value, value.index_select(0, column)])
    wider.edge_index = torch.cat([require(graph, "edge_index"), edge_index], dim=1)
    if "num_nodes" in graph:
        wider.num_nodes = int(graph.num_nodes or 0) + len(node)
    return wider
