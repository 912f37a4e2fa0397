"""The weight of each edge for each node, from the attention of one layer or of a chain of layers.

With A_l the attention of layer l (targets x sources, heads averaged), the weight of an edge of layer l for node i is

    (row i of A_L ... A_{l+1}) [target of the edge] * A_l [edge],

summed over the layers l. This is a sum over the occurrences of the edge in the computation tree of i: its attention
times the attention on the path from there to i. A single layer is the case L = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from fgai.attention import Attention, Over
from fgai.errors import SettingError, TapError
from fgai.graph import degree, edge_keys, segment_sum, union
from fgai.printing import short_repr

ENTRIES = 4_000_000  # pairs (node, edge) in memory at a time: about 0.5 GB


@dataclass(frozen=True)
class EdgeWeights:
    """Weights of edges for several nodes: a sparse matrix, nodes x edges, sorted by row, then edge."""

    nodes: Tensor  # [n]
    edge_index: Tensor  # [2, M], distinct edges of all layers, sorted by target, then source
    row: Tensor  # [K], index into `nodes`
    edge: Tensor  # [K], a column of `edge_index`
    weight: Tensor  # [K], double
    hop: Tensor  # [K], 1 for an edge into the node itself

    __repr__ = short_repr

    @cached_property
    def distribution(self) -> Tensor:
        """The positive part of the weights, scaled to sum to one for each node; [K]."""
        positive = self.weight.clamp(min=0)
        total = segment_sum(positive, self.row, len(self.nodes))[self.row]
        return positive / total.clamp(min=torch.finfo(total.dtype).tiny)


@dataclass(frozen=True)
class Layer:
    """The weights of one layer, edges sorted by target."""

    weight: Tensor  # [E], double
    source: Tensor  # [E]
    target: Tensor  # [E]
    edge: Tensor  # [E], a column of the distinct edges
    start: Tensor  # [T + 1], the first edge of each target
    skip: Tensor  # [T], the weight of a target's own representation beside its edges

    @property
    def num_targets(self) -> int:
        """The number of nodes that this layer computes."""
        return len(self.skip)


@dataclass(frozen=True)
class Attribution:
    """The weight of each edge for each node under one explanation. Rows are computed on demand.

    Weights are in float64; tensors are on the device of the model, or on the CPU if it has no float64.
    """

    name: str
    edge_index: Tensor  # [2, M], distinct edges of all layers, sorted by target, then source
    layers: tuple[Layer, ...]  # in the order of execution
    notes: tuple[str, ...] = ()  # what this explanation omits or assumes
    over: Over = "edges"  # what the layers attend over

    def __repr__(self) -> str:
        layers = f"{len(self.layers)} layer{'s' * (len(self.layers) != 1)}"
        return f"Attribution({self.name!r}: {self.edge_index.size(1)} edges, {self.num_nodes} nodes, {layers})"

    @property
    def num_nodes(self) -> int:
        """The number of nodes that can be explained."""
        return self.layers[-1].num_targets

    def of_nodes(self, nodes: Tensor) -> EdgeWeights:
        """Return the weights of the edges for these nodes, all at once.

        >>> edges = torch.tensor([[0, 1, 1, 2], [1, 1, 2, 2]])  # 0 -> 1 -> 2, and self-loops
        >>> half = Attention(torch.full((4, 1), 0.5), edges, 3)
        >>> rows = attribution("tree", {"first": half, "last": half}).of_nodes(torch.tensor([2]))
        >>> rows.edge_index[:, rows.edge].tolist(), rows.weight.tolist(), rows.hop.tolist()
        ([[0, 1, 1, 2], [1, 1, 2, 2]], [0.25, 0.25, 0.75, 0.75], [2, 2, 1, 1])
        """
        nodes = self._check_nodes(nodes)
        row, node = torch.arange(len(nodes), device=nodes.device), nodes
        value = self.layers[-1].weight.new_ones(len(nodes))
        entries: list[tuple[Tensor, Tensor, Tensor]] = []
        for hop, layer in enumerate(reversed(self.layers), 1):
            parent, at = _incoming(layer, node)
            below = value[parent] * layer.weight[at]
            entries.append((row[parent], layer.edge[at], below))
            if hop < len(self.layers):
                skips = layer.skip[node] > 0
                row = torch.cat([row[parent], row[skips]])
                value = torch.cat([below, (value * layer.skip[node])[skips]])
                node = torch.cat([layer.source[at], node[skips]])
                row, node, value = _coalesce(row, node, value)
        return EdgeWeights(nodes, self.edge_index, *_merge(entries, max(self.edge_index.size(1), 1)))

    def chunks(self, nodes: Tensor, entries: int = ENTRIES) -> Iterator[EdgeWeights]:
        """Yield the weights for parts of the nodes, about `entries` pairs (node, edge) at a time."""
        nodes = self._check_nodes(nodes)
        part = (self.max_entries()[nodes].cumsum(0) / entries).long()
        bounds = [0, *part.unique_consecutive(return_counts=True)[1].cumsum(0).tolist()]
        for first, last in pairwise(bounds):
            yield self.of_nodes(nodes[first:last])

    def total(self) -> Tensor:
        """Return the sum of the weights of each edge over all nodes, in O(layers x edges); [M].

        >>> edges = torch.tensor([[0, 1, 1, 2], [1, 1, 2, 2]])
        >>> half = Attention(torch.full((4, 1), 0.5), edges, 3)
        >>> both = attribution("tree", {"first": half, "last": half})
        >>> rows = both.of_nodes(torch.arange(3))
        >>> bool((both.total() - segment_sum(rows.weight, rows.edge, 4)).abs().max() < 1e-12)
        True
        """
        total = self.layers[-1].weight.new_zeros(self.edge_index.size(1))
        value = total.new_ones(self.num_nodes)
        for layer, below in zip(reversed(self.layers), (*reversed(self.layers[:-1]), None), strict=True):
            along = value[layer.target] * layer.weight
            total.index_add_(0, layer.edge, along)
            if below is not None:
                passed = segment_sum(along, layer.source, below.num_targets)
                passed[: layer.num_targets] += value * layer.skip
                value = passed
        return total

    def edge_attention(self) -> Attention:
        """Return `total` as attention with one head, scaled to sum to one over the edges of each target.

        >>> edges = torch.tensor([[0, 1, 1, 2], [1, 1, 2, 2]])
        >>> half = Attention(torch.full((4, 1), 0.5), edges, 3)
        >>> attribution("tree", {"first": half, "last": half}).edge_attention().weight.flatten()
        tensor([0.5000, 0.5000, 0.5000, 0.5000], dtype=torch.float64)
        """
        total, target = self.total(), self.edge_index[1]
        count = max((layer.num_targets for layer in self.layers), default=0)
        scale = segment_sum(total.abs(), target, count)[target]
        weight = total / scale.clamp(min=torch.finfo(total.dtype).tiny)
        return Attention(weight[:, None], self.edge_index, count)

    def max_entries(self) -> Tensor:
        """Return an upper bound on the entries of `of_nodes` per node; [num_nodes]."""
        most = float(2 * len(self.layers) * max(self.edge_index.size(1), 1))
        count = self.layers[0].weight.new_zeros(0)
        for number, layer in enumerate(self.layers):
            own = degree(layer.target, layer.num_targets).double()
            if number:
                own = own + segment_sum(count[layer.source], layer.target, layer.num_targets)
                own = own + count[: layer.num_targets] * (layer.skip > 0)
            count = own.clamp(max=most)
        return count

    def _check_nodes(self, nodes: Tensor) -> Tensor:
        nodes = nodes.to(self.edge_index.device).reshape(-1).long()
        if len(nodes) and not 0 <= int(nodes.min()) <= int(nodes.max()) < self.num_nodes:
            wrong = nodes[(nodes < 0) | (nodes >= self.num_nodes)][0]
            raise SettingError(
                f"node {int(wrong)} does not exist; this reading has the nodes 0 to {self.num_nodes - 1}"
            )
        return nodes


def attribution(
    name: str, sites: Mapping[str, Attention], skip: float = 0.0, notes: tuple[str, ...] = ()
) -> Attribution:
    """Return the attribution along a chain of layers. Heads are averaged, parallel edges are added.

    Args:
        name: Name of the explanation.
        sites: The attention of the layers, in the order of execution.
        skip: The weight of a target's own representation in a layer where it has no self-loop.
        notes: What the explanation omits or assumes.

    Raises:
        TapError: The layers are not a chain, or a layer pools the nodes of a graph.

    >>> edges = torch.tensor([[0, 1], [1, 1]])
    >>> attribution("last", {"conv": Attention(torch.tensor([[0.7], [0.3]]), edges, 2)}).total()
    tensor([0.7000, 0.3000], dtype=torch.float64)
    """
    refuse_pooling(sites)
    _check_chain(sites)
    each = _coalesce_layers([attention.double().mean_heads() for attention in sites.values()])
    ends = torch.cat([attention.edge_index for attention in each], dim=1)
    base = int(ends.max()) + 1 if ends.numel() else 1
    if len({id(attention.edge_index) for attention in each}) == 1:
        keys = edge_keys(each[0].edge_index, base)
        parts = [torch.arange(len(keys), device=keys.device)] * len(each)
    else:
        keys, at = edge_keys(ends, base).unique(sorted=True, return_inverse=True)
        parts = at.split([attention.edge_index.size(1) for attention in each])
    layers = tuple(_layer(attention, edge, skip) for attention, edge in zip(each, parts, strict=True))
    over: list[Over] = [attention.over for attention in sites.values()]
    return Attribution(name, torch.stack([keys % base, keys // base]), layers, notes, *over[:1])


def _coalesce_layers(layers: list[Attention]) -> list[Attention]:
    """Merge the parallel edges of each layer, of layers that attend over the same edges together, sorted once."""
    first = layers[0]
    memory = {(layer.edge_index.data_ptr(), layer.edge_index.shape, layer.edge_index.stride()) for layer in layers}
    if len(memory) > 1 or len({layer.num_targets for layer in layers}) > 1:
        return [layer.coalesce() for layer in layers]
    together = replace(first, weight=torch.cat([layer.weight for layer in layers], dim=1)).coalesce()
    return [replace(together, weight=weight[:, None]) for weight in together.weight.unbind(1)]


def refuse_pooling(sites: Mapping[str, Attention]) -> None:
    """Raise `TapError` if a layer pools the nodes of a graph: its weights are of nodes, not of edges."""
    for site, attention in sites.items():
        if attention.over == "graphs":
            raise TapError(
                f"'{site}' pools the nodes of each graph, so it has a weight per node, and an explanation has one per "
                f"edge; use reading.attention['{site}'], or a model that attends over edges too"
            )


def _layer(attention: Attention, edge: Tensor, skip: float) -> Layer:
    """Return the layer of an attention that `coalesce` has sorted by target."""
    count, weight = attention.degree, attention.weight[:, 0]
    loops = torch.zeros(attention.num_targets, dtype=torch.bool, device=edge.device)
    loops[attention.target[attention.source == attention.target]] = True
    own = weight.new_full((attention.num_targets,), skip).masked_fill(loops, 0.0)
    start = torch.cat([count.new_zeros(1), count.cumsum(0)])
    return Layer(weight, attention.source, attention.target, edge, start, own)


def _check_chain(sites: Mapping[str, Attention]) -> None:
    """Raise unless each source of a layer is a target of the previous layer."""
    for (before, lower), (after, upper) in pairwise(sites.items()):
        largest = int(upper.source.max()) if upper.source.numel() else -1
        if max(largest + 1, upper.num_targets) > lower.num_targets:
            raise TapError(
                f"layer '{after}' reads the nodes 0 to {max(largest, upper.num_targets - 1)}, and layer '{before}' "
                f"before it computes only {lower.num_targets}: they are not a chain, so no tree of paths exists; "
                f"use the attention of one layer, 'last' or 'layer:{after}'"
            )


def _incoming(layer: Layer, node: Tensor) -> tuple[Tensor, Tensor]:
    """Return the edges into each of these nodes: the position of their node, and their rows in the layer."""
    count = layer.start[node + 1] - layer.start[node]
    parent = torch.arange(len(node), device=node.device).repeat_interleave(count)
    before = (count.cumsum(0) - count).repeat_interleave(count)
    return parent, layer.start[node][parent] + torch.arange(len(parent), device=node.device) - before


def _coalesce(row: Tensor, column: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Add the values of entries of the same (row, column), and sort them. Entries in order are returned as they are."""
    base = int(column.max()) + 1 if len(column) else 1
    keys = row * base + column
    if bool((keys[1:] > keys[:-1]).all()):
        return row, column, value
    keys, at = keys.unique(sorted=True, return_inverse=True)
    return keys // base, keys % base, segment_sum(value, at, len(keys))


def _merge(hops: list[tuple[Tensor, Tensor, Tensor]], base: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Add the weights of the entries (row, edge) over the hops, and sort them; the smallest hop of each remains."""
    keys, weight, hop = hops[0][0].new_zeros(0), hops[0][2].new_zeros(0), hops[0][0].new_zeros(0)
    for number, entries in enumerate(hops, 1):
        row, edge, more = _coalesce(*entries)
        keys, known, new = union(keys, row * base + edge)
        total = weight.new_zeros(len(keys)).index_copy_(0, known, weight)
        least = torch.full_like(keys, number).index_copy_(0, known, hop)
        weight, hop = total.index_add_(0, new, more), least
    return keys // base, keys % base, weight, hop
