"""A pass in which only the last rows are other than in an earlier one: most targets keep what they had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fgai.kernels.order import EdgeOrder


@dataclass
class Narrow:
    """The edges into the targets that later rows reach, beside what the other targets had; it stands for an order.

    A later row is a target itself, and it reaches those that it is a source of. Values of all edges or targets are
    made whole by putting the new ones over the earlier ones; what they were put together from is found again by
    `within`, for the very tensor that `whole` gave.
    """

    full: EdgeOrder
    part: EdgeOrder  # of the reached targets only, numbered as they lie in `targets`
    edges: Tensor  # [S], the edges into them
    targets: Tensor  # [T]
    earlier: dict[str, Tensor] = field(default_factory=dict)
    _made: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, full: EdgeOrder, since: int) -> Narrow:
        """Rows are later from number `since` on.

        >>> order = EdgeOrder.of(torch.tensor([[0, 0, 3], [1, 2, 1]]), 4, 4)
        >>> narrow = Narrow.of(order, since=3)
        >>> narrow.targets, narrow.edges
        (tensor([1, 3]), tensor([0, 2]))
        """
        reached = torch.arange(full.num_targets) >= since
        reached[full.target[full.source >= since]] = True
        targets, edges = reached.nonzero()[:, 0], reached[full.target].nonzero()[:, 0]
        number = reached.cumsum(0) - 1
        ends = torch.stack([full.source[edges], number[full.target[edges]]])
        return cls(full, EdgeOrder.of(ends, full.num_sources, len(targets)), edges, targets)

    @property
    def target(self) -> Tensor:
        """The target of every edge; [E]."""
        return self.full.target

    @property
    def num_targets(self) -> int:
        """Of all edges."""
        return self.full.num_targets

    def anew(self) -> Narrow:
        """The same targets, of another layer or of other parameters: nothing is known of an earlier pass."""
        return Narrow(self.full, self.part, self.edges, self.targets)

    def whole(self, what: str, new: Tensor, at: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """`new` in the rows `at`, elsewhere what an earlier pass had; without one, `make` gives all of it."""
        if what not in self.earlier:
            with torch.no_grad():
                self.earlier[what] = make()
        both = self.earlier[what].index_copy(0, at, new)
        self._made[what] = (both, new)
        return both

    def within(self, value: Tensor) -> Tensor | None:
        """What `whole` put into this very tensor, if it made it."""
        return next((new for both, new in self._made.values() if both.data_ptr() == value.data_ptr()), None)
