"""Graphs as PyG's `Data`: edges known by their two ends, nodes added, edges deleted; the original is never changed."""

from __future__ import annotations

import copy

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adjacency import follow_edges
from fgai.cache import TensorNotes, version
from fgai.errors import DataError, MatchError

_PARTS = TensorNotes()  # a tensor -> the rows that `append_rows` made it of
JOINED = ("x", "edge_index")  # by hand, not padded


def edge_keys(edge_index: Tensor, base: int | Tensor) -> Tensor:
    """One integer per edge, `target * base + source`: sorted, it groups edges by target.

    `base` must exceed every node id.

    >>> edge_keys(torch.tensor([[0, 2], [1, 0]]), base=3)
    tensor([3, 2])
    """
    return edge_index[1] * base + edge_index[0]


def locate(edge_index: Tensor, among: Tensor) -> Tensor:
    """For each edge its column in `among`, or -1; of repeated columns the first.

    An edge is its two ends, never its row.

    >>> locate(torch.tensor([[5, 0], [6, 1]]), among=torch.tensor([[7, 5], [7, 6]]))
    tensor([ 1, -1])
    """
    if among.size(1) == 0 or edge_index.size(1) == 0:
        return edge_index.new_full((edge_index.size(1),), -1)
    base = torch.maximum(edge_index.max(), among.max()) + 1  # a tensor: a GPU need not be waited for
    known, order = stable_sort(edge_keys(among, base))
    asked = edge_keys(edge_index, base)
    at = torch.searchsorted(known, asked).clamp_(max=known.numel() - 1)
    return torch.where(known[at] == asked, order[at], -1)


def stable_sort(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Keys in order, and where each was; those that lie in order already are not sorted again on a CPU.

    >>> stable_sort(torch.tensor([3, 1]))
    (tensor([1, 3]), tensor([1, 0]))
    """
    if keys.device.type == "cpu" and bool((keys[1:] >= keys[:-1]).all()):  # a GPU sorts faster than it answers
        return keys, torch.arange(len(keys), device=keys.device)
    values, order = keys.sort(stable=True)
    return values, order


def match(edge_index: Tensor, among: Tensor) -> Tensor:
    """`locate`, where every edge must be found."""
    at = locate(edge_index, among)
    if (missing := int((at < 0).sum())) > 0:
        first = edge_index[:, at < 0][:, 0].tolist()
        raise MatchError(
            f"{missing} of {edge_index.size(1)} edges are not among the {among.size(1)} given, "
            f"the first is {first[0]} -> {first[1]}; compare readings of graphs that share these edges"
        )
    return at


def degree(target: Tensor, num_targets: int) -> Tensor:
    """How many edges arrive at each target.

    >>> degree(torch.tensor([0, 0, 2]), 3)
    tensor([2, 0, 1])
    """
    if target.device.type == "cpu":
        return torch.bincount(target, minlength=num_targets)
    return target.new_zeros(num_targets, dtype=torch.long).index_add(
        0, target, torch.ones_like(target, dtype=torch.long)
    )


def segment_sum(value: Tensor, index: Tensor, num: int) -> Tensor:
    """The sum of the rows of `value` that share an index; [E, ...] -> [num, ...].

    >>> segment_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([1, 1, 0]), 3)
    tensor([4., 3., 0.])
    """
    return value.new_zeros(num, *value.shape[1:]).index_add(0, index, value)


def segment_max(value: Tensor, index: Tensor, num: int) -> Tensor:
    """The largest of the rows of `value` that share an index, entry by entry, 0 without; [E, ...] -> [num, ...].

    >>> segment_max(torch.tensor([-1.0, -2.0, 4.0]), torch.tensor([1, 1, 0]), 3)
    tensor([ 4., -1.,  0.])
    """
    along = index.view(-1, *[1] * (value.dim() - 1)).expand_as(value)
    return value.new_zeros(num, *value.shape[1:]).scatter_reduce(0, along, value, "amax", include_self=False)


def require(data: Data, name: str) -> Tensor:
    """The tensor `data[name]`, or an error that says what the graph has instead.

    >>> require(Data(x=torch.ones(1, 1)), "y")
    Traceback (most recent call last):
    fgai.errors.DataError: the graph has no `y`, only ['x']; set it as a tensor
    """
    value = data.get(name)
    if not isinstance(value, Tensor):
        raise DataError(f"the graph has no `{name}`, only {sorted(data.keys())}; set it as a tensor")
    return value


def add_nodes(data: Data, x: Tensor, edge_index: Tensor) -> Data:
    """The graph with the rows of `x` as further nodes and `edge_index` as further edges.

    New nodes are numbered from `data.num_nodes`. Every other attribute of a node or an edge is filled with
    zeros, masks with False, integers (labels) with -1. Gradients reach `x`, also where `data.x` is sparse.

    >>> data = Data(x=torch.zeros(2, 1), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([4, 5]))
    >>> more = add_nodes(data, torch.ones(1, 1), torch.tensor([[2], [0]]))
    >>> more.num_nodes, more.edge_index.tolist(), more.y.tolist()
    (3, [[0, 2], [1, 0]], [4, 5, -1])
    """
    old, edges, more = require(data, "x"), require(data, "edge_index"), copy.copy(data)
    for name, value in data.to_dict().items():
        if name not in JOINED and isinstance(value, Tensor) and not _of_pairs(data, name):
            if data.is_node_attr(name):
                more[name] = _padded(value, x.size(0))
            elif data.is_edge_attr(name):
                more[name] = _padded(value, edge_index.size(1))
    more.x = append_rows(old, x)
    more.edge_index = torch.cat([edges, edge_index.to(edges)], dim=1)
    if "num_nodes" in data:
        more.num_nodes = old.size(0) + x.size(0)
    return follow_edges(more, data)


def add_edges(data: Data, edge_index: Tensor) -> Data:
    """The graph with `edge_index` as further edges; their attributes are filled as `add_nodes` fills them."""
    return add_nodes(
        data,
        torch.zeros(0, require(data, "x").size(1), dtype=require(data, "x").dtype, device=require(data, "x").device),
        edge_index,
    )


def delete_edges(data: Data, gone: Tensor) -> Data:
    """The graph without the edges of the mask `gone` [E]; nodes stay.

    >>> data = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2)
    >>> delete_edges(data, torch.tensor([True, False])).edge_index.tolist()
    [[1], [0]]
    """
    left = data.edge_subgraph(~gone)
    for name in data.keys():  # noqa: SIM118, not a dict
        if _of_pairs(data, name):
            left[name] = data[name]
    return follow_edges(left, data)


def append_rows(old: Tensor, x: Tensor) -> Tensor:
    """The rows of `x` below those of `old`; if those are sparse, zeros are stored too, so that gradients reach them.

    >>> append_rows(torch.eye(2).to_sparse(), torch.zeros(1, 2)).to_dense().shape
    torch.Size([3, 2])
    """
    old = old.coalesce() if old.is_sparse else old
    both = _append_sparse(old, x) if old.is_sparse else torch.cat([old, x])
    return _noted(both, old, x)


def replace_rows(both: Tensor, x: Tensor) -> Tensor:
    """The result of `append_rows` with other rows below; the pattern of a sparse one is not made again.

    >>> replace_rows(append_rows(torch.eye(2), torch.zeros(1, 2)), torch.ones(1, 2))[2]
    tensor([1., 1.])
    """
    parts = split_rows(both)
    assert parts is not None, "only rows that were appended can be replaced"
    old = parts[0]
    if not old.is_sparse:
        return append_rows(old, x)
    return _noted(with_values(both, torch.cat([old.values(), x.flatten()])), old, x)


def with_values(x: Tensor, values: Tensor) -> Tensor:
    """The sparse matrix that has other values at the stored places of a coalesced `x`.

    >>> with_values(torch.eye(2).to_sparse().coalesce(), torch.tensor([5.0, 6.0])).to_dense()[1]
    tensor([0., 6.])
    """
    return torch.sparse_coo_tensor(x.indices(), values, x.shape, is_coalesced=True, check_invariants=False)


def split_rows(x: Tensor) -> tuple[Tensor, Tensor] | None:
    """The operands of `append_rows`, if it made this very tensor and none was changed in place since; else None.

    >>> split_rows(torch.ones(2, 2)) is None
    True
    """
    if (noted := _PARTS.get(x)) is None:
        return None
    old, below, versions = noted
    return (old, below) if (version(old), version(below)) == versions else None


def _noted(both: Tensor, old: Tensor, x: Tensor) -> Tensor:
    _PARTS.set(both, (old, x, (version(old), version(x))))
    return both


def _append_sparse(old: Tensor, x: Tensor) -> Tensor:
    rows, columns = x.shape
    row = torch.arange(old.size(0), old.size(0) + rows, device=x.device).repeat_interleave(columns)
    column = torch.arange(columns, device=x.device).repeat(rows)
    indices = torch.cat([old.indices(), torch.stack([row, column])], dim=1)
    values = torch.cat([old.values(), x.flatten()])
    size = (old.size(0) + rows, columns)
    return torch.sparse_coo_tensor(indices, values, size, is_coalesced=True, check_invariants=False)


def _of_pairs(data: Data, name: str) -> bool:
    """The pairs that a model of links answers for, their labels and masks: new nodes and edges do not change them."""
    if name in ("edge_label", "edge_label_index"):
        return True
    told = name == "y" or name.endswith("_mask")
    return told and "edge_label_index" in data and data[name].size(0) == data.edge_label_index.size(1)


def _padded(value: Tensor, rows: int) -> Tensor:
    integer = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    return torch.cat([value, value.new_full((rows, *value.shape[1:]), -1 if integer else 0)])
