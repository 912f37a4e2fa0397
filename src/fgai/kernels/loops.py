"""PyG's functions that remove and add self-loops, with results that are computed once per graph, not once per pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.utils import add_self_loops, remove_self_loops

from fgai.cache import TensorCache
from fgai.graph import degree, edge_keys
from fgai.kernels.trim import Near, Trim, trim_edges


def self_loops(cache: TensorCache, trim: Trim | None = None, layers_left: int = 0) -> Mapping[Any, Any]:
    """Return what replaces PyG's functions in a layer.

    Args:
        cache: The cache of the results.
        trim: If given, the edges with self-loops are sorted by target, then source, and those of a sampled batch are
            trimmed. Otherwise they keep PyG's order.
        layers_left: The number of layers from this one to the last; 0 if unknown.
    """

    def cached(change: Callable[..., Any]) -> Callable[..., Any]:
        def lookup(edge_index: Tensor, edge_attr: Tensor | None = None, **settings: Any) -> Any:
            if edge_attr is not None or edge_index.layout != torch.strided:
                return change(edge_index, edge_attr, **settings)
            near = None if trim is None or change is remove_self_loops else trim.near(layers_left)
            more = {} if near is None else {"near": near}
            name = (change, settings.get("num_nodes"), near)
            return cache.get(name, [edge_index], lambda: change(edge_index, **settings, **more))

        return lookup

    add = add_self_loops if trim is None else add_sorted_loops
    return {remove_self_loops: cached(remove_self_loops), add_self_loops: cached(add)}


def add_sorted_loops(
    edge_index: Tensor, edge_attr: Tensor | None = None, *, near: Near | None = None, **settings: Any
) -> Any:
    """Add self-loops and sort by target, then source, so that gathers along the edges are mostly sequential.

    Edges that are sorted already, such as those that remain of sorted edges, are merged with the loops without sorting.

    >>> add_sorted_loops(torch.tensor([[1, 0], [0, 1]]), num_nodes=2)[0]
    tensor([[0, 1, 0, 1],
            [0, 0, 1, 1]])
    """
    if edge_attr is None and near is None and edge_index.layout == torch.strided and _is_sorted(edge_index):
        return _merge_loops(edge_index, int(settings["num_nodes"])), None
    more, attributes = add_self_loops(edge_index, edge_attr, **settings)
    if attributes is not None or more.layout != torch.strided:
        return more, attributes
    more = more if near is None else trim_edges(more, near)
    return more[:, edge_keys(more, int(settings["num_nodes"])).argsort()].contiguous(), None


def _is_sorted(edge_index: Tensor) -> bool:
    """Return whether no edge is a loop and edges are sorted by target, then source; False on a GPU, to avoid a sync."""
    source, target = edge_index
    if edge_index.device.type != "cpu" or bool((source == target).any()):
        return False
    step = target.diff()
    return bool(((step > 0) | ((step == 0) & (source.diff() >= 0))).all())


def _merge_loops(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Insert the loops of the first nodes into sorted edges: before j -> i are those of i nodes, of i + 1 if j > i."""
    source, target = edge_index
    nodes = torch.arange(num_nodes, device=target.device)
    before = torch.where(target < num_nodes, target + (source > target).long(), num_nodes)
    count = degree(target, num_nodes)[:num_nodes]
    lower = degree(target[source < target], num_nodes)[:num_nodes]
    place = torch.cat(
        [torch.arange(len(target), device=target.device) + before, count.cumsum(0) - count + lower + nodes]
    )
    merged = place.new_empty(2, len(place))  # int64 even if the edges are int32, as PyG returns them
    merged[0].index_copy_(0, place, torch.cat([source, nodes]))
    merged[1].index_copy_(0, place, torch.cat([target, nodes]))
    return merged
