"""Neighbour sampling without replacement in plain torch, on a graph stored by target (CSC)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

from fgai.errors import SettingError
from fgai.graph import degree, require, stable_sort


@dataclass(frozen=True)
class CSC:
    """Compressed sparse columns: the sources of node i's edges are `source[start[i] : start[i + 1]]`.

    >>> csc = CSC.of(Data(edge_index=torch.tensor([[2, 0, 1], [1, 1, 0]]), num_nodes=3))
    >>> csc.start, csc.source, csc.edge
    (tensor([0, 1, 3, 3]), tensor([1, 2, 0]), tensor([2, 0, 1]))
    """

    start: Tensor  # [N + 1]
    source: Tensor  # [E], of any integer type
    edge: Tensor | None = None  # [E], index of each edge in the original graph; None if it is the same

    @classmethod
    def of(cls, data: Data) -> CSC:
        """Return the edges of `data` grouped by target, in a stable order."""
        edges, nodes = require(data, "edge_index"), int(data.num_nodes or 0)
        _, order = stable_sort(edges[1])
        ends = degree(edges[1], nodes).cumsum(0)
        return cls(torch.cat([ends.new_zeros(1), ends]), edges[0][order], order)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.start.numel() - 1

    def degree(self, nodes: Tensor) -> Tensor:
        """Return the in-degrees of these nodes."""
        return self.start[nodes + 1] - self.start[nodes]


MAX_FANOUT = 100_000  # memory grows with the fan-out; -1 takes all edges of a node without that cost


class NeighbourSampler(BaseSampler):
    """Samples at most `fanout[h]` incoming edges of each node at hop h, without replacement; for a PyG `NodeLoader`.

    All subsets of a node's edges are equally likely. The cost is proportional to the number of sampled edges, whatever
    the degree. The sample depends only on `seed`, the epoch and the seed nodes, so it is the same in each process.

    Args:
        csc: The edges of the graph, grouped by target.
        fanout: Edges per node for each hop; -1 for all.
        seed: Random seed.

    >>> from torch_geometric.data import Data
    >>> star = Data(edge_index=torch.tensor([[1, 2, 3], [0, 0, 0]]), num_nodes=4)
    >>> sampler = NeighbourSampler(CSC.of(star), fanout=[2])
    >>> sample = sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=torch.tensor([0])))
    >>> sample.col, len(sample.edge.unique())
    (tensor([0, 0]), 2)
    """

    def __init__(self, csc: CSC, fanout: Sequence[int], seed: int = 0) -> None:
        valid = all(type(size) is int and (size == -1 or 1 <= size <= MAX_FANOUT) for size in fanout)
        if not fanout or not valid:
            raise SettingError(
                f"fanout={list(fanout)}; give a positive number of edges for each hop, at most {MAX_FANOUT:,}, "
                "or -1 for all"
            )
        self.csc, self.fanout, self.seed, self.epoch = csc, tuple(fanout), seed, 0

    @property
    def edge_permutation(self) -> Any:
        """Index of each edge in the original graph."""
        return self.csc.edge

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        """Return the sampled neighbourhood of the seed nodes, which come first; edges go from `row` to `col`."""
        nodes = index.node
        number = (self.seed * 1_000_003 + self.epoch) * 1_000_003 + int(nodes[0])
        generator = torch.Generator().manual_seed(number % 2**63)
        local_ids, frontier, first = _LocalIds(nodes), nodes, 0
        hops: list[tuple[Tensor, Tensor, Tensor]] = []
        for size in self.fanout:
            at, edge = sample_edges(self.csc, frontier, size, generator)
            hops.append((local_ids.of(self.csc.source[edge].long()), at + first, edge))
            first, frontier = first + len(frontier), local_ids.newest
        row, column, edge = (torch.cat(parts) for parts in zip(*hops, strict=True))
        return SamplerOutput(
            torch.cat(local_ids.nodes),
            row,
            column,
            edge,
            num_sampled_nodes=local_ids.counts,
            num_sampled_edges=[len(hop[2]) for hop in hops],
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, *_: Any, **__: Any) -> SamplerOutput:
        """Raise an error: this sampler does not sample links."""
        raise SettingError("this sampler starts from nodes; for links use PyG's LinkNeighborLoader and its sampler")


def sample_edges(csc: CSC, nodes: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return at most `size` edges of each node, node by node: positions in `nodes`, and positions in `csc.source`."""
    start, degree = csc.start[nodes], csc.degree(nodes)
    if size == -1:
        at = torch.arange(len(nodes)).repeat_interleave(degree)
        return at, start[at] + torch.arange(len(at)) - (degree.cumsum(0) - degree)[at]
    offset = torch.arange(size).expand(len(nodes), size).clone()
    many = (degree > size).nonzero().flatten()
    offset[many] = sample_distinct(degree[many], size, generator)
    valid = offset < degree[:, None]
    at = torch.arange(len(nodes))[:, None].expand_as(valid)[valid]
    return at, (start[:, None] + offset)[valid]


def sample_distinct(below: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Sample `count` distinct integers below each limit, all subsets equally likely; [n] -> [n, count].

    Floyd's algorithm: draw i is uniform below limit - count + i + 1; if drawn before, limit - count + i is taken.

    >>> sample_distinct(torch.tensor([2, 5]), 2, torch.Generator().manual_seed(0)).sort().values[0]
    tensor([0, 1])
    """
    draws = torch.rand(count, len(below), generator=generator, dtype=torch.double)
    picked = below.new_empty(count, len(below))
    for i in range(count):
        last = below - count + i
        draw = (draws[i] * (last + 1)).long()
        picked[i] = torch.where((picked[:i] == draw).any(0), last, draw)
    return picked.t()


class _LocalIds:
    """Numbers the nodes of a batch from 0, in the order in which hops reach them."""

    def __init__(self, seed_nodes: Tensor) -> None:
        self.nodes = [seed_nodes]
        self._sorted, self._number = seed_nodes.sort()

    @property
    def newest(self) -> Tensor:
        """The nodes that the last hop added."""
        return self.nodes[-1]

    @property
    def counts(self) -> list[int]:
        """Number of nodes that each hop added."""
        return [len(part) for part in self.nodes]

    def of(self, nodes: Tensor) -> Tensor:
        """Return the local ids of these nodes; new nodes get the next ids."""
        once, back = nodes.unique(return_inverse=True)
        at = torch.searchsorted(self._sorted, once).clamp_(max=len(self._sorted) - 1)
        known = self._sorted[at] == once
        total = sum(self.counts)
        new = once[~known]
        number = torch.where(known, self._number[at], total - 1 + (~known).cumsum(0))
        both, order = torch.cat([self._sorted, new]).sort()
        self._number = torch.cat([self._number, torch.arange(total, total + len(new))])[order]
        self._sorted = both
        self.nodes.append(new)
        return number[back]
