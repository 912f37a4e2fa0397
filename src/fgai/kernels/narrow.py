"""The edges that a few rows reach: in a pass that differs in those rows, only they are attended over again."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fgai.kernels.order import EdgeOrder


@dataclass(frozen=True)
class Narrow:
    """The edges into the targets that some rows reach; it stands for the order of all edges.

    A row is a target itself, and it reaches those that it is a source of. All other targets keep what they had in an
    earlier pass (`kernels.rows`).
    """

    full: EdgeOrder
    part: EdgeOrder  # of the reached targets only, numbered as they lie in `targets`
    edges: Tensor  # [S], the edges into them
    targets: Tensor  # [T]

    @classmethod
    def of(cls, full: EdgeOrder, rows: Tensor) -> Narrow | None:
        """Those that these rows reach; None where most are reached, and nothing is saved.

        >>> order = EdgeOrder.of(torch.tensor([[0, 0, 1, 3], [1, 2, 2, 1]]), 4, 4)
        >>> narrow = Narrow.of(order, torch.tensor([3]))
        >>> narrow.targets, narrow.edges
        (tensor([1, 3]), tensor([0, 3]))
        """
        moved = torch.zeros(full.num_sources, dtype=torch.bool, device=rows.device).index_fill(0, rows, True)
        reached = moved.clone().index_fill(0, full.target[moved[full.source]], True)
        targets, edges = reached.nonzero()[:, 0], reached[full.target].nonzero()[:, 0]
        if 2 * len(edges) > len(full.source):
            return None
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
