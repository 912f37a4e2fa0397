"""Sparse adjacencies that a graph carries beside its `edge_index`: when edges change, both change.

A model may be called as `model(data.x, data.adj)`. An attack or a deletion that changed `edge_index` alone would not
reach such a model.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import is_torch_sparse_tensor

from fgai.errors import DataError


def follow_edges(new: Data, old: Data) -> Data:
    """Give `new`, which is `old` with other edges, adjacencies of those edges; entries that stay keep their value.

    An adjacency is a sparse tensor [N, N], rows targets or rows sources. Its entries must be the edges of `old`.

    >>> edges = torch.tensor([[0, 1], [1, 2]])
    >>> adj = torch.sparse_coo_tensor(edges.flip(0), torch.ones(2), (3, 3)).coalesce()
    >>> new = Data(edge_index=torch.tensor([[0, 2], [1, 0]]), num_nodes=3)
    >>> follow_edges(new, Data(edge_index=edges, adj=adj, num_nodes=3)).adj.indices()
    tensor([[0, 1],
            [2, 0]])
    """
    for name in adjacencies_of(old):
        adjacency, edges = old[name], old["edge_index"]
        entries = _coo(adjacency)
        by_target = _same(entries.indices().flip(0), edges)
        if not by_target and not _same(entries.indices(), edges):
            raise DataError(
                f"`{name}` has other entries than `edge_index`, so a change of the edges cannot be carried over to it; "
                f"make it from `edge_index` (without self-loops), or build it from data.edge_index in `call`"
            )
        new[name] = _rebuilt(entries, new, by_target).to(adjacency.dtype)
        if adjacency.layout != torch.sparse_coo:
            new[name] = new[name].to_sparse(layout=adjacency.layout)
    return new


def adjacencies_of(data: Data) -> list[str]:
    """The names of the sparse square matrices over the nodes of a graph that has edges beside them."""
    nodes = data.num_nodes
    return [
        name
        for name, value in data.to_dict().items()
        if name != "x" and "edge_index" in data and is_torch_sparse_tensor(value) and value.shape == (nodes, nodes)
    ]


def _coo(adjacency: Tensor) -> Tensor:
    return (adjacency if adjacency.layout == torch.sparse_coo else adjacency.to_sparse_coo()).coalesce()


def _same(some: Tensor, edges: Tensor) -> bool:
    """The same edges, however often each comes."""
    return torch.equal(some.unique(dim=1), edges.unique(dim=1))


def _rebuilt(entries: Tensor, data: Data, by_target: bool) -> Tensor:
    """The adjacency of the edges of `data`: old values where an edge was there, 1 where it is new."""
    edges, nodes = data["edge_index"].unique(dim=1), int(data.num_nodes or 0)
    at = edges.flip(0) if by_target else edges
    base = max(nodes, entries.size(0))
    known, asked = (ends[0] * base + ends[1] for ends in (entries.indices(), at))
    place = torch.searchsorted(known, asked).clamp(max=max(len(known) - 1, 0))
    values = entries.values().new_ones(len(asked))
    if len(known):
        values = torch.where(known[place] == asked, entries.values()[place], values)
    return torch.sparse_coo_tensor(at, values, (nodes, nodes)).coalesce()
