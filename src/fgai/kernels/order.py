"""Where the edges of a graph lie, found once: as entries of a sparse matrix, and as the members of each node."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from fgai.errors import DataError
from fgai.graph import degree, edge_keys, rising, sum_by

Place = tuple[Tensor, Tensor]  # where the rows of a sparse matrix start, and the columns of its entries


@dataclass(frozen=True)
class Segments:
    """The edges of each node: an [N, E] matrix of ones, whose product is a sum over them."""

    starts: Tensor  # [N + 1]
    member: Tensor  # [E], the edges, node after node
    in_order: bool = False  # they lie so already

    def sum(self, value: Tensor) -> Tensor:
        """Over the edges of each node; [E, ...] -> [N, ...].

        >>> EdgeOrder.of(torch.tensor([[0, 0], [1, 0]]), 1, 2).incoming.sum(torch.tensor([[2.0], [3.0]])).flatten()
        tensor([3., 2.])
        """
        ones = value.new_ones(len(self.member))
        shape = (len(self.starts) - 1, len(self.member))
        return (csr((self.starts, self.member), ones, shape) @ value.flatten(1)).view(-1, *value.shape[1:])

    def max(self, value: Tensor) -> Tensor:
        """Likewise the largest, entry by entry; -inf for a node without edges."""
        inside = value if self.in_order else value.index_select(0, self.member)
        return torch.segment_reduce(inside, "max", offsets=self.starts.long(), axis=0, unsafe=True)


@dataclass(frozen=True)
class EdgeOrder:
    """Where the edges lie in A (targets x sources, by rows) and in A^T; repeated edges lie together."""

    source: Tensor  # [E]
    target: Tensor  # [E]
    num_sources: int
    num_targets: int
    sort: Tensor  # [E], the edges, sorted by target, then source
    place: Tensor  # [E], the place of each edge in A
    edge: Tensor  # [P], an edge at each place of A
    turned: Tensor  # [P], the place in A of each place of A^T
    rows: Place  # A
    columns: Place  # A^T

    @classmethod
    def of(cls, edge_index: Tensor, num_sources: int, num_targets: int) -> EdgeOrder:
        """Sort once.

        >>> EdgeOrder.of(torch.tensor([[1, 0], [0, 1]]), 2, 2).rows[1]
        tensor([1, 0], dtype=torch.int32)
        """
        _hush()
        least, most = (
            torch.stack(torch.aminmax(edge_index, dim=1)).tolist() if edge_index.size(1) else ([0, 0], [-1, -1])
        )
        for low, high, count in zip(least, most, (num_sources, num_targets), strict=True):
            if low < 0 or high >= count:
                raise DataError(f"edges name the nodes {low} to {high}, and there are {count}")
        keys, sort = rising(edge_keys(edge_index, num_sources))
        fresh = torch.ones_like(keys, dtype=torch.bool)
        fresh[1:] = keys[1:] != keys[:-1]
        place = torch.empty_like(sort)
        place[sort] = fresh.cumsum(0) - 1
        edge = sort[fresh]
        source, target = edge_index[:, edge]
        turned = source.argsort(stable=True)
        rows = (starts(target, num_targets), source.int())
        columns = (starts(source, num_sources), target[turned].int())
        ends = edge_index[0].contiguous(), edge_index[1].contiguous()
        return cls(*ends, num_sources, num_targets, sort, place, edge, turned, rows, columns)

    @property
    def shape(self) -> tuple[int, int]:
        """Of A."""
        return self.num_targets, self.num_sources

    @property
    def repeats(self) -> bool:
        """Some edge is there more than once."""
        return len(self.edge) < len(self.place)

    @cached_property
    def in_order(self) -> bool:
        """The edges are the entries of A as they lie: nothing needs to be moved."""
        return not self.repeats and torch.equal(self.edge, torch.arange(len(self.edge), device=self.edge.device))

    @cached_property
    def incoming(self) -> Segments:
        """The edges by target."""
        return Segments(starts(self.target, self.num_targets), self.sort.int(), self.in_order)

    @cached_property
    def outgoing(self) -> Segments:
        """The edges by source."""
        member = self.source.argsort(stable=True) if self.repeats else self.edge[self.turned]
        return Segments(starts(self.source, self.num_sources), member.int())

    def entries(self, weight: Tensor) -> Tensor:
        """The weights as entries of A, those of repeated edges added up; [E, H] -> [P, H]."""
        if self.repeats:
            return sum_by(weight, self.place, len(self.edge))
        return weight if self.in_order else weight.index_select(0, self.edge)

    def at_edges(self, entries: Tensor) -> Tensor:
        """Entries of A as they belong to the edges; [P, H] -> [E, H]."""
        return entries if self.in_order else entries.index_select(0, self.place)

    def turned_entries(self, weight: Tensor) -> Tensor:
        """Likewise as entries of A^T."""
        if self.repeats:
            return self.entries(weight).index_select(0, self.turned)
        return weight.index_select(0, self.outgoing.member)


def csr(place: Place, entries: Tensor, shape: tuple[int, int]) -> Tensor:
    """A sparse matrix by rows, without the checks of every product's operands."""
    return torch.sparse_csr_tensor(*place, entries, shape, check_invariants=False)


def starts(row: Tensor, num: int) -> Tensor:
    """Where each row starts when entries are sorted by row, and where the last ends; [E] -> [num + 1]."""
    return torch.cat([row.new_zeros(1), degree(row, num).cumsum(0)]).int()


@cache
def _hush() -> None:
    """Torch says once per process that sparse rows are in beta; users of a model need not hear it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        csr((torch.tensor([0, 0]), torch.tensor([], dtype=torch.long)), torch.tensor([]), (1, 1))
