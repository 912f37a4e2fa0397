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
    edge: Tensor | None = None  # [E], where each edge was in the graph it came from; None if there

    @classmethod
    def of(cls, data: Data) -> CSC:
        """The edges of `data`, grouped by target; edges that share one keep their order."""
        edges, nodes = require(data, "edge_index"), int(data.num_nodes or 0)
        _, order = stable_sort(edges[1])
        ends = degree(edges[1], nodes).cumsum(0)
        return cls(torch.cat([ends.new_zeros(1), ends]), edges[0][order], order)

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.start.numel() - 1

    def degree(self, nodes: Tensor) -> Tensor:
        """How many edges arrive at each of these nodes."""
        return self.start[nodes + 1] - self.start[nodes]


MOST_SAMPLED = 100_000  # edges of a node at a hop; -1 takes all of them at no such cost


class NeighbourSampler(BaseSampler):
    """From seed nodes outwards, at most `fanout[h]` of each node's incoming edges at hop h; -1 takes all.

    For any PyG `NodeLoader`. Every subset of a node's edges is equally likely and no edge comes twice; the cost is that
    of the edges drawn, whatever the degree. What is drawn depends on `seed`, the epoch and the seed nodes alone: it is
    the same in every process.

    >>> from torch_geometric.data import Data
    >>> star = Data(edge_index=torch.tensor([[1, 2, 3], [0, 0, 0]]), num_nodes=4)
    >>> sampler = NeighbourSampler(CSC.of(star), fanout=[2])
    >>> found = sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=torch.tensor([0])))
    >>> found.col, len(found.edge.unique())
    (tensor([0, 0]), 2)
    """

    def __init__(self, csc: CSC, fanout: Sequence[int], seed: int = 0) -> None:
        whole = all(type(size) is int and (size == -1 or 1 <= size <= MOST_SAMPLED) for size in fanout)
        if not fanout or not whole:
            raise SettingError(
                f"fanout={list(fanout)}; give a number of edges for each hop, at most {MOST_SAMPLED:,}, or -1 for all"
            )
        self.csc, self.fanout, self.seed, self.epoch = csc, tuple(fanout), seed, 0

    @property
    def edge_permutation(self) -> Any:
        """Where the sampled edges lie in the graph they came from."""
        return self.csc.edge

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
        """The sampled neighbourhood of the seed nodes, which come first; an edge leads from `row` to `col`."""
        nodes = index.node
        number = (self.seed * 1_000_003 + self.epoch) * 1_000_003 + int(nodes[0])
        generator = torch.Generator().manual_seed(number % 2**63)
        numbers, frontier, first = _Numbers(nodes), nodes, 0
        hops: list[tuple[Tensor, Tensor, Tensor]] = []
        for size in self.fanout:
            at, edge = sample_edges(self.csc, frontier, size, generator)
            hops.append((numbers.of(self.csc.source[edge].long()), at + first, edge))
            first, frontier = first + len(frontier), numbers.newest
        row, column, edge = (torch.cat(parts) for parts in zip(*hops, strict=True))
        return SamplerOutput(
            torch.cat(numbers.nodes),
            row,
            column,
            edge,
            num_sampled_nodes=numbers.counts,
            num_sampled_edges=[len(hop[2]) for hop in hops],
            metadata=(index.input_id, index.time),
        )

    def sample_from_edges(self, *_: Any, **__: Any) -> SamplerOutput:
        """Links are not sampled here."""
        raise SettingError("this sampler starts from nodes; for links give PyG's LinkNeighborLoader its own engine")


def sample_edges(csc: CSC, nodes: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """At most `size` edges of each node: whose they are (places in `nodes`), and which; node after node."""
    start, degree = csc.start[nodes], csc.degree(nodes)
    if size == -1:
        at = torch.arange(len(nodes)).repeat_interleave(degree)
        return at, start[at] + torch.arange(len(at)) - (degree.cumsum(0) - degree)[at]
    offset = torch.arange(size).expand(len(nodes), size).clone()
    many = (degree > size).nonzero().flatten()
    offset[many] = distinct(degree[many], size, generator)
    here = offset < degree[:, None]
    at = torch.arange(len(nodes))[:, None].expand_as(here)[here]
    return at, (start[:, None] + offset)[here]


def distinct(below: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` different numbers under each limit, every subset equally likely; [n] -> [n, count].

    Floyd's way: the i-th draw is under limit - count + i + 1, and if it is there already that bound itself is taken.

    >>> distinct(torch.tensor([2, 5]), 2, torch.Generator().manual_seed(0)).sort().values[0]
    tensor([0, 1])
    """
    draws = torch.rand(count, len(below), generator=generator, dtype=torch.double)
    picked = below.new_empty(count, len(below))
    for i in range(count):
        last = below - count + i
        draw = (draws[i] * (last + 1)).long()
        picked[i] = torch.where((picked[:i] == draw).any(0), last, draw)
    return picked.t()


class _Numbers:
    """Nodes of the graph numbered from 0 in a batch, in the order in which hops reach them."""

    def __init__(self, seed_nodes: Tensor) -> None:
        self.nodes = [seed_nodes]
        self._sorted, self._number = seed_nodes.sort()

    @property
    def newest(self) -> Tensor:
        """The nodes that the last hop reached first."""
        return self.nodes[-1]

    @property
    def counts(self) -> list[int]:
        """How many nodes each hop reached first."""
        return [len(part) for part in self.nodes]

    def of(self, nodes: Tensor) -> Tensor:
        """The numbers of these nodes; those not seen before get the next ones."""
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
