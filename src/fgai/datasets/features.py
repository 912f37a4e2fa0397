"""Sparse storage of features, and a fingerprint of a graph."""

from __future__ import annotations

import copy
import hashlib

from torch import Tensor
from torch_geometric.data import Data

SPARSE_BELOW = 0.5  # share of non-zeros below which sparse dropout and products are faster


def compact(data: Data) -> Data:
    """Return the graph with sparse `x` (coalesced COO) if less than half of its entries are non-zero.

    PyG's linear layers multiply sparse features directly. A batch of graphs stays as it is: its features are narrow.

    >>> import torch
    >>> compact(Data(x=torch.eye(100))).x.is_sparse
    True
    """
    if data.x is None or data.x.is_sparse or "batch" in data:
        return data
    if data.x.count_nonzero() >= SPARSE_BELOW * data.x.numel():
        return data
    data = copy.copy(data)
    assert data.x is not None
    data.x = data.x.to_sparse().coalesce()
    return data


def fingerprint(data: Data) -> str:
    """Return the SHA-256 of the features, edges, labels and graphs; sparse and dense features give the same.

    >>> import torch
    >>> a, b = Data(x=torch.eye(100)), compact(Data(x=torch.eye(100)))
    >>> fingerprint(a) == fingerprint(b)
    True
    """
    digest = hashlib.sha256()
    for name in ("x", "edge_index", "y", "batch"):
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
