"""The graph transformer of the paper, and its Laplacian positional encodings.

It has width 128, 8 heads, then an output layer of one head, the explanation.
Normalisation is applied before the layers. After them, as first published, training at the paper's rate of .01 is
unstable.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import TransformerConv

from fgai.backbones.base import BACKBONES, dropout
from fgai.errors import DataError
from fgai.graph import count_nodes, is_edge_list, require
from fgai.settings import check_whole

ENCODINGS = 8


@BACKBONES.register("gt")
class GT(nn.Module):
    """Graph transformer (Dwivedi & Bresson 2021), width 128, 8 heads, Laplacian encodings of size 8.

    >>> edges, pe = torch.tensor([[0, 1], [1, 0]]), torch.zeros(4, 8)
    >>> GT(features=3, classes=2)(torch.ones(4, 3), edges, pe).shape
    torch.Size([4, 2])
    """

    def __init__(self, features: int, classes: int, hidden: int = 128, heads: int = 8, dropout: float = 0.6) -> None:
        super().__init__()
        self.dropout = dropout
        self.embed = nn.Linear(features, hidden)
        self.place = nn.Linear(ENCODINGS, hidden)
        self.conv1 = TransformerConv(hidden, hidden // heads, heads=heads, dropout=dropout, root_weight=False)
        self.norm1 = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * hidden, hidden)
        )
        self.norm2 = nn.LayerNorm(hidden)
        self.norm3 = nn.LayerNorm(hidden)
        self.conv2 = TransformerConv(hidden, classes, heads=1, dropout=dropout)

    @staticmethod
    def prepare(data: Data) -> Data:
        """Return the graph with `pe`, its Laplacian positional encodings."""
        data = copy.copy(data)
        data.pe = laplacian_encodings(require(data, "edge_index"), count_nodes(data), ENCODINGS)
        return data

    def forward(self, x: Tensor, edge_index: Tensor, pe: Tensor) -> Tensor:
        """Return the logits; [N, F], [2, E], [N, 8] -> [N, C]."""
        h = self.embed(dropout(x, self.dropout, self.training)) + self.place(pe)
        h = h + dropout(self.conv1(self.norm1(h), edge_index), self.dropout, self.training)
        h = h + dropout(self.mlp(self.norm2(h)), self.dropout, self.training)
        return self.conv2(dropout(self.norm3(h), self.dropout, self.training), edge_index)


def laplacian_encodings(edge_index: Tensor, num_nodes: int, size: int = 8, tolerance: float = 1e-3) -> Tensor:
    """Return the eigenvectors of L = I - D^-1/2 A D^-1/2 for the smallest eigenvalues except the first; [N, size].

    These are the eigenvectors of D^-1/2 A D^-1/2 for its largest eigenvalues, which Lanczos computes with one sparse
    product per step. The start vector is fixed, and the sign makes the entry of largest magnitude positive, so the
    encodings are deterministic. A graph of `size` nodes or fewer gets columns of zeros at the end.

    Args:
        edge_index: The edges, [2, E]; directions are ignored.
        num_nodes: Number of nodes.
        size: Number of eigenvectors.
        tolerance: Relative accuracy of the eigenvalues.

    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> laplacian_encodings(path, 3, size=2).shape
    torch.Size([3, 2])
    """
    check_whole(1, num_nodes=num_nodes)
    if not is_edge_list(edge_index) or edge_index.is_meta or (edge_index.numel() and int(edge_index.min()) < 0):
        raise DataError(f"`edge_index` is {edge_index.dtype} {list(edge_index.shape)}; give node ids [2, E]")
    if edge_index.numel() and int(edge_index.max()) >= num_nodes:
        raise DataError(f"edges refer to node {int(edge_index.max())} of {num_nodes}; number nodes from 0")
    count = min(size, num_nodes - 1)
    vectors = _leading_eigenvectors(_normalised_adjacency(edge_index, num_nodes), count + 1, tolerance)[:, 1:]
    largest = np.abs(vectors).argmax(axis=0)
    vectors = vectors * np.sign(vectors[largest, np.arange(count)])
    return torch.from_numpy(np.pad(vectors, ((0, 0), (0, size - count)))).float().to(edge_index.device)


def _normalised_adjacency(edge_index: Tensor, num_nodes: int) -> sp.csr_matrix:
    source, target = edge_index.cpu().numpy()
    adjacency = sp.csr_matrix((np.ones(source.size), (target, source)), shape=(num_nodes, num_nodes))
    adjacency = ((adjacency + adjacency.T) > 0).astype(np.float64)
    scale = sp.diags(1.0 / np.sqrt(np.maximum(np.asarray(adjacency.sum(axis=1)).ravel(), 1.0)))
    return (scale @ adjacency @ scale).tocsr()


def _leading_eigenvectors(matrix: sp.csr_matrix, count: int, tolerance: float) -> np.ndarray:
    """Return eigenvectors by decreasing eigenvalue, [N, count]; a small matrix is solved as a dense one."""
    num_nodes = int(matrix.get_shape()[0])
    if matrix.nnz == 0:  # every vector is an eigenvector
        values, vectors = np.zeros(count), np.eye(num_nodes, count)
    elif num_nodes <= max(64, 2 * count + 1):
        values, vectors = np.linalg.eigh(matrix.toarray())
    else:
        from scipy.sparse.linalg import eigsh  # slow to import

        start = np.random.default_rng(0).standard_normal(num_nodes)
        width = min(max(64, 2 * count + 1), num_nodes - 1)
        tol: Any = tolerance  # SciPy's stubs declare an int
        values, vectors = eigsh(matrix, k=count, which="LA", tol=tol, ncv=width, v0=start)
    return vectors[:, np.argsort(-values, kind="stable")[:count]]
