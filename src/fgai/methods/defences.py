"""Defences that remove suspicious edges before the model reads the graph.

An attack on such a defence must include the cleaning: give it `call=method.cleaned_call()`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix, csr_matrix, diags
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.cache import TensorCache
from fgai.calling import Call, call_by_signature
from fgai.checks import one_graph
from fgai.errors import DataError
from fgai.graph import delete_edges, require
from fgai.items import refuse_graphs
from fgai.methods.base import METHODS, Graphs
from fgai.methods.vanilla import Vanilla
from fgai.rows import split_rows
from fgai.settings import check_numbers, check_positive, check_share, check_whole
from fgai.training.loop import Fit


class Purified(Vanilla):
    """Plain training on a graph without its suspicious edges.

    The trained model does not include the cleaning: audit it with `call=method.cleaned_call()`.
    """

    def suspects(self, data: Data) -> Tensor:
        """Return the mask of the edges to remove; [E]."""
        raise NotImplementedError

    def cleaned_call(self, call: Call | None = None) -> Call:
        """Return a call that cleans the graph, then calls the model.

        Args:
            call: How the model is called on the cleaned graph; by its signature by default.
        """

        def cleaned(model: nn.Module, data: Data) -> Tensor:
            return (call or call_by_signature)(model, delete_edges(data, self.suspects(data)))

        return cleaned

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model` on the cleaned graph; see `Method.fit`."""
        if not isinstance(data, Data):
            raise DataError(
                f"{type(self).__name__} cleans one full graph, but was given {type(data).__name__}; give a Data"
            )
        data = one_graph(data)
        refuse_graphs(data, type(self).__name__, "use at, fgai, ln or vanilla")
        return super().fit(model, delete_edges(data, self.suspects(data)), call=call, checkpoint=checkpoint)


@METHODS.register("gnnguard")
@dataclass(frozen=True)
class GNNGuard(Purified):
    """Removes the edges with cos(x_i, x_j) < `threshold` (Zhang & Zitnik 2020).

    The similarity is that of the input features. The original also reweights the edges in each layer; here attention
    does that.

    Args:
        threshold: Least cosine similarity of the two ends of an edge.

    >>> data = Data(x=torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), edge_index=torch.tensor([[0, 0], [1, 2]]))
    >>> GNNGuard().suspects(data)
    tensor([False,  True])
    """

    threshold: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(-1, threshold=self.threshold)

    def suspects(self, data: Data) -> Tensor:
        """Return the mask of the edges between dissimilar nodes; [E]."""
        x, edges = require(data, "x"), require(data, "edge_index")
        old, new = split_rows(x) or (x.detach(), None)
        known = (edges < len(old)).all(0)
        cosine = torch.zeros(edges.size(1), device=edges.device)
        cosine[known] = _CACHE.get("cosine", [edges, old.detach()], lambda: _cosine(old, edges[:, known]))
        if new is not None:  # injected nodes, whose features an attack changes
            ends, at = edges[:, ~known].unique(return_inverse=True)
            rows = torch.cat([_dense(old, ends[ends < len(old)]), new.detach()[ends[ends >= len(old)] - len(old)]])
            cosine[~known] = _cosine(rows, at)
        return cosine < self.threshold


@METHODS.register("gnn-svd")
@dataclass(frozen=True)
class GNNSVD(Purified):
    """Removes the edges with the least value in a low-rank approximation of the adjacency (Entezari et al. 2020).

    The approximation U S V^T is computed at the edges only, from a sparse matrix; the original stores all of it.

    Args:
        rank: Number of singular vectors.
        drop: Share of the edges to remove.

    >>> from fgai import datasets
    >>> int(GNNSVD(rank=4, drop=0.1).suspects(datasets.load("synthetic")).sum())
    1000
    """

    rank: int = 10
    drop: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(1, rank=self.rank)
        check_share(drop=self.drop)

    def suspects(self, data: Data) -> Tensor:
        """Return the mask of the edges with the least value in the approximation; [E]."""
        edges = require(data, "edge_index")
        nodes = int(data.num_nodes or 0)
        return _CACHE.get(
            (self, data.num_nodes), [edges], lambda: self._least_fitting(edges.cpu().numpy(), nodes).to(edges.device)
        )

    def _least_fitting(self, edges: np.ndarray, nodes: int) -> Tensor:
        from scipy.sparse.linalg import svds  # slow to import

        adjacency = coo_matrix((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(nodes, nodes)).tocsr()
        u, s, v = svds(adjacency, k=min(self.rank, nodes - 1), v0=np.ones(nodes))
        return _least(torch.from_numpy(np.einsum("er,re->e", (u * s)[edges[0]], np.asarray(v)[:, edges[1]])), self.drop)


@METHODS.register("pro-gnn")
@dataclass(frozen=True)
class ProGNN(Purified):
    """Removes the edges with the least weight in a sparse low-rank matrix near the adjacency (Jin et al. 2020).

    S minimises |S - A|^2 + `sparse` |S|_1 + `low_rank` |S|_* with 0 <= S <= 1. The default weights are those of the
    authors' code, in which feature smoothness has weight 0. The original learns S and the model together; here S is
    learnt first, because each attacked graph needs its own S.

    Args:
        sparse: Weight of the l1 norm.
        low_rank: Weight of the nuclear norm.
        steps: Steps of proximal gradient descent.
        rate: Step size.
        drop: Share of the edges to remove.
        limit: Largest number of nodes. S is dense, and each step computes its eigenvectors.

    >>> from fgai import datasets
    >>> int(ProGNN(steps=1).suspects(datasets.load("synthetic")).sum())
    1000
    """

    sparse: float = 5e-4
    low_rank: float = 1.5
    steps: int = 10
    rate: float = 0.25
    drop: float = 0.1
    limit: int = 5000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(0, sparse=self.sparse, low_rank=self.low_rank)
        check_whole(0, steps=self.steps)
        check_positive(rate=self.rate)
        check_share(drop=self.drop)
        check_whole(1, limit=self.limit)

    def suspects(self, data: Data) -> Tensor:
        """Return the mask of the edges with the least weight in S; [E]."""
        edges = require(data, "edge_index")
        return _CACHE.get(
            (self, data.num_nodes), [edges], lambda: _least(self.learn_adjacency(data)[edges[0], edges[1]], self.drop)
        )

    def learn_adjacency(self, data: Data) -> Tensor:
        """Return S; [N, N]."""
        nodes = int(data.num_nodes or 0)
        if nodes > self.limit:
            raise DataError(
                f"Pro-GNN stores a dense matrix of all node pairs, and was given {nodes:,} nodes; "
                f"give a smaller graph, a limit larger than {self.limit:,}, or use gnn-svd"
            )
        source, target = require(data, "edge_index")
        adjacency = torch.zeros(nodes, nodes, device=source.device)
        adjacency[source, target] = adjacency[target, source] = 1
        s = adjacency
        for _ in range(self.steps):
            s = _shrink_singular_values(s - 2 * self.rate * (s - adjacency), self.rate * self.low_rank)
            s = (s - self.rate * self.sparse).clamp(0, 1)
        return s


def _shrink_singular_values(matrix: Tensor, amount: float) -> Tensor:
    """Reduce the singular values of a symmetric matrix by `amount`, to 0 at least."""
    value, vector = torch.linalg.eigh(matrix)
    return (vector * nn.functional.softshrink(value, amount)) @ vector.t()


def _least(value: Tensor, share: float) -> Tensor:
    """Return the mask of the share of edges with the least value; [E]."""
    least = value.argsort(stable=True)[: round(share * len(value))]
    return torch.zeros(len(value), dtype=torch.bool, device=value.device).index_fill_(0, least, True)


def _cosine(x: Tensor, edges: Tensor) -> Tensor:
    """Return the cosine similarity of the features at both ends of each edge; [E]."""
    rows: Any = _csr(x)
    size = np.sqrt(np.asarray(rows.multiply(rows).sum(1))).ravel()
    rows = diags(1 / np.where(size > 0, size, 1)) @ rows
    chunks = (chunk.cpu().numpy() for chunk in edges.split(CHUNK, dim=1))
    pieces = [rows[a].multiply(rows[b]).sum(1) for a, b in chunks]
    return (
        torch.from_numpy(np.concatenate([np.asarray(piece).ravel() for piece in pieces] or [np.zeros(0)]))
        .float()
        .to(edges.device)
    )


def _csr(x: Tensor) -> csr_matrix:
    x = x.float() if x.dtype in (torch.half, torch.bfloat16) else x  # SciPy has no half precision
    if not x.is_sparse:
        return csr_matrix(x.cpu().numpy())
    x = x.coalesce()
    return csr_matrix((x.values().cpu().numpy(), x.indices().cpu().numpy()), shape=tuple(x.shape))


def _dense(x: Tensor, rows: Tensor) -> Tensor:
    x = x.index_select(0, rows)
    return x.to_dense() if x.is_sparse else x


CHUNK = 20_000  # edges whose features are compared at a time
_CACHE = TensorCache(size=16)  # an attack asks repeatedly for the suspects of the same edges
