"""How much each edge counts for each node, from the weights of one layer or of a chain of layers.

With A_l the attention of layer l (targets x sources, heads averaged), an edge of layer l counts for node i with

    (row i of A_L ... A_{l+1}) [target of the edge] * A_l [edge],

summed over the layers l. This is the sum, over the places where the edge stands in the computation tree of i, of its
own weight times the weights on the path from there to i. One layer alone is the case L = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from fgai.attention import Attention
from fgai.errors import SettingError, TapError
from fgai.graph import degree, edge_keys, segment_sum

ENTRIES = 4_000_000  # pairs (node, edge) that are worked on at a time: about 0.5 GB


@dataclass(frozen=True)
class EdgeWeights:
    """The edges that count for some nodes: a sparse matrix, nodes x edges, sorted by row, then edge."""

    nodes: Tensor  # [n]
    edge_index: Tensor  # [2, M], distinct edges of all layers, sorted by target, then source
    row: Tensor  # [K], a position in `nodes`
    edge: Tensor  # [K], a column of `edge_index`
    weight: Tensor  # [K], double
    hop: Tensor  # [K], 1 for an edge into the node itself

    def distribution(self) -> Tensor:
        """The positive part of the weights, scaled to sum to one over each node's edges; [K]."""
        positive = self.weight.clamp(min=0)
        total = segment_sum(positive, self.row, len(self.nodes))[self.row]
        return positive / total.clamp(min=torch.finfo(total.dtype).tiny)


@dataclass(frozen=True)
class Layer:
    """One layer's weights, edges sorted by target."""

    weight: Tensor  # [E], double
    source: Tensor  # [E]
    target: Tensor  # [E]
    edge: Tensor  # [E], a column of the distinct edges
    start: Tensor  # [T + 1], where the edges of each target begin
    skip: Tensor  # [T], what a target's own row counts beside its edges

    @property
    def num_targets(self) -> int:
        """How many nodes this layer computes."""
        return len(self.skip)


@dataclass(frozen=True)
class Attribution:
    """What every edge counts for every node under one explanation; rows are worked out when they are asked for."""

    name: str
    edge_index: Tensor  # [2, M], distinct edges of all layers, sorted by target, then source
    layers: tuple[Layer, ...]  # in the order in which they act
    notes: tuple[str, ...] = ()  # what this explanation leaves out or assumes

    @property
    def num_nodes(self) -> int:
        """How many nodes can be explained."""
        return self.layers[-1].num_targets

    def of_nodes(self, nodes: Tensor) -> EdgeWeights:
        """The edges that count for these nodes, all at once.

        >>> edges = torch.tensor([[0, 1, 1, 2], [1, 1, 2, 2]])  # 0 -> 1 -> 2, and self-loops
        >>> half = Attention(torch.full((4, 1), 0.5), edges, 3)
        >>> rows = attribution("tree", {"first": half, "last": half}).of_nodes(torch.tensor([2]))
        >>> rows.edge_index[:, rows.edge].tolist(), rows.weight.tolist(), rows.hop.tolist()
        ([[0, 1, 1, 2], [1, 1, 2, 2]], [0.25, 0.25, 0.75, 0.75], [2, 2, 1, 1])
        """
        nodes = self._checked(nodes)
        row, node = torch.arange(len(nodes), device=nodes.device), nodes
        value = self.layers[-1].weight.new_ones(len(nodes))
        found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for hop, layer in enumerate(reversed(self.layers), 1):
            parent, at = _incoming(layer, node)
            below = value[parent] * layer.weight[at]
            found.append((row[parent], layer.edge[at], below, torch.full_like(at, hop)))
            if hop < len(self.layers):
                kept = layer.skip[node] > 0
                row = torch.cat([row[parent], row[kept]])
                value = torch.cat([below, (value * layer.skip[node])[kept]])
                node = torch.cat([layer.source[at], node[kept]])
                row, node, value, _ = _coalesced(row, node, value, None)
        row, edge, weight, hop = (torch.cat(parts) for parts in zip(*found, strict=True))
        row, edge, weight, hop = _coalesced(row, edge, weight, hop)
        assert hop is not None
        return EdgeWeights(nodes, self.edge_index, row, edge, weight, hop)

    def chunks(self, nodes: Tensor, entries: int = ENTRIES) -> Iterator[EdgeWeights]:
        """The same in parts of the nodes, so that about `entries` pairs (node, edge) are held at a time."""
        nodes = self._checked(nodes)
        part = (self.places()[nodes].cumsum(0) / entries).long()
        bounds = [0, *part.unique_consecutive(return_counts=True)[1].cumsum(0).tolist()]
        for first, last in pairwise(bounds):
            yield self.of_nodes(nodes[first:last])

    def total(self) -> Tensor:
        """What each edge counts for all nodes together, in O(layers x edges); [M].

        >>> edges = torch.tensor([[0, 1, 1, 2], [1, 1, 2, 2]])
        >>> half = Attention(torch.full((4, 1), 0.5), edges, 3)
        >>> both = attribution("tree", {"first": half, "last": half})
        >>> rows = both.of_nodes(torch.arange(3))
        >>> bool((both.total() - segment_sum(rows.weight, rows.edge, 4)).abs().max() < 1e-12)
        True
        """
        counted = self.layers[-1].weight.new_zeros(self.edge_index.size(1))
        value = counted.new_ones(self.num_nodes)
        for layer, below in zip(reversed(self.layers), (*reversed(self.layers[:-1]), None), strict=True):
            along = value[layer.target] * layer.weight
            counted.index_add_(0, layer.edge, along)
            if below is not None:
                passed = segment_sum(along, layer.source, below.num_targets)
                passed[: layer.num_targets] += value * layer.skip
                value = passed
        return counted

    def places(self) -> Tensor:
        """An upper bound of the pairs (node, edge) that `of_nodes` works on, per node; [num_nodes]."""
        most = float(2 * len(self.layers) * max(self.edge_index.size(1), 1))
        count = torch.zeros(0, dtype=torch.double, device=self.edge_index.device)
        for number, layer in enumerate(self.layers):
            own = degree(layer.target, layer.num_targets).double()
            if number:
                own = own + segment_sum(count[layer.source], layer.target, layer.num_targets)
                own = own + count[: layer.num_targets] * (layer.skip > 0)
            count = own.clamp(max=most)
        return count

    def _checked(self, nodes: Tensor) -> Tensor:
        nodes = nodes.to(self.edge_index.device).reshape(-1).long()
        if len(nodes) and not 0 <= int(nodes.min()) <= int(nodes.max()) < self.num_nodes:
            wrong = nodes[(nodes < 0) | (nodes >= self.num_nodes)][0]
            raise SettingError(
                f"node {int(wrong)} was asked for, and this reading has the nodes 0 to "
                f"{self.num_nodes - 1}; ask for one of them"
            )
        return nodes


def attribution(
    name: str, sites: Mapping[str, Attention], skip: float = 0.0, notes: tuple[str, ...] = ()
) -> Attribution:
    """The attribution along a chain of layers, heads averaged, parallel edges added up.

    A target without a self-loop passes its own row on with the weight `skip`.
    """
    _check_chain(sites)
    each = [attention.detach().mean().coalesce() for attention in sites.values()]
    ends = torch.cat([attention.edge_index for attention in each], dim=1)
    base = int(ends.max()) + 1 if ends.numel() else 1
    keys, at = edge_keys(ends, base).unique(sorted=True, return_inverse=True)
    parts = at.split([attention.edge_index.size(1) for attention in each])
    layers = tuple(_layer(attention, edge, skip) for attention, edge in zip(each, parts, strict=True))
    return Attribution(name, torch.stack([keys % base, keys // base]), layers, notes)


def _layer(attention: Attention, edge: Tensor, skip: float) -> Layer:
    """One row per edge, which `coalesce` has sorted by target."""
    count, weight = attention.degree, attention.weight[:, 0].double()
    looped = torch.zeros(attention.num_targets, dtype=torch.bool, device=edge.device)
    looped[attention.target[attention.source == attention.target]] = True
    own = torch.where(looped, 0.0, weight.new_full((attention.num_targets,), skip))
    start = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return Layer(weight, attention.source, attention.target, edge, start, own)


def _check_chain(sites: Mapping[str, Attention]) -> None:
    """Every source of a layer must be a target of the layer before it."""
    for (before, lower), (after, upper) in pairwise(sites.items()):
        largest = int(upper.source.max()) if upper.source.numel() else -1
        if max(largest + 1, upper.num_targets) > lower.num_targets:
            raise TapError(
                f"layer '{after}' reads the nodes 0 to {max(largest, upper.num_targets - 1)}, and layer '{before}' "
                f"before it computes only {lower.num_targets}: they are no chain, so there is no tree of paths through "
                f"them; explain by one layer, 'last' or 'layer:{after}'"
            )


def _incoming(layer: Layer, node: Tensor) -> tuple[Tensor, Tensor]:
    """The edges into each of these nodes: whose they are, and their rows in the layer."""
    count = layer.start[node + 1] - layer.start[node]
    parent = torch.arange(len(node), device=node.device).repeat_interleave(count)
    before = (count.cumsum(0) - count).repeat_interleave(count)
    return parent, layer.start[node][parent] + torch.arange(len(parent), device=node.device) - before


def _coalesced(
    row: Tensor, column: Tensor, value: Tensor, hop: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """One entry per (row, column), sorted: values add up, the smallest hop stays."""
    base = int(column.max()) + 1 if len(column) else 1
    keys, at = (row * base + column).unique(sorted=True, return_inverse=True)
    least = None if hop is None else hop.new_zeros(len(keys)).scatter_reduce(0, at, hop, "amin", include_self=False)
    return keys // base, keys % base, segment_sum(value, at, len(keys)), least
