"""Perturbations inside a norm ball: of the attention weights or scores, and of the node features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Best, Gain, gradients, resolve_targets
from fgai.adversaries.perturbation import AttackResult, Perturbation
from fgai.adversaries.projections import PROJECTIONS
from fgai.attention import Attention
from fgai.calling import frozen_params
from fgai.errors import SettingError
from fgai.graph import edge_keys, require, segment_sum
from fgai.reading import Reader
from fgai.settings import check_choice, check_numbers, check_seed, check_whole


@ADVERSARIES.register("attention-ball")
@dataclass(frozen=True)
class AttentionBall:
    """delta with |delta| <= radius for every node and head, by projected gradient ascent.

    On the `weights` this is the paper's y(w + delta); on the `scores` the softmax comes after. Sites are the layers'
    names; by default the last one, the explanation. Perturbed weights need not be positive nor sum to one: that is the
    definition's ball, not the simplex. The weight of a neighbour is one entry, as in the certificate: parallel edges
    share its push.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attacked = AttentionBall(radius=0.1, steps=2)(read, data, gains.kl(read(data).detach()))
    >>> list(attacked.perturbation.weight_delta)
    ['conv2']
    """

    radius: float = 0.1
    norm: Literal["l1", "l2", "linf"] = "l1"
    on: Literal["weights", "scores"] = "weights"
    steps: int = 10
    sites: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(PROJECTIONS, norm=self.norm)
        check_choice(("weights", "scores"), on=self.on)
        check_numbers(0, radius=self.radius)
        check_whole(0, steps=self.steps)
        check_seed(self.seed)

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The worst reading found."""
        best, places = Best(read, graph, gain), self._places(read, graph)
        generator = torch.Generator().manual_seed(self.seed)
        delta = {}
        for site, place in places.items():
            noise = torch.randn(place.weight.shape, generator=generator, dtype=place.weight.dtype).to(
                place.weight.device
            )
            delta[site] = place.project(0.01 * self.radius * noise)
        with frozen_params(read.model):
            for number in range(self.steps):
                for part in delta.values():
                    part.requires_grad_()
                value = gain(self._as_change(delta).read(read, graph))
                slopes = gradients(value, list(delta.values()))
                best.offer(self._as_change({site: part.detach() for site, part in delta.items()}), value)
                length = self.radius * (1.0 if number < self.steps // 2 else 0.25)  # large strides, then small ones
                delta = {
                    site: places[site].project(delta[site].detach() + length * places[site].direction(slope))
                    for site, slope in zip(delta, slopes, strict=True)
                }
        best.try_on(self._as_change(delta))
        return best.reading()

    def _places(self, read: Reader, graph: Data) -> dict[str, _Place]:
        with torch.no_grad():
            seen = read(graph).attention
        names = tuple(seen)[-1:] if self.sites is None else self.sites
        if unknown := sorted(set(names) - set(seen)):
            raise SettingError(f"no attention is called {unknown}; in this model there is {sorted(seen)}")
        return {site: _Place(seen[site], self.norm, self.radius, self.on == "weights") for site in names}

    def _as_change(self, delta: Mapping[str, Tensor]) -> Perturbation:
        return Perturbation(weight_delta=delta) if self.on == "weights" else Perturbation(score_delta=delta)


class _Place:
    """The ball at one site: a vector per target and head, with an entry per edge, or per neighbour if `merged`."""

    def __init__(self, attention: Attention, norm: str, radius: float, merged: bool) -> None:
        self.weight, self._target, self._nodes = attention.weight, attention.target, attention.num_targets
        self._norm, self._radius = norm, radius
        base = int(attention.edge_index.max()) + 1 if len(attention.weight) else 1
        keys = edge_keys(attention.edge_index, base)
        keys, entry, copies = keys.unique(return_inverse=True, return_counts=True)
        self._entry = entry if merged and len(keys) < len(entry) else None
        self._copies = copies[entry, None]
        self._ends = torch.empty_like(keys).index_put((entry,), self._target)

    def project(self, delta: Tensor) -> Tensor:
        """The nearest point inside; parallel edges share the push of their neighbour evenly."""
        onto = PROJECTIONS[self._norm]
        if self._entry is None:
            return onto(delta, self._target, self._nodes, self._radius)
        whole = segment_sum(delta, self._entry, len(self._ends))
        return onto(whole, self._ends, self._nodes, self._radius)[self._entry] / self._copies

    def direction(self, slope: Tensor) -> Tensor:
        """The gradient, scaled per node to length one; its sign, where every entry has a bound of its own."""
        if self._norm == "linf":
            return slope.sign()
        length = segment_sum(slope.square(), self._target, self._nodes).sqrt()
        return slope / length.clamp(min=max(1e-12, torch.finfo(length.dtype).tiny))[self._target]


@ADVERSARIES.register("feature-ball")
@dataclass(frozen=True)
class FeatureBall:
    """x + delta with |delta_i| <= radius for every node i, by projected gradient ascent.

    Of sparse features the stored entries move, so words that a document does not have stay away. With `targets` only
    those nodes move.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attacked = FeatureBall(radius=0.1, steps=2)(read, data, gains.kl(read(data).detach()))
    >>> bool(attacked.perturbation.x_delta.abs().max() <= 0.1)
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

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The worst reading found."""
        best, x = Best(read, graph, gain), require(graph, "x")
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
                value = gain(Perturbation(x_delta=delta).read(read, graph))
                (slope,) = gradients(value, [delta])
                best.offer(Perturbation(x_delta=delta.detach()), value)
                delta = project(delta.detach() + 2.5 * self.radius / self.steps * slope.sign())
        best.try_on(Perturbation(x_delta=delta))
        return best.reading()

    def _free(self, row: Tensor, nodes: int) -> Tensor:
        return (
            torch.zeros(nodes, dtype=torch.bool)
            .index_fill_(0, resolve_targets(self.targets, nodes), True)
            .to(row.device)[row]
        )


def _rows(x: Tensor) -> Tensor:
    """The node of each entry of a dense matrix, flattened."""
    return torch.arange(x.size(0), device=x.device).repeat_interleave(x.size(1))
