"""The explanation of one node, to be printed, tabulated, drawn, or given to PyG."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.explain import Explanation as PyGExplanation

from fgai.errors import MissingExtraError
from fgai.explanations.attribution import Attribution
from fgai.graph import locate, require

SHOWN = 5  # edges that are printed


class Edge(NamedTuple):
    """An edge, what it counts for the node, and how far from it it ends: 1 is an edge into the node itself."""

    source: int
    target: int
    weight: float
    hop: int


class AttentionExplanation(PyGExplanation):
    """A PyG explanation that notebooks show: the edges it names first."""

    def _repr_html_(self, count: int = 10) -> str:
        mask, edges = self.get("edge_mask"), self.get("edge_index")
        if mask is None or edges is None:
            return f"<pre>{escape(repr(self))}</pre>"
        largest = mask.topk(min(count, mask.numel()))
        ends = zip(largest.values.tolist(), edges[:, largest.indices].t().tolist(), strict=True)
        rows = "".join(f"<tr><td>{s}</td><td>{t}</td><td>{weight:.4g}</td></tr>" for weight, (s, t) in ends)
        head = "<tr><th>looked at</th><th>looks</th><th>attention</th></tr>"
        return f"<table>{head}{rows}</table><p>The {largest.values.numel()} largest of {mask.numel()} edges.</p>"


@dataclass(frozen=True, repr=False)
class NodeExplanation:
    """The edges that one node's answer rests on, by falling weight.

    >>> from fgai.attention import Attention
    >>> from fgai.explanations.attribution import attribution
    >>> half = Attention(torch.tensor([[0.7], [0.3]]), torch.tensor([[0, 2], [2, 2]]), 3)
    >>> explain_node(attribution("last", {"conv": half}), 2)
    node 2 by 'last': 2 edges, up to 1 hop away
      0 -> 2       0.7  hop 1
      2 -> 2       0.3  hop 1
    """

    node: int
    name: str
    edge_index: Tensor  # [2, K], by falling weight
    weight: Tensor  # [K]
    hop: Tensor  # [K]
    notes: tuple[str, ...] = ()

    def top(self, k: int = SHOWN) -> list[Edge]:
        """The k edges that count most."""
        ends, weight, hop = self.edge_index[:, :k].T.tolist(), self.weight[:k].tolist(), self.hop[:k].tolist()
        return [Edge(s, t, value, far) for (s, t), value, far in zip(ends, weight, hop, strict=True)]

    def __repr__(self) -> str:
        far, count = int(self.hop.max()) if len(self.hop) else 0, len(self.weight)
        edges = f"{count} edge{'s' * (count != 1)}, up to {far} hop{'s' * (far != 1)} away"
        lines = [f"  {f'{e.source} -> {e.target}':<10} {e.weight:>5.3g}  hop {e.hop}" for e in self.top()]
        more = [f"  ... {count - SHOWN} more"] if count > SHOWN else []
        return "\n".join([f"node {self.node} by '{self.name}': {edges}", *lines, *more])

    def to_frame(self) -> Any:
        """A pandas table with the columns source, target, weight and hop."""
        try:
            import pandas  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtraError("a table needs pandas; install it with: pip install pandas") from error
        return pandas.DataFrame(self.top(len(self.weight)), columns=list(Edge._fields))

    def to_networkx(self) -> Any:
        """A `networkx.DiGraph` of these edges, with the attributes `weight` and `hop`."""
        import networkx

        graph = networkx.DiGraph(node=self.node, explanation=self.name)
        graph.add_node(self.node)
        for edge in self.top(len(self.weight)):
            graph.add_edge(edge.source, edge.target, weight=edge.weight, hop=edge.hop)
        return graph

    def to_pyg(self, data: Data | None = None) -> AttentionExplanation:
        """A PyG `Explanation`: on the edges of `data`, zero outside this node's own; without `data`, on its own alone.

        A layer's own self-loops are no edges of `data` and are left out; parallel edges share one weight.
        """
        if data is None:
            return AttentionExplanation(edge_index=self.edge_index, edge_mask=self.weight.float(), index=self.node)
        edges = require(data, "edge_index")
        return AttentionExplanation(x=data.x, edge_index=edges, edge_mask=self.mask(edges), index=self.node)

    def mask(self, edge_index: Tensor) -> Tensor:
        """The weights on these edges, 0 where one does not count for the node; [E]."""
        at = locate(edge_index, self.edge_index)
        weight = torch.cat([self.weight, self.weight.new_zeros(1)])  # the last, -1, is for edges that do not count
        return weight[at].float()


def explain_node(attribution: Attribution, node: int) -> NodeExplanation:
    """The row of one node, by falling weight; ties by hop, then target, then source."""
    rows = attribution.of_nodes(torch.tensor([node]))
    by_hop = rows.hop.argsort(stable=True)
    order = by_hop[rows.weight[by_hop].argsort(descending=True, stable=True)]
    ends = rows.edge_index[:, rows.edge[order]]
    return NodeExplanation(node, attribution.name, ends, rows.weight[order], rows.hop[order], attribution.notes)
