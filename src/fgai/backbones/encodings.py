"""Where a node lies in its graph: eigenvectors of the Laplacian, by a sparse solver."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from fgai.errors import DataError
from fgai.settings import check_whole


def laplacian_encodings(edge_index: Tensor, num_nodes: int, size: int = 8, tolerance: float = 1e-3) -> Tensor:
    """The eigenvectors of L = I - D^-1/2 A D^-1/2 for its smallest eigenvalues but the first; [N, size].

    They are those of D^-1/2 A D^-1/2 for its largest eigenvalues, which Lanczos finds with one sparse product per
    step: no dense matrix. Signs are fixed (the entry of largest magnitude is positive) and the start vector too, so
    the same graph gives the same encodings. A graph of `size` nodes or fewer gets columns of zeros at the end.

    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> laplacian_encodings(path, 3, size=2).shape
    torch.Size([3, 2])
    """
    check_whole(1, num_nodes=num_nodes)
    integers = edge_index.dim() == 2 and edge_index.size(0) == 2 and edge_index.dtype in (torch.int32, torch.int64)
    if not integers or edge_index.is_meta or (edge_index.numel() and not int(edge_index.min()) >= 0):
        raise DataError(f"`edge_index` is {edge_index.dtype} {list(edge_index.shape)}; give node ids [2, E]")
    if edge_index.numel() and int(edge_index.max()) >= num_nodes:
        raise DataError(f"edges name the node {int(edge_index.max())}, and there are {num_nodes}; number nodes from 0")
    found = min(size, num_nodes - 1)
    vectors = _leading(_normalised_adjacency(edge_index, num_nodes), found + 1, tolerance)[:, 1:]
    largest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.sign(vectors[largest, np.arange(found)])
    return torch.from_numpy(np.pad(vectors, ((0, 0), (0, size - found)))).float().to(edge_index.device)


def _normalised_adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    source, target = edge_index.cpu().numpy()
    adjacency = sp.csr_matrix((np.ones(source.size), (target, source)), shape=(num_nodes, num_nodes))
    adjacency = ((adjacency + adjacency.T) > 0).astype(np.float64)
    scale = sp.diags(1.0 / np.sqrt(np.maximum(np.asarray(adjacency.sum(axis=1)).ravel(), 1.0)))
    return (scale @ adjacency @ scale).tocsr()


def _leading(matrix: sp.csr_matrix, count: int, tolerance: float) -> np.ndarray:
    """Eigenvectors by falling eigenvalue; [N, count]. A matrix too small for Lanczos is solved whole."""
    num_nodes = int(matrix.get_shape()[0])
    if matrix.nnz == 0:  # every vector is an eigenvector
        values, vectors = np.zeros(count), np.eye(num_nodes, count)
    elif num_nodes <= max(64, 2 * count + 1):
        values, vectors = np.linalg.eigh(matrix.toarray())
    else:
        start = np.random.default_rng(0).standard_normal(num_nodes)
        width = min(max(64, 2 * count + 1), num_nodes - 1)
        precise: Any = tolerance  # SciPy's stubs take it for an int
        values, vectors = eigsh(matrix, k=count, which="LA", tol=precise, ncv=width, v0=start)
    return vectors[:, np.argsort(-values, kind="stable")[:count]]
