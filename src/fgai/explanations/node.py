"""The explanation of one node: printed, as a table, as a NetworkX graph, or as a PyG explanation."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.explain import Explanation as PyGExplanation
from torch_geometric.explain import HeteroExplanation

from fgai.errors import DataError
from fgai.explanations.attribution import Attribution
from fgai.files import pandas_table
from fgai.graph import locate, require
from fgai.settings import check_whole
from fgai.typed import Schema, join

SHOWN = 5  # edges that are printed


def hetero_explanation(data: HeteroData, mask: Tensor, **about: Any) -> HeteroExplanation:
    """Return a PyG explanation of a typed graph.

    Args:
        data: The graph.
        mask: The weights of its edges, relation by relation in the order of `data.edge_types`, [E].
        **about: More attributes, such as `index`.
    """
    explanation, start = HeteroExplanation(), 0
    for name in data.node_types:
        explanation[name].x = data[name].x
    for relation in data.edge_types:
        edges = data[relation].edge_index
        explanation[relation].edge_index = edges
        explanation[relation].edge_mask = mask[start : start + edges.size(1)]
        start += edges.size(1)
    for name, value in about.items():
        explanation[name] = value
    return explanation


class Edge(NamedTuple):
    """An edge with its weight for a node, and its hop: 1 for an edge into the node itself."""

    source: int
    target: int
    weight: float
    hop: int


class AttentionExplanation(PyGExplanation):
    """A PyG explanation that notebooks show as a table of its largest edges."""

    def _repr_html_(self, count: int = 10) -> str:
        mask, edges = self.get("edge_mask"), self.get("edge_index")
        if mask is None or edges is None:
            return f"<pre>{escape(repr(self))}</pre>"
        largest = mask.topk(min(count, mask.numel()))
        ends = zip(largest.values.tolist(), edges[:, largest.indices].t().tolist(), strict=True)
        rows = "".join(f"<tr><td>{s}</td><td>{t}</td><td>{weight:.4g}</td></tr>" for weight, (s, t) in ends)
        head = "<tr><th>source</th><th>target</th><th>attention</th></tr>"
        return f"<table>{head}{rows}</table><p>The {largest.values.numel()} largest of {mask.numel()} edges.</p>"


@dataclass(frozen=True, repr=False)
class NodeExplanation:
    """The edges that the prediction of one node depends on, largest weight first.

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
    edge_index: Tensor  # [2, K], largest weight first
    weight: Tensor  # [K]
    hop: Tensor  # [K]
    notes: tuple[str, ...] = ()
    typed: Schema | None = None  # the types of a typed graph, whose nodes have one numbering

    def top(self, k: int = SHOWN) -> list[Edge]:
        """Return the k edges with the largest weights."""
        check_whole(1, k=k)
        ends, weight, hop = self.edge_index[:, :k].T.tolist(), self.weight[:k].tolist(), self.hop[:k].tolist()
        return [Edge(s, t, value, distance) for (s, t), value, distance in zip(ends, weight, hop, strict=True)]

    def _edges(self) -> list[Edge]:
        return self.top(max(len(self.weight), 1))

    def __repr__(self) -> str:
        distance, count = int(self.hop.max()) if len(self.hop) else 0, len(self.weight)
        edges = f"{count} edge{'s' * (count != 1)}, up to {distance} hop{'s' * (distance != 1)} away"
        name, width = (str, 10) if self.typed is None else (self.typed.name, 24)
        ends = [f"{name(edge.source)} -> {name(edge.target)}" for edge in self.top()]
        lines = [f"  {end:<{width}} {e.weight:>5.3g}  hop {e.hop}" for end, e in zip(ends, self.top(), strict=True)]
        more = [f"  ... {count - SHOWN} more"] if count > SHOWN else []
        head = f"node {self.node}" if self.typed is None else name(self.node)
        return "\n".join([f"{head} by '{self.name}': {edges}", *lines, *more])

    def by_type(self) -> dict[tuple[str, str], float]:
        """Return the sum of the weights by the types of the source and of the target, of a typed graph."""
        if self.typed is None:
            raise DataError("this graph has one type of nodes; `top` and `to_frame` list its edges")
        sums: dict[tuple[str, str], float] = {}
        for edge in self._edges():
            source, target = (self.typed.name(node).rpartition(" ")[0] for node in (edge.source, edge.target))
            sums[source, target] = sums.get((source, target), 0.0) + edge.weight
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def to_frame(self) -> Any:
        """Return a pandas table with the columns source, target, weight and hop."""
        return pandas_table(Edge._fields, self._edges())

    def to_networkx(self) -> Any:
        """Return a `networkx.DiGraph` of these edges, with the attributes `weight` and `hop`."""
        import networkx

        graph = networkx.DiGraph(node=self.node, explanation=self.name)
        graph.add_node(self.node)
        for edge in self._edges():
            graph.add_edge(edge.source, edge.target, weight=edge.weight, hop=edge.hop)
        return graph

    def to_pyg(self, data: Data | HeteroData | None = None) -> AttentionExplanation | HeteroExplanation:
        """Return a PyG `Explanation`: on the edges of `data`, or only on the edges of this explanation.

        Of a `HeteroData` it is a `HeteroExplanation`, with an `edge_mask` for each relation.

        Self-loops that a layer added are not edges of `data` and are omitted. Parallel edges have the same weight.
        """
        if data is None:
            return AttentionExplanation(edge_index=self.edge_index, edge_mask=self.weight.float(), index=self.node)
        if isinstance(data, HeteroData):
            return hetero_explanation(data, self.mask(require(join(data), "edge_index")), index=self.node)
        edges = require(data, "edge_index")
        return AttentionExplanation(x=data.x, edge_index=edges, edge_mask=self.mask(edges), index=self.node)

    def mask(self, edge_index: Tensor) -> Tensor:
        """Return the weights of these edges, 0 for edges outside this explanation; [E].

        Raises:
            DataError: If some edges of this explanation are there in the other direction only.
        """
        edges, own = edge_index.to(self.edge_index.device), self.edge_index
        against = (locate(own, edges) < 0) & (locate(own.flip(0), edges) >= 0)
        if bool(against.any()):
            source, target = own[:, against][:, 0].tolist()
            raise DataError(
                f"messages go from {source} to {target}, but the graph has the edge {target} -> {source} only: the "
                "model reverses its edges, as layers with flow='target_to_source' do; give `edge_index.flip(0)`"
            )
        at = locate(edges, own)
        weight = torch.cat([self.weight, self.weight.new_zeros(1)])  # at -1: edges outside
        return weight[at].float().to(edge_index.device)


def explain_node(attribution: Attribution, node: int, typed: Schema | None = None) -> NodeExplanation:
    """Return the row of one node, largest weight first; ties are ordered by hop, then target, then source."""
    check_whole(0, node=node)
    rows = attribution.of_nodes(torch.tensor([min(node, attribution.num_nodes)]))  # of_nodes checks it
    by_hop = rows.hop.argsort(stable=True)
    order = by_hop[rows.weight[by_hop].argsort(descending=True, stable=True)]
    ends = rows.edge_index[:, rows.edge[order]]
    weight, hop = rows.weight[order], rows.hop[order]
    return NodeExplanation(node, attribution.name, ends, weight, hop, attribution.notes, typed)
