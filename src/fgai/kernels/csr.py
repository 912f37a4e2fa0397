"""The edges of a graph as entries of a sparse matrix, and the edges of each node.

Attention over edges j -> i is a product with a sparse matrix A (targets x sources). Products need the entries sorted by
row; gradients need the entries of the transpose sorted by row. The order depends on the edges only, so it is computed
once per graph. Each part is computed when it is first used: what only gradients use, in the first backward pass.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from fgai.errors import DataError
from fgai.graph import degree, segment_sum, stable_sort

Pattern = tuple[Tensor, Tensor]  # row pointers and column indices of a CSR matrix


@dataclass(frozen=True)
class Segments:
    """The edges of each node, as a sparse [N, E] matrix of ones. Its product with values per edge sums over them."""

    starts: Tensor  # [N + 1]
    member: Tensor  # [E], the edges, sorted by node
    in_order: bool = False  # `member` is 0, 1, 2, ...

    def sum(self, value: Tensor) -> Tensor:
        """Sum over the edges of each node; [E, ...] -> [N, ...].

        >>> EdgeOrder.of(torch.tensor([[0, 0], [1, 0]]), 1, 2).incoming.sum(torch.tensor([[2.0], [3.0]])).flatten()
        tensor([3., 2.])
        """
        ones = value.new_ones(len(self.member))
        shape = (len(self.starts) - 1, len(self.member))
        return (csr((self.starts, self.member), ones, shape) @ value.flatten(1)).view(-1, *value.shape[1:])

    def max(self, value: Tensor) -> Tensor:
        """Return the elementwise maximum over the edges of each node, -inf without edges; [E, ...] -> [N, ...]."""
        sorted_ = value if self.in_order else value.index_select(0, self.member)
        return torch.segment_reduce(sorted_, "max", offsets=self.starts.long(), axis=0, unsafe=True)


@dataclass(frozen=True, eq=False)
class EdgeOrder:
    """Positions of edges among the CSR entries of A (targets x sources) and of A^T.

    Repeated edges share an entry: E edges have P <= E entries.
    """

    source: Tensor  # [E]
    target: Tensor  # [E]
    num_sources: int
    num_targets: int

    @classmethod
    def of(cls, edge_index: Tensor, num_sources: int, num_targets: int) -> EdgeOrder:
        """Check the node ids of `edge_index` and return its order. The result may share memory with `edge_index`.

        >>> EdgeOrder.of(torch.tensor([[1, 0], [0, 1]]), 2, 2).rows[1]
        tensor([1, 0], dtype=torch.int32)
        """
        _silence_beta_warning()
        lowest, highest = torch.stack(torch.aminmax(edge_index, dim=1)).tolist() if edge_index.size(1) else ((), ())
        for low, high, count in zip(lowest, highest, (num_sources, num_targets), strict=False):
            if low < 0 or high >= count:
                raise DataError(
                    f"edges refer to the nodes {low} to {high}, and there are {count} nodes; number nodes from 0"
                )
        return cls(edge_index[0].contiguous(), edge_index[1].contiguous(), num_sources, num_targets)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of A."""
        return self.num_targets, self.num_sources

    @cached_property
    def _sorted(self) -> tuple[Tensor, Tensor]:
        """The edges sorted by target, then source; and a mask of the first edge of each entry.

        Edges in this order, as `fgai.graph.sort_edges` returns them, are not sorted again.
        """
        keys = self.target * self.num_sources + self.source
        if self.target.device.type == "cpu" and bool((keys[1:] >= keys[:-1]).all()):
            sort = torch.arange(len(keys), device=keys.device)
        else:
            keys, sort = stable_sort(keys)
        first = torch.ones_like(keys, dtype=torch.bool)
        first[1:] = keys[1:] != keys[:-1]
        return sort, first

    @cached_property
    def edge(self) -> Tensor:
        """First edge of each entry of A; [P]."""
        sort, first = self._sorted
        return sort if bool(first.all()) else sort[first]

    @cached_property
    def entry(self) -> Tensor:
        """Entry of A of each edge; [E]."""
        sort, first = self._sorted
        return torch.empty_like(sort).index_copy_(0, sort, first.cumsum(0) - 1)

    @property
    def repeats(self) -> bool:
        """Whether an edge is repeated."""
        return len(self.edge) < len(self.source)

    @cached_property
    def in_order(self) -> bool:
        """Whether the edges are in the order of the entries of A, without repetition."""
        return not self.repeats and torch.equal(self.edge, torch.arange(len(self.edge), device=self.edge.device))

    @cached_property
    def rows(self) -> Pattern:
        """CSR pattern of A."""
        source, target = (end if self.in_order else end[self.edge] for end in (self.source, self.target))
        return starts(target, self.num_targets), source.int()

    @cached_property
    def transposed(self) -> Tensor:
        """Entry of A of each entry of A^T; [P]."""
        return (self.source if self.in_order else self.source[self.edge]).argsort(stable=True)

    @cached_property
    def columns(self) -> Pattern:
        """CSR pattern of A^T."""
        source, target = (end if self.in_order else end[self.edge] for end in (self.source, self.target))
        return starts(source, self.num_sources), target[self.transposed].int()

    @cached_property
    def incoming(self) -> Segments:
        """The edges of each target."""
        return Segments(starts(self.target, self.num_targets), self._sorted[0].int(), self.in_order)

    @cached_property
    def outgoing(self) -> Segments:
        """The edges of each source."""
        member = self.source.argsort(stable=True) if self.repeats else self.edge[self.transposed]
        return Segments(starts(self.source, self.num_sources), member.int())

    def entries(self, weight: Tensor) -> Tensor:
        """Convert weights of edges to entries of A, adding those of repeated edges; [E, H] -> [P, H]."""
        if self.repeats:
            return segment_sum(weight, self.entry, len(self.edge))
        return weight if self.in_order else weight.index_select(0, self.edge)

    def at_edges(self, entries: Tensor) -> Tensor:
        """Convert entries of A to values of edges; [P, H] -> [E, H]."""
        return entries if self.in_order else entries.index_select(0, self.entry)

    def transposed_entries(self, weight: Tensor) -> Tensor:
        """Convert weights of edges to entries of A^T; [E, H] -> [P, H]."""
        if self.repeats:
            return self.entries(weight).index_select(0, self.transposed)
        return weight.index_select(0, self.outgoing.member)


def csr(pattern: Pattern, entries: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a CSR matrix without torch's checks of the pattern, which would run in each product."""
    return torch.sparse_csr_tensor(*pattern, entries, shape, check_invariants=False)


def starts(row: Tensor, num: int) -> Tensor:
    """Return the row pointers of entries sorted by row; [E] -> [num + 1]."""
    return torch.cat([row.new_zeros(1), degree(row, num).cumsum(0)]).int()


@cache
def _silence_beta_warning() -> None:
    """Trigger and suppress torch's warning, once per process, that CSR support is in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        csr((torch.tensor([0, 0]), torch.tensor([], dtype=torch.long)), torch.tensor([]), (1, 1))
