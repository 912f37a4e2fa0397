"""Deletions for node classification: each node loses edges of its computation graph, and its own answer is compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.computation_graph import TOLERANCE
from fgai.devices import to_double
from fgai.errors import CallError, SettingError
from fgai.explanations import Attribution, class_logits
from fgai.faithfulness.deletions import (
    Deletions,
    EdgeColumns,
    Incoming,
    copied_logits,
    full_graph_logits,
    log_drops,
)
from fgai.faithfulness.selection import Ranked, ranked, sample_test
from fgai.graph import degree, locate, require, segment_sum, sort_edges
from fgai.reading import Reader, Reading
from fgai.relations import has_semantic_attention

BATCH = 1_000_000  # largest number of copied edges in one forward pass
CHECKED = 4  # deletions that are compared with a deletion in the full graph
MAX_EDGES = 10**9  # limit on forward passes x edges if each deletion runs on the full graph
FULL_GRAPH_NODES = 50  # sampled nodes if each deletion runs on the full graph


@dataclass
class NodeProbe:
    """Measures the drop of a prediction if edges are deleted.

    Indices of nodes and edges are on the device of the attribution, and the graph is on that of the model.
    """

    read: Reader
    data: Data
    clean: Reading
    attribution: Attribution
    depth: int
    early: int
    full_graph: bool | None = None  # each deletion needs the full graph; unknown before the first one
    notes: tuple[str, ...] = ()
    items: ClassVar[str] = "nodes"

    def __post_init__(self) -> None:
        distinct, self.data = self.attribution.edge_index, sort_edges(self.data)  # once, not for each deletion
        edges = require(self.data, "edge_index").to(distinct)
        self.columns = EdgeColumns(edges, distinct)
        self.deletable = self.columns.deletable
        self.incoming = Incoming(edges, int(self.data.num_nodes or 0))
        self.cost = _cost(self.incoming, edges, self.depth + self.early)

    def ranks(self, nodes: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Ranked]]:
        """Yield parts of the nodes and the ranks of their edges."""
        for rows in self.attribution.chunks(nodes):
            groups = ranked(rows, self.deletable, generator)
            if len(groups.size):
                yield rows.nodes, groups

    def decide(self, nodes: Tensor, generator: torch.Generator) -> None:
        """Find out on a few nodes whether each deletion needs the full graph."""
        for few, groups in self.ranks(nodes, generator):
            self.drops(few[groups.node], groups, groups.rank == 0)

    def check_cost(self, nodes: int) -> None:
        """Raise if deletions on the full graph take too long for so many nodes."""
        edges = require(self.data, "edge_index").size(1)
        if nodes * self.depth * edges > MAX_EDGES:
            raise SettingError(
                f"predictions depend on more than {self.depth} hops, so each deletion of {nodes} nodes needs a forward "
                f"pass over {edges:,} edges; test fewer nodes, or another model"
            )

    def drops(self, node: Tensor, groups: Ranked, gone: Tensor) -> Tensor:
        """Return the drops of the log-probability of predicted classes without the edges `gone` of each group; [G]."""
        order = groups.group[gone].argsort(stable=True)
        group, edge = groups.group[gone][order], groups.edge[gone][order]
        owner, column = self.columns.of(edge)
        deletions = Deletions(node, group[owner], column)
        if self.full_graph is None:
            self._check(deletions)
        logits = torch.cat([self._logits(part) for part in self._batches(deletions)])
        return log_drops(to_double(class_logits(self.clean.logits))[node], logits)

    def _logits(self, deletions: Deletions) -> Tensor:
        if self.full_graph:
            return full_graph_logits(self.read, self.data, deletions)
        return copied_logits(self.read, self.data, deletions, self.incoming, self.depth, self.early)

    def _batches(self, deletions: Deletions) -> Iterator[Deletions]:
        part = (self.cost[deletions.node].cumsum(0) / BATCH).long()
        bounds = [0, *part.unique_consecutive(return_counts=True)[1].cumsum(0).tolist()]
        return (deletions.part(first, last) for first, last in pairwise(bounds))

    def _check(self, deletions: Deletions) -> None:
        """Compare copies with deletions in the full graph; if they differ, do not use copies."""
        few = deletions.part(0, CHECKED)
        truth = full_graph_logits(self.read, self.data, few)
        scale = float(self.clean.logits.abs().max())
        try:
            copied = copied_logits(self.read, self.data, few, self.incoming, self.depth, self.early)
            near = bool((copied - truth).abs().max() <= TOLERANCE * max(scale, 1e-6))
            self.full_graph = not near or has_semantic_attention(self.read.model)  # many copies shift its means
        except (CallError, IndexError):  # a model of a fixed number of nodes
            self.full_graph = True
        if self.full_graph:
            self.notes = (
                "predictions depend on more than the hops of a node: each deletion ran on the full graph, and at most "
                f"{FULL_GRAPH_NODES} nodes are sampled",
            )


def sample_nodes(
    attribution: Attribution, data: Data, rows: int, nodes: int | Tensor, at_least: int, generator: torch.Generator
) -> Tensor:
    """Return the given nodes, or a random sample of the test nodes that have enough edges."""
    edges = attribution.edge_index
    if isinstance(nodes, Tensor):
        return nodes.to(edges.device)
    deletable = locate(edges, require(data, "edge_index").to(edges)) >= 0
    target = edges[1][deletable & (edges[0] != edges[1])]
    rows = min(attribution.num_nodes, rows)  # of a typed graph, the first nodes
    enough = degree(target, int(data.num_nodes or 0))[:rows] >= at_least
    return sample_test(data, enough, nodes, generator)


def _cost(incoming: Incoming, edge_index: Tensor, depth: int) -> Tensor:
    """Return an upper bound on the copied edges of one deletion, per node; [N]."""
    own = to_double(incoming.count)
    cost = own
    for _ in range(depth - 1):
        cost = (own + segment_sum(cost[edge_index[0]], edge_index[1], incoming.num_nodes)).clamp(max=float(BATCH))
    return cost + 1
