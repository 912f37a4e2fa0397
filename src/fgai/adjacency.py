"""Keeps the sparse adjacency matrices of a graph consistent with its `edge_index`.

A model may be called as `model(data.x, data.adj)`. An attack or a deletion that changed only `edge_index` would have no
effect on such a model.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import is_torch_sparse_tensor

from fgai.errors import DataError


def follow_edges(new: Data, old: Data) -> Data:
    """Rebuild the adjacencies of `new`, a copy of `old` with other edges. Entries of remaining edges keep their value.

    An adjacency is a sparse tensor [N, N] whose rows are the targets or the sources. Its entries must be the edges of
    `old`.

    Raises:
        DataError: An adjacency has other entries than the `edge_index` of `old`.

    >>> edges = torch.tensor([[0, 1], [1, 2]])
    >>> adj = torch.sparse_coo_tensor(edges.flip(0), torch.ones(2), (3, 3)).coalesce()
    >>> new = Data(edge_index=torch.tensor([[0, 2], [1, 0]]), num_nodes=3)
    >>> follow_edges(new, Data(edge_index=edges, adj=adj, num_nodes=3)).adj.indices()
    tensor([[0, 1],
            [2, 0]])
    """
    for name in adjacencies_of(old):
        adjacency, edges = old[name], old["edge_index"]
        entries = _to_coo(adjacency)
        by_target = _same_edges(entries.indices().flip(0), edges)
        if not by_target and not _same_edges(entries.indices(), edges):
            raise DataError(
                f"`{name}` has other entries than `edge_index`, so a change of the edges cannot be applied to it; "
                f"build it from `edge_index` (without self-loops), or from data.edge_index inside `call`"
            )
        new[name] = _rebuild(entries, new, by_target).to(adjacency.dtype)
        if adjacency.layout != torch.sparse_coo:
            new[name] = new[name].to_sparse(layout=adjacency.layout)
    return new


def adjacencies_of(data: Data) -> list[str]:
    """Return the names of the sparse matrices [N, N] of a graph that also has an `edge_index`."""
    nodes = data.num_nodes
    return [
        name
        for name, value in data.to_dict().items()
        if name != "x" and "edge_index" in data and is_torch_sparse_tensor(value) and value.shape == (nodes, nodes)
    ]


def _to_coo(adjacency: Tensor) -> Tensor:
    return (adjacency if adjacency.layout == torch.sparse_coo else adjacency.to_sparse_coo()).coalesce()


def _same_edges(edges: Tensor, other: Tensor) -> bool:
    """Return whether both hold the same edges, regardless of order and repetition."""
    return torch.equal(edges.unique(dim=1), other.unique(dim=1))


def _rebuild(entries: Tensor, data: Data, by_target: bool) -> Tensor:
    """Return the adjacency of the edges of `data`, with the values of `entries`, and their median for new edges."""
    edges, nodes = data["edge_index"].unique(dim=1), int(data.num_nodes or 0)
    indices = edges.flip(0) if by_target else edges
    base = max(nodes, entries.size(0))
    old_keys, new_keys = (ends[0] * base + ends[1] for ends in (entries.indices(), indices))
    at = torch.searchsorted(old_keys, new_keys).clamp(max=max(len(old_keys) - 1, 0))
    known = entries.values()
    typical = known.median() if len(known) and known.dtype != torch.bool else known.new_ones(())
    values = torch.where(old_keys[at] == new_keys, known[at], typical) if len(known) else typical.expand(len(new_keys))
    return torch.sparse_coo_tensor(indices, values, (nodes, nodes)).coalesce()
