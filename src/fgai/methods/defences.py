"""Defences that clean the graph before the model sees it: rivals by cost, and attacked through their own cleaning."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix, csr_matrix, diags
from scipy.sparse.linalg import svds
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.cache import TensorCache
from fgai.errors import DataError
from fgai.graph import delete_edges, require, split_rows
from fgai.methods.base import METHODS, Graphs
from fgai.methods.vanilla import Vanilla
from fgai.reading import Call, call_by_signature
from fgai.settings import check_numbers, check_positive, check_share, check_whole
from fgai.training.loop import Fit


class Purified(Vanilla):
    """Plain training on a graph without the edges that `suspects` names.

    The model alone knows nothing of the cleaning: audit it with `call=method.through()`.
    """

    def suspects(self, data: Data) -> Tensor:
        """Mask of the edges that are taken out; [E]."""
        raise NotImplementedError

    def cleaned_call(self, call: Call | None = None) -> Call:
        """The call of a model on any graph, cleaned first; an attack or an audit that is given it goes through that."""

        def cleaned(model: nn.Module, data: Data) -> Tensor:
            return (call or call_by_signature)(model, delete_edges(data, self.suspects(data)))

        return cleaned

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model` on the cleaned graph; the given one is left as it was."""
        if not isinstance(data, Data):
            raise DataError(
                f"{type(self).__name__} cleans a whole graph, and was given {type(data).__name__}; give a Data"
            )
        return super().fit(model, delete_edges(data, self.suspects(data)), call=call, checkpoint=checkpoint)


@METHODS.register("gnnguard")
@dataclass(frozen=True)
class GNNGuard(Purified):
    """Edges between nodes that are not alike go: those with cos(x_i, x_j) < `threshold` (Zhang & Zitnik 2020).

    Likeness is that of the features; the original weighs edges anew in each layer. Attention does the weighing here.

    >>> data = Data(x=torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), edge_index=torch.tensor([[0, 0], [1, 2]]))
    >>> GNNGuard().suspects(data)
    tensor([False,  True])
    """

    threshold: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_numbers(-1, threshold=self.threshold)

    def suspects(self, data: Data) -> Tensor:
        """Mask of the edges between nodes that are not alike; [E]."""
        x, edges = require(data, "x"), require(data, "edge_index")
        old, new = split_rows(x) or (x.detach(), None)
        known = (edges < len(old)).all(0)
        found = torch.zeros(edges.size(1), device=edges.device)
        found[known] = _CACHE.get("likeness", [edges, old.detach()], lambda: _likeness(old, edges[:, known]))
        if new is not None:  # injected nodes, whose features an attack moves
            ends, at = edges[:, ~known].unique(return_inverse=True)
            rows = torch.cat([_dense(old, ends[ends < len(old)]), new.detach()[ends[ends >= len(old)] - len(old)]])
            found[~known] = _likeness(rows, at)
        return found < self.threshold


@METHODS.register("gnn-svd")
@dataclass(frozen=True)
class GNNSVD(Purified):
    """Edges that the `rank` largest singular vectors of the adjacency do not account for go (Entezari et al. 2020).

    Of all edges the share `drop` with the least value in U S V^T is taken out. The approximation is made at the edges
    only, from a sparse matrix; the original holds all of it.

    >>> pairs = torch.tensor([[0, 0, 0, 1, 1, 2, 3], [1, 2, 3, 2, 3, 3, 4]])  # all of four nodes, and one beyond
    >>> data = Data(x=torch.ones(5, 1), edge_index=torch.cat([pairs, pairs.flip(0)], 1))
    >>> GNNSVD(rank=1, drop=0.15).suspects(data).nonzero().flatten()
    tensor([ 6, 13])
    """

    rank: int = 10
    drop: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(1, rank=self.rank)
        check_share(drop=self.drop)

    def suspects(self, data: Data) -> Tensor:
        """Mask of the edges with the least value in the approximation; [E]."""
        edges = require(data, "edge_index")
        least = lambda: self._least(edges.cpu().numpy(), int(data.num_nodes or 0)).to(edges.device)  # noqa: E731
        return _CACHE.get((self, data.num_nodes), [edges], least)

    def _least(self, edges: np.ndarray, nodes: int) -> Tensor:
        adjacency = coo_matrix((np.ones(edges.shape[1]), (edges[0], edges[1])), shape=(nodes, nodes)).tocsr()
        u, s, v = svds(adjacency, k=min(self.rank, nodes - 1), v0=np.ones(nodes))
        return _least(torch.from_numpy(np.einsum("er,re->e", (u * s)[edges[0]], np.asarray(v)[:, edges[1]])), self.drop)


@METHODS.register("pro-gnn")
@dataclass(frozen=True)
class ProGNN(Purified):
    """Edges that a sparse matrix of low rank, close to the adjacency, has least of go (Jin et al. 2020, in two stages).

    S minimises |S - A|^2 + `sparse` |S|_1 + `low_rank` |S|_* with 0 <= S <= 1, by `steps` of proximal descent; the
    share `drop` of all edges with the least S_ij is taken out. Both weights are those of the authors' code, where the
    smoothness of features has none; S is learnt before the model, since a graph that comes later needs one, too.
    All pairs of nodes are held, and their eigenvectors found in each step, so graphs over `limit` nodes are refused.

    >>> pairs = torch.tensor([[0, 0, 0, 1, 1, 2, 3], [1, 2, 3, 2, 3, 3, 4]])  # all of four nodes, and one beyond
    >>> data = Data(x=torch.ones(5, 1), edge_index=torch.cat([pairs, pairs.flip(0)], 1))
    >>> ProGNN(drop=0.15).suspects(data).nonzero().flatten()
    tensor([ 6, 13])
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
        """Mask of the edges with the least weight in what was learnt; [E]."""
        edges = require(data, "edge_index")
        return _CACHE.get(
            (self, data.num_nodes), [edges], lambda: _least(self.learnt(data)[edges[0], edges[1]], self.drop)
        )

    def learnt(self, data: Data) -> Tensor:
        """S; [N, N]."""
        nodes = int(data.num_nodes or 0)
        if nodes > self.limit:
            raise DataError(
                f"Pro-GNN holds all pairs of nodes, and was given {nodes:,}; "
                f"give a smaller graph, a larger limit than {self.limit:,}, or take gnn-svd"
            )
        source, target = require(data, "edge_index")
        adjacency = torch.zeros(nodes, nodes, device=source.device)
        adjacency[source, target] = adjacency[target, source] = 1
        found = adjacency
        for _ in range(self.steps):
            found = _shrunk(found - 2 * self.rate * (found - adjacency), self.rate * self.low_rank)
            found = (found - self.rate * self.sparse).clamp(0, 1)
        return found


def _shrunk(matrix: Tensor, by: float) -> Tensor:
    """The singular values of a symmetric matrix made smaller, none below 0."""
    value, vector = torch.linalg.eigh(matrix)
    return (vector * nn.functional.softshrink(value, by)) @ vector.t()


def _least(value: Tensor, share: float) -> Tensor:
    """Mask of that share of all edges with the least value; [E]."""
    least = value.argsort(stable=True)[: round(share * len(value))]
    return torch.zeros(len(value), dtype=torch.bool, device=value.device).index_fill_(0, least, True)


def _likeness(x: Tensor, edges: Tensor) -> Tensor:
    """The cosine of the features at both ends, by their stored entries; [E]."""
    rows: Any = _csr(x)
    size = np.sqrt(np.asarray(rows.multiply(rows).sum(1))).ravel()
    rows = diags(1 / np.where(size > 0, size, 1)) @ rows
    pieces = [rows[a].multiply(rows[b]).sum(1) for a, b in (part.cpu().numpy() for part in edges.split(AT_ONCE, dim=1))]
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


AT_ONCE = 20_000  # edges whose features are compared at a time
_CACHE = TensorCache(size=16)  # an attack asks for the suspects of the same edges again and again
