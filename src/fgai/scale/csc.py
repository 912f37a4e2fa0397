"""A graph as a sampler wants it: the edges that arrive at each node, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.graph import degree, need, rising


@dataclass(frozen=True)
class CSC:
    """Compressed sparse columns: the sources of node i's edges are `source[start[i] : start[i + 1]]`.

    >>> csc = CSC.of(Data(edge_index=torch.tensor([[2, 0, 1], [1, 1, 0]]), num_nodes=3))
    >>> csc.start, csc.source, csc.edge
    (tensor([0, 1, 3, 3]), tensor([1, 2, 0]), tensor([2, 0, 1]))
    """

    start: Tensor  # [N + 1]
    source: Tensor  # [E], of any integer type
    edge: Tensor | None = None  # [E], where each edge was in the graph it came from; None if there

    @classmethod
    def of(cls, data: Data) -> CSC:
        """The edges of `data`, grouped by target; edges that share one keep their order."""
        edges, nodes = need(data, "edge_index"), int(data.num_nodes or 0)
        _, order = rising(edges[1])
        ends = degree(edges[1], nodes).cumsum(0)
        return cls(torch.cat([ends.new_zeros(1), ends]), edges[0][order], order)

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.start.numel() - 1

    def degree(self, nodes: Tensor) -> Tensor:
        """How many edges arrive at each of these nodes."""
        return self.start[nodes + 1] - self.start[nodes]
