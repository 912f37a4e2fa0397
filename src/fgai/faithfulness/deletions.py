"""Logits of nodes after edges of their computation graphs are deleted, for many nodes in one forward pass.

Each deletion belongs to one node. Nodes that it affects are copied, with their remaining incoming edges, and appended
to the graph; sources that it does not affect are shared. One forward pass of any model then computes many deletions.
Node t at distance d from the node i of the deletion is copied if the deletion reaches t by layer L - d, the last one at
which t affects i:

    reach(t) = 1 if t loses an edge, else 1 + min of reach over its sources;  t is copied if reach(t) <= L - d(t).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.devices import to_double
from fgai.explanations import class_logits
from fgai.graph import degree, delete_edges, locate, require
from fgai.typed import rows_of

FAR = 10**6  # larger than any depth


@dataclass(frozen=True)
class Deletions:
    """Edges to delete: `column[k]` of the graph's edges is deleted for the node `node[case[k]]`."""

    node: Tensor  # [D], the nodes to predict
    case: Tensor  # [K]
    column: Tensor  # [K]

    def part(self, first: int, last: int) -> Deletions:
        """Return the deletions `first` to `last`; `case` must be sorted."""
        start, end = torch.searchsorted(self.case, torch.tensor([first, last], device=self.case.device)).tolist()
        return Deletions(self.node[first:last], self.case[start:end] - first, self.column[start:end])


class Incoming:
    """Looks up the edges into many nodes at once."""

    def __init__(self, edge_index: Tensor, num_nodes: int) -> None:
        (self.source, self.target), self.num_nodes = edge_index, num_nodes
        target = self.target
        is_sorted = bool((target.diff() >= 0).all())
        self.order = torch.arange(len(target), device=target.device) if is_sorted else target.argsort(stable=True)
        self.count = degree(edge_index[1], num_nodes)
        self.start = self.count.cumsum(0) - self.count

    @cached_property
    def place(self) -> Tensor:
        """The place of each edge among those into its target; [E]."""
        among = torch.arange(len(self.order), device=self.order.device)
        return torch.empty_like(self.order).index_copy_(0, self.order, among) - self.start[self.target]

    def of(self, node: Tensor) -> tuple[Tensor, Tensor]:
        """Return the edges into these nodes: the position of their node in `node`, and their columns."""
        count = self.count[node]
        owner = torch.arange(len(node), device=node.device).repeat_interleave(count)
        before = (count.cumsum(0) - count).repeat_interleave(count)
        at = self.start[node][owner] + torch.arange(len(owner), device=node.device) - before
        return owner, self.order[at]


class EdgeColumns:
    """Looks up the columns of `edge_index` that hold the distinct edges of an explanation."""

    def __init__(self, edge_index: Tensor, distinct: Tensor) -> None:
        at = locate(edge_index, distinct)
        self.deletable = degree(at[at >= 0], distinct.size(1)) > 0  # a mask over the distinct edges
        self._columns = Incoming(torch.stack([at, at])[:, at >= 0], distinct.size(1))
        self._original = (at >= 0).nonzero().flatten()

    def of(self, edge: Tensor) -> tuple[Tensor, Tensor]:
        """Return, for these distinct edges, the position of the edge in `edge`, and its columns."""
        owner, at = self._columns.of(edge)
        return owner, self._original[at]


def log_drops(before: Tensor, after: Tensor) -> Tensor:
    """Return the drops of the log-probability of the classes predicted before; [D, C], [D, C] -> [D]."""
    clean = to_double(before).log_softmax(-1)
    return (clean - to_double(after).log_softmax(-1)).gather(1, clean.argmax(-1, keepdim=True))[:, 0]


def full_graph_logits(read: Any, graph: Data, deletions: Deletions) -> Tensor:
    """Return the logits after each deletion, with one forward pass on the full graph for each; [D, C]."""
    rows = []
    edges = require(graph, "edge_index")
    for number, node in enumerate(deletions.node.tolist()):
        gone = torch.zeros(edges.size(1), dtype=torch.bool, device=edges.device)
        gone[deletions.column[deletions.case == number].to(edges.device)] = True
        with torch.no_grad():
            rows.append(class_logits(read.logits(delete_edges(graph, gone)))[node])
    return torch.stack(rows)


def copied_logits(
    read: Any, graph: Data, deletions: Deletions, incoming: Incoming, depth: int, early: int = 0
) -> Tensor:
    """Return the same logits from copies of the affected nodes, in one forward pass; [D, C].

    `early` is 1 if the messages of a layer depend on the degree of their source (GCN): a deleted edge then has an
    effect one layer earlier, and from one hop further away.
    """
    case, node = affected(deletions, incoming, depth, early)
    size = incoming.num_nodes
    known = case * size + node  # sorted
    owner, column = incoming.of(node)
    losing = _position(deletions.case * size + incoming.target[deletions.column], known)
    first = incoming.count[node].cumsum(0) - incoming.count[node]
    remains = torch.ones_like(owner, dtype=torch.bool)
    remains[(first[losing] + incoming.place[deletions.column])[losing >= 0]] = False
    owner, column = owner[remains], column[remains]
    source = incoming.source[column]
    at = _position(case[owner] * size + source, known)
    order = _copies_last(at >= 0, owner, len(node))
    source, column = torch.where(at >= 0, size + at, source)[order], column[order]
    wider = _with_copies(graph, node, column, torch.stack([source, size + owner]))
    roots = _position(torch.arange(len(deletions.node), device=node.device) * size + deletions.node, known)
    with torch.no_grad():
        logits = class_logits(read.logits(wider))
    return logits[rows_of(wider, size + roots).to(logits.device)]


def affected(deletions: Deletions, incoming: Incoming, depth: int, early: int = 0) -> tuple[Tensor, Tensor]:
    """Return the nodes to copy for each deletion, its own node always: pairs (case, node), sorted."""
    size = incoming.num_nodes
    pairs = torch.arange(len(deletions.node), device=deletions.node.device) * size + deletions.node
    distance = torch.zeros_like(pairs)
    ring = pairs
    for step in range(1, depth + early):  # nodes further away have no effect
        owner, column = incoming.of(ring % size)
        ring = torch.unique((ring // size)[owner] * size + incoming.source[column])
        ring = ring[_position(ring, pairs.sort().values) < 0]
        pairs, distance = torch.cat([pairs, ring]), torch.cat([distance, torch.full_like(ring, step)])
    order = pairs.argsort()
    pairs, distance = pairs[order], distance[order]
    reach = torch.full_like(pairs, FAR)
    losing = _position(deletions.case * size + incoming.target[deletions.column], pairs)
    reach[losing[losing >= 0]] = 1 - early
    near = (distance <= depth + early - 2).nonzero()[:, 0]  # others are copied only if they lose an edge
    owner, column = incoming.of(pairs[near] % size)
    below = _position((pairs[near] // size)[owner] * size + incoming.source[column], pairs)
    owner, below = near[owner[below >= 0]], below[below >= 0]
    for _ in range(depth):
        reach = reach.scatter_reduce(0, owner, reach[below] + 1, "amin")
    copied = (reach <= depth - distance) | (distance == 0)
    return pairs[copied] // size, pairs[copied] % size


def _copies_last(copied: Tensor, owner: Tensor, num: int) -> Tensor:
    """Return the edges with those from copies, which have the largest ids, last among those of their owner; [K]."""
    count, copies = degree(owner, num), degree(owner[copied], num)
    start = (count.cumsum(0) - count)[owner]
    before = (copies.cumsum(0) - copies)[owner]  # copies of other owners before an edge
    number, so_far = torch.arange(len(owner), device=owner.device), copied.cumsum(0)
    place = torch.where(copied, start + (count - copies)[owner] + so_far - 1 - before, number - so_far + before)
    return torch.empty_like(place).index_copy_(0, place, number)


def _position(keys: Tensor, known: Tensor) -> Tensor:
    """Return the index of each key in the sorted keys `known`, or -1."""
    if len(known) == 0:
        return torch.full_like(keys, -1)
    at = torch.searchsorted(known, keys).clamp_(max=len(known) - 1)
    return torch.where(known[at] == keys, at, -1)


def _with_copies(graph: Data, node: Tensor, column: Tensor, edge_index: Tensor) -> Data:
    """Return the graph with copies of the given nodes and edges; `edge_index` holds the ends of the new edges."""
    wider, edges = copy.copy(graph), require(graph, "edge_index")
    node, column, edge_index = (index.to(edges.device) for index in (node, column, edge_index))
    for name, value in graph.to_dict().items():
        if isinstance(value, Tensor) and name != "edge_index":
            if graph.is_node_attr(name):
                wider[name] = _append_copies(value, node)
            elif graph.is_edge_attr(name):
                wider[name] = torch.cat([value, value.index_select(0, column)])
    wider.edge_index = torch.cat([edges, edge_index], dim=1)
    if "num_nodes" in graph:
        wider.num_nodes = int(graph.num_nodes or 0) + len(node)
    return wider


def _append_copies(value: Tensor, rows: Tensor) -> Tensor:
    """Append copies of the given rows. A sparse result is coalesced: its entries need no sorting."""
    if not value.is_sparse:
        return torch.cat([value, value.index_select(0, rows)])
    value = value.coalesce()
    at, entries, size = value.indices(), value.values(), value.size(0)
    owner, copied = Incoming(at.flip(0), size).of(rows)
    indices = torch.cat([at, torch.stack([size + owner, at[1, copied]])], dim=1)
    shape = (size + len(rows), *value.shape[1:])
    values = torch.cat([entries, entries[copied]])
    return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=False)
