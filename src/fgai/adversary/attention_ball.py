"""Perturbations of the attention itself, the space of the paper's definition: w + delta, or before the softmax."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversary.base import ADVERSARIES, Best, Gain, slopes_of
from fgai.adversary.perturbation import Attacked, Perturbation
from fgai.adversary.projections import PROJECTIONS
from fgai.attention import Attention
from fgai.errors import SettingError
from fgai.graph import sum_by
from fgai.reading import Reader, frozen_params


@ADVERSARIES.register("attention-ball")
@dataclass(frozen=True)
class AttentionBall:
    """delta with |delta| <= radius for every node and head, by projected gradient ascent.

    On the `weights` this is the paper's y(w + delta); on the `scores` the softmax comes after. Sites are the layers'
    names; by default the last one, the explanation. Perturbed weights need not be positive nor sum to one: that is the
    definition's ball, not the simplex.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversary import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attacked = AttentionBall(radius=0.1, steps=2)(read, data, gains.kl(read(data).detach()))
    >>> list(attacked.perturbation.plus_weight)
    ['conv2']
    """

    radius: float = 0.1
    norm: Literal["l1", "l2", "linf"] = "l1"
    on: Literal["weights", "scores"] = "weights"
    steps: int = 10
    sites: tuple[str, ...] | None = None
    seed: int = 0

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> Attacked:
        """The worst reading found."""
        if self.norm not in PROJECTIONS or self.on not in ("weights", "scores") or self.radius < 0:
            raise SettingError(f"{self}; norm is l1, l2 or linf, on is weights or scores, radius is not negative")
        best, places = Best(read, graph, gain), self._places(read, graph)
        generator = torch.Generator().manual_seed(self.seed)
        delta = {}
        for site, place in places.items():
            noise = torch.randn(place.weight.shape, generator=generator, dtype=place.weight.dtype).to(
                place.weight.device
            )
            delta[site] = self._project(0.01 * self.radius * noise, place)
        with frozen_params(read.model):
            for number in range(self.steps):
                for part in delta.values():
                    part.requires_grad_()
                value = gain(self._as_change(delta).read(read, graph))
                slopes = slopes_of(value, list(delta.values()))
                best.offer(self._as_change({site: part.detach() for site, part in delta.items()}), value)
                length = self.radius * (1.0 if number < self.steps // 2 else 0.25)  # large strides, then small ones
                delta = {
                    site: self._project(
                        delta[site].detach() + length * self._direction(slope, places[site]), places[site]
                    )
                    for site, slope in zip(delta, slopes, strict=True)
                }
        best.try_on(self._as_change(delta))
        return best.reading()

    def _places(self, read: Reader, graph: Data) -> Mapping[str, Attention]:
        with torch.no_grad():
            seen = read(graph).attention
        names = tuple(seen)[-1:] if self.sites is None else self.sites
        if unknown := sorted(set(names) - set(seen)):
            raise SettingError(f"no attention is called {unknown}; in this model there is {sorted(seen)}")
        return {site: seen[site] for site in names}

    def _project(self, delta: Tensor, place: Attention) -> Tensor:
        return PROJECTIONS[self.norm](delta, place.target, place.num_targets, self.radius)

    def _direction(self, slope: Tensor, place: Attention) -> Tensor:
        """The gradient, scaled per node to length one; its sign, where every entry has a bound of its own."""
        if self.norm == "linf":
            return slope.sign()
        length = sum_by(slope.square(), place.target, place.num_targets).sqrt()
        return slope / length.clamp(min=1e-12)[place.target]

    def _as_change(self, delta: Mapping[str, Tensor]) -> Perturbation:
        return Perturbation(plus_weight=delta) if self.on == "weights" else Perturbation(plus_score=delta)
