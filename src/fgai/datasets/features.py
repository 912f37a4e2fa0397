"""Sparse storage of features, and a fingerprint of a graph."""

from __future__ import annotations

import copy
import hashlib
from typing import TypeVar

from torch import Tensor
from torch_geometric.data import Data, HeteroData

from fgai.typed import join

T = TypeVar("T", Data, HeteroData)

SPARSE_BELOW = 0.5  # share of non-zeros below which sparse dropout and products are faster


def compact(data: T) -> T:
    """Return the graph with sparse `x` (coalesced COO) if less than half of its entries are non-zero.

    PyG's linear layers multiply sparse features directly. A batch of graphs stays as it is: its features are narrow. Of
    a `HeteroData`, the features of each type are stored so.

    >>> import torch
    >>> compact(Data(x=torch.eye(100))).x.is_sparse
    True
    """
    if isinstance(data, HeteroData):
        data = copy.copy(data)
        for store in data.node_stores:
            store["x"] = compact_features(store["x"])
        return data
    if data.x is None or "batch" in data:
        return data
    x = compact_features(data.x)
    if x is data.x:
        return data
    data = copy.copy(data)
    data.x = x
    return data


def compact_features(x: Tensor) -> Tensor:
    """Return features as a coalesced COO matrix if less than half of them are non-zero, else as they are."""
    return x if x.is_sparse or x.count_nonzero() >= SPARSE_BELOW * x.numel() else x.to_sparse().coalesce()


def fingerprint(data: Data | HeteroData) -> str:
    """Return the SHA-256 of the features, edges, labels and graphs; sparse and dense features give the same.

    >>> import torch
    >>> a, b = Data(x=torch.eye(100)), compact(Data(x=torch.eye(100)))
    >>> fingerprint(a) == fingerprint(b)
    True
    """
    digest, names = hashlib.sha256(), ("x", "edge_index", "y", "batch")
    if isinstance(data, HeteroData):
        data, names = join(data), (*names, "node_type", "edge_type", "edge_attr")
    for name in names:
        if isinstance(value := data.get(name), Tensor):
            digest.update(f"{name}{list(value.shape)}".encode())
            for part in _parts(value):
                digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()


def _parts(value: Tensor) -> list[Tensor]:
    if not value.is_sparse and not value.is_floating_point():
        return [value.cpu()]
    value = value.cpu().coalesce() if value.is_sparse else value.cpu().to_sparse()
    nonzero = value.values() != 0
    return [value.indices()[:, nonzero], value.values()[nonzero]]
