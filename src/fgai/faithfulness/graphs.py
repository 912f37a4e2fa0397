"""Deletions for graph classification: each graph loses edges, and its own answer is compared.

The weight of an edge for a graph is the sum of its weights for the nodes of the graph. The graphs of a batch share no
edge, so one forward pass computes one deletion for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.devices import to_double
from fgai.explanations import Attribution, EdgeWeights, class_logits
from fgai.faithfulness.deletions import EdgeColumns, log_drops
from fgai.faithfulness.selection import Ranked, ranked, sample_test
from fgai.graph import degree, delete_edges, require
from fgai.reading import Reader, Reading


@dataclass
class GraphProbe:
    """Measures the drop of the prediction of a graph if some of its edges are deleted."""

    read: Reader
    data: Data
    clean: Reading
    attribution: Attribution
    notes: ClassVar[tuple[str, ...]] = ()
    items: ClassVar[str] = "graphs"

    def __post_init__(self) -> None:
        edges = self.attribution.edge_index
        self.columns = EdgeColumns(require(self.data, "edge_index").to(edges), edges)
        self.owner = require(self.data, "batch").to(edges.device)[edges[1]]  # the graph of each distinct edge

    def sample(self, graphs: int | Tensor, at_least: int, generator: torch.Generator) -> Tensor:
        """Return the given graphs, or a random sample of the test graphs that have enough edges."""
        if isinstance(graphs, Tensor):
            return graphs.to(self.owner)
        edges, count = self.attribution.edge_index, len(self.clean.logits)
        inside = self.columns.deletable & (edges[0] != edges[1])
        enough = degree(self.owner[inside], count) >= at_least
        return sample_test(self.data, enough, graphs, generator)

    def ranks(self, graphs: Tensor, generator: torch.Generator) -> list[tuple[Tensor, Ranked]]:
        """Return the graphs, and the ranks of the edges of each."""
        row = torch.full((len(self.clean.logits),), -1, device=graphs.device)
        row[graphs] = torch.arange(len(graphs), device=graphs.device)
        edge = (row[self.owner] >= 0).nonzero().flatten()
        edge = edge[row[self.owner[edge]].argsort(stable=True)]
        weight = self.attribution.total()[edge]
        rows = row[self.owner[edge]]
        weights = EdgeWeights(graphs, self.attribution.edge_index, rows, edge, weight, torch.ones_like(edge))
        groups = ranked(weights, self.columns.deletable, generator)
        return [(graphs, groups)] if len(groups.size) else []

    def drops(self, graph: Tensor, groups: Ranked, gone: Tensor) -> Tensor:
        """Return the drops of the log-probability of predicted classes without the edges `gone` of each graph; [G]."""
        edges = require(self.data, "edge_index")
        deleted = torch.zeros(edges.size(1), dtype=torch.bool, device=edges.device)
        deleted[self.columns.of(groups.edge[gone])[1].to(edges.device)] = True
        with torch.no_grad():
            logits = self.read(delete_edges(self.data, deleted)).logits
        before, after = (to_double(class_logits(rows)) for rows in (self.clean.logits, logits))
        return log_drops(before[graph], after[graph])
