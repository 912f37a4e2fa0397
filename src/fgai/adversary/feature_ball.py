"""Perturbations of the features that nodes already have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversary.base import ADVERSARIES, Best, Gain, chosen, slopes_of
from fgai.adversary.perturbation import Attacked, Perturbation
from fgai.adversary.projections import PROJECTIONS
from fgai.graph import need
from fgai.reading import Reader, frozen_params
from fgai.settings import check_choice, check_numbers, check_seed, check_whole


@ADVERSARIES.register("feature-ball")
@dataclass(frozen=True)
class FeatureBall:
    """x + delta with |delta_i| <= radius for every node i, by projected gradient ascent.

    Of sparse features the stored entries move, so words that a document does not have stay away. With `targets` only
    those nodes move.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversary import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attacked = FeatureBall(radius=0.1, steps=2)(read, data, gains.kl(read(data).detach()))
    >>> bool(attacked.perturbation.moved.abs().max() <= 0.1)
    True
    """

    radius: float = 0.1
    norm: Literal["l1", "l2", "linf"] = "linf"
    steps: int = 10
    targets: tuple[int, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(PROJECTIONS, norm=self.norm)
        check_numbers(0, radius=self.radius)
        check_whole(0, steps=self.steps)
        check_seed(self.seed)

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> Attacked:
        """The worst reading found."""
        best, x = Best(read, graph, gain), need(graph, "x")
        values, row = (x.coalesce().values(), x.coalesce().indices()[0]) if x.is_sparse else (x, _rows(x))
        free = self._free(row, x.size(0)).view(values.shape)

        def project(delta: Tensor) -> Tensor:
            flat = (delta * free).reshape(-1, 1)
            return PROJECTIONS[self.norm](flat, row, x.size(0), self.radius).view(values.shape)

        generator = torch.Generator().manual_seed(self.seed)
        delta = project(
            0.01 * self.radius * torch.randn(values.shape, generator=generator, dtype=values.dtype).to(values.device)
        )
        with frozen_params(read.model):
            for _ in range(self.steps):
                delta.requires_grad_()
                value = gain(Perturbation(moved=delta).read(read, graph))
                (slope,) = slopes_of(value, [delta])
                best.offer(Perturbation(moved=delta.detach()), value)
                delta = project(delta.detach() + 2.5 * self.radius / self.steps * slope.sign())
        best.try_on(Perturbation(moved=delta))
        return best.reading()

    def _free(self, row: Tensor, nodes: int) -> Tensor:
        return (
            torch.zeros(nodes, dtype=torch.bool).index_fill_(0, chosen(self.targets, nodes), True).to(row.device)[row]
        )


def _rows(x: Tensor) -> Tensor:
    """The node of each entry of a dense matrix, flattened."""
    return torch.arange(x.size(0), device=x.device).repeat_interleave(x.size(1))
