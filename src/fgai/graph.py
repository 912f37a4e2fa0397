"""Operations on PyG's `Data`: find edges by their two ends, add nodes, delete edges. The input is never modified."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adjacency import follow_edges
from fgai.errors import DataError, MatchError
from fgai.items import Items, copied, extend_batch, has_graphs, items_of
from fgai.rows import append_rows, typical_row

CONCATENATED = ("x", "edge_index", "batch", "ptr")  # not padded by `add_nodes`
IDS = ("y", "n_id", "e_id", "input_id")  # labels and ids: -1 for none


def edge_keys(edge_index: Tensor, base: int | Tensor) -> Tensor:
    """Return one integer per edge, `target * base + source`. Sorting them groups edges by target.

    `base` must exceed every node id.

    >>> edge_keys(torch.tensor([[0, 2], [1, 0]]), base=3)
    tensor([3, 2])
    """
    return edge_index[1].long() * base + edge_index[0]  # the product of two int32 would overflow


def count_nodes(graph: Data) -> int:
    """Return the number of nodes: the rows of `x`, or `num_nodes` if there are no features.

    >>> count_nodes(Data(x=torch.ones(2, 1), num_nodes=5))
    Traceback (most recent call last):
    fgai.errors.DataError: `num_nodes` is 5, and `x` has 2 rows; remove `num_nodes`
    """
    x = graph.get("x")
    nodes = x.size(0) if isinstance(x, Tensor) and x.dim() else int(graph.num_nodes or 0)
    if "num_nodes" in graph and graph.num_nodes != nodes:
        raise DataError(f"`num_nodes` is {graph.num_nodes!r:.50}, and `x` has {nodes} rows; remove `num_nodes`")
    return nodes


def is_edge_list(value: Tensor) -> bool:
    """Whether a tensor has the form of `edge_index`: integers [2, E].

    >>> is_edge_list(torch.tensor([[0], [1]])), is_edge_list(torch.tensor([0, 1]))
    (True, False)
    """
    return value.dim() == 2 and value.size(0) == 2 and value.dtype in (torch.int32, torch.int64)


def locate(edge_index: Tensor, among: Tensor) -> Tensor:
    """Return the column of each edge in `among`, or -1; the first column of repeated edges.

    Edges are identified by their two ends, not by their position.

    >>> locate(torch.tensor([[5, 0], [6, 1]]), among=torch.tensor([[7, 5], [7, 6]]))
    tensor([ 1, -1])
    """
    if among.size(1) == 0 or edge_index.size(1) == 0:
        return edge_index.new_full((edge_index.size(1),), -1)
    base = torch.maximum(edge_index.max(), among.max()) + 1  # a tensor, to avoid a GPU sync
    known, order = stable_sort(edge_keys(among, base))
    queries = edge_keys(edge_index, base)
    at = torch.searchsorted(known, queries).clamp_(max=known.numel() - 1)
    return torch.where(known[at] == queries, order[at], -1)


def stable_sort(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Return sorted keys and their previous positions. On a CPU, keys that are sorted already are not sorted again.

    >>> stable_sort(torch.tensor([3, 1]))
    (tensor([1, 3]), tensor([1, 0]))
    """
    if _is_sorted(keys):
        return keys, torch.arange(len(keys), device=keys.device)
    values, order = keys.sort(stable=True)
    return values, order


def _is_sorted(keys: Tensor) -> bool:
    """Return whether keys on a CPU are sorted; on a GPU the check would cost a sync, and it returns False."""
    return keys.device.type == "cpu" and bool((keys[1:] >= keys[:-1]).all())


def union(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the union of two sets of sorted, distinct keys, and the positions of both sets in it. Nothing is sorted.

    >>> union(torch.tensor([1, 4]), torch.tensor([0, 4, 7]))
    (tensor([0, 1, 4, 7]), tensor([1, 2]), tensor([0, 2, 3]))
    """
    if len(one) == 0 or len(other) == 0:
        first, second = (torch.arange(len(keys), device=keys.device) for keys in (one, other))
        return one if len(other) == 0 else other, first, second
    above = torch.searchsorted(other, one)  # the first key of `other` that is not smaller
    shared = other[above.clamp(max=len(other) - 1)] == one
    new = torch.ones_like(other, dtype=torch.bool).index_fill_(0, above[shared], False)
    before = torch.cat([above.new_zeros(1), new.cumsum(0)])
    first = torch.arange(len(one), device=one.device) + before[above]
    second = before[:-1] + degree(above, len(other) + 1)[:-1].cumsum(0)
    second.index_copy_(0, above[shared], first[shared])
    keys = one.new_empty(len(one) + int(before[-1]))
    return keys.index_copy_(0, first, one).index_copy_(0, second, other), first, second


def match(edge_index: Tensor, among: Tensor) -> Tensor:
    """Return the column of each edge in `among`; raise `MatchError` if one is missing."""
    at = locate(edge_index, among)
    if (missing := int((at < 0).sum())) > 0:
        first = edge_index[:, at < 0][:, 0].tolist()
        raise MatchError(
            f"{missing} of {edge_index.size(1)} edges are not among the {among.size(1)} given, "
            f"the first is {first[0]} -> {first[1]}; compare readings of graphs that share these edges"
        )
    return at


def degree(target: Tensor, num_targets: int) -> Tensor:
    """Return the number of edges into each target; [num_targets].

    >>> degree(torch.tensor([0, 0, 2]), 3)
    tensor([2, 0, 1])
    """
    if target.device.type == "cpu":
        return torch.bincount(target, minlength=num_targets)
    return target.new_zeros(num_targets, dtype=torch.long).index_add(
        0, target, torch.ones_like(target, dtype=torch.long)
    )


def segment_sum(value: Tensor, index: Tensor, num: int) -> Tensor:
    """Sum the rows of `value` that share an index; [E, ...] -> [num, ...].

    >>> segment_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 1, 0]), 3)
    tensor([4., 3., 0.])
    """
    return value.new_zeros(num, *value.shape[1:]).index_add(0, index, value)


def segment_max(value: Tensor, index: Tensor, num: int) -> Tensor:
    """Return the elementwise maximum of the rows that share an index, 0 if none; [E, ...] -> [num, ...].

    >>> segment_max(torch.tensor([-1.0, -2.0, 4.0]), torch.tensor([1, 1, 0]), 3)
    tensor([ 4., -1.,  0.])
    """
    expanded = index.view(-1, *[1] * (value.dim() - 1)).expand_as(value)
    return value.new_zeros(num, *value.shape[1:]).scatter_reduce(0, expanded, value, "amax", include_self=False)


def require(data: Data, name: str) -> Tensor:
    """Return the tensor `data[name]`; raise `DataError` if the graph does not have it.

    >>> require(Data(x=torch.ones(1, 1)), "y")
    Traceback (most recent call last):
    fgai.errors.DataError: the graph has no `y`, only ['x']; set it as a tensor
    """
    value = data.get(name)
    if not isinstance(value, Tensor):
        raise DataError(f"the graph has no `{name}`, only {sorted(data.keys())}; set it as a tensor")
    return value


def add_nodes(data: Data, x: Tensor, edge_index: Tensor, **given: Tensor) -> Data:
    """Return the graph with the rows of `x` as additional nodes and `edge_index` as additional edges.

    New nodes are numbered from `data.num_nodes`. All other attributes are padded: floats of nodes with 0, those of
    edges (`edge_weight`, `edge_attr`) with the row nearest to their median, masks with False, labels and ids (`y`,
    `n_id`, `e_id`) with -1, other integers (types, relations) with their most frequent value; `given` holds other
    values for the new rows of attributes, by name. In a batch, a new node belongs to the graph that it is linked to.
    Gradients reach `x`, also if `data.x` is sparse. Without new rows, the graph needs no `x`.

    >>> data = Data(x=torch.zeros(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([4, 5]))
    >>> more = add_nodes(data, torch.ones(1, 1), torch.tensor([[2], [0]]))
    >>> more.num_nodes, more.edge_index.tolist(), more.y.tolist()
    (3, [[0, 2], [1, 0]], [4, 5, -1])
    """
    old = require(data, "x") if len(x) else data.get("x")
    edges, more, items = require(data, "edge_index"), copied(data), items_of(data)
    if items.typed is not None and not {"node_type", "edge_type"} <= given.keys():
        raise DataError(
            "nodes and links that are added to a typed graph need types; attack typed graphs with fgai.TypedInjection()"
        )
    for name, value in data.to_dict().items():
        if name in given:
            more[name] = torch.cat([value, given[name].to(value)])
        elif name not in CONCATENATED and isinstance(value, Tensor) and not _belongs_to_items(data, name, items):
            if data.is_node_attr(name):
                more[name] = _pad(name, value, x.size(0))
            elif data.is_edge_attr(name):
                more[name] = _pad_links(data, name, edge_index.size(1), given.get("edge_type"))
    if isinstance(batch := data.get("batch"), Tensor):
        more.batch = extend_batch(batch, x.size(0), edge_index, separate=has_graphs(data))
        if "ptr" in data:  # of the batch that `sort_by_graph` returns
            sizes = degree(more.batch, len(data["ptr"]) - 1)
            more.ptr = torch.cat([data["ptr"][:1], sizes.cumsum(0)])
    if isinstance(old, Tensor):
        more.x = append_rows(old, x)
    more.edge_index = torch.cat([edges, edge_index.to(edges)], dim=1)
    if "num_nodes" in data:
        more.num_nodes = int(data.num_nodes or 0) + x.size(0)
    return follow_edges(more, data)


def add_edges(data: Data, edge_index: Tensor, **given: Tensor) -> Data:
    """Return the graph with `edge_index` as additional edges. `add_nodes` defines how their attributes are padded."""
    x = data.get("x")
    rows = torch.zeros(0, *x.shape[1:], dtype=x.dtype, device=x.device) if isinstance(x, Tensor) else torch.empty(0)
    return add_nodes(data, rows, edge_index, **given)


def delete_edges(data: Data, gone: Tensor) -> Data:
    """Return the graph without the edges in the mask `gone` [E]. All nodes remain.

    >>> data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    >>> delete_edges(data, torch.tensor([True, False])).edge_index.tolist()
    [[1], [0]]
    """
    return select_edges(data, ~gone)


def without_edges(data: Data) -> Data:
    """Return the graph with all its nodes and without edges."""
    return delete_edges(data, torch.ones_like(require(data, "edge_index")[0], dtype=torch.bool))


def select_edges(data: Data, edges: Tensor) -> Data:
    """Return the graph with these of its edges, a mask [E] or columns in any order. All nodes remain.

    >>> data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    >>> select_edges(data, torch.tensor([1, 0])).edge_index.tolist()
    [[1, 0], [0, 1]]
    """
    remaining, items = copied(data).edge_subgraph(edges), items_of(data)
    for name in data.keys():  # noqa: SIM118, not a dict
        if _belongs_to_items(data, name, items):
            remaining[name] = data[name]
    return follow_edges(remaining, data)


def select_parts(data: Data, nodes: Tensor, columns: Tensor, edge_index: Tensor) -> Data:
    """Return a graph of these nodes [n] and edges [e], with their attributes; all other attributes are left out.

    Args:
        data: The graph.
        nodes: Ids of the nodes, which may repeat.
        columns: Columns of the edges in `data.edge_index`.
        edge_index: The ends of the edges in the new graph, [2, e].

    >>> data = Data(x=torch.arange(3.0)[:, None], edge_index=torch.tensor([[0, 1], [1, 2]]))
    >>> select_parts(data, torch.tensor([1, 2]), torch.tensor([1]), torch.tensor([[0], [1]])).x.flatten().tolist()
    [1.0, 2.0]
    """
    part = Data(num_nodes=len(nodes))
    for name, value in data.to_dict().items():
        if name != "edge_index" and isinstance(value, Tensor):
            if data.is_node_attr(name):
                part[name] = value.index_select(0, nodes)
            elif data.is_edge_attr(name):
                part[name] = value.index_select(0, columns)
    part.edge_index = edge_index
    return part


def sort_edges(data: Data) -> Data:
    """Return the graph with its edges sorted by target, then source; a shallow copy if they are sorted already.

    >>> sort_edges(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)).edge_index.tolist()
    [[1, 0], [0, 1]]
    """
    edges = require(data, "edge_index")
    if _is_sorted(edge_keys(edges, count_ends(edges))):
        return copied(data)
    return select_edges(data, sorted_edges(edges))


def sorted_edges(edge_index: Tensor) -> Tensor:
    """Return the columns of `edge_index` sorted by target, then source; [E]."""
    return stable_sort(edge_keys(edge_index, count_ends(edge_index)))[1]


def count_ends(edge_index: Tensor) -> int:
    """Return the largest node id of the edges plus one; 1 without edges."""
    return int(edge_index.max()) + 1 if edge_index.numel() else 1


def _belongs_to_items(data: Data, name: str, items: Items) -> bool:
    """Return whether an attribute holds the pairs or graphs of a batch, or their labels or masks: never padded."""
    if name in ("edge_label", "edge_label_index", "ptr"):
        return True
    per_row = name == "y" or name.endswith("_mask")
    return per_row and (items.kind != "nodes" or items.typed is not None) and data[name].size(0) == items.count


def _pad_links(data: Data, name: str, count: int, edge_type: Tensor | None) -> Tensor:
    """Pad an attribute of links: floats with their typical row, in a typed graph that of the same relation."""
    value = data[name]  # with a weight of 0, a new link would not reach the model, and an attack would seem to fail
    if not value.is_floating_point() or not len(value):
        return _pad(name, value, count)
    if edge_type is None:
        return torch.cat([value, typical_row(value).expand(count, *value.shape[1:])])
    rows, known = value.new_zeros(count, *value.shape[1:]), require(data, "edge_type")
    for relation in edge_type.unique():
        if len(same := value[known == relation.to(known)]):
            rows[(edge_type == relation).to(rows.device)] = typical_row(same)
    return torch.cat([value, rows])


def _pad(name: str, value: Tensor, rows: int) -> Tensor:
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool or len(value) == 0:
        filling = value.new_zeros(value.shape[1:])
    else:
        filling = value.new_full(value.shape[1:], -1) if name in IDS else value.mode(dim=0).values
    return torch.cat([value, filling.expand(rows, *value.shape[1:])])
