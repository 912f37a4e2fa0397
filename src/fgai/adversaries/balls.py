"""Perturbations inside a norm ball: of the attention weights or scores, and of the node features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Best, Gain, gradients, resolve_targets
from fgai.adversaries.perturbation import AttackResult, Perturbation
from fgai.attention import Attention, explaining_sites
from fgai.devices import to_double
from fgai.errors import SettingError
from fgai.graph import degree, edge_keys, require, segment_sum
from fgai.modes import frozen_params
from fgai.reading import Reader
from fgai.settings import check_choice, check_numbers, check_seed, check_sequence, check_whole
from fgai.topk import rank_within

Projection = Callable[[Tensor, Tensor, int, float], Tensor]  # delta, index, number of nodes, radius


def onto_linf(delta: Tensor, index: Tensor, num: int, radius: float) -> Tensor:
    """Clamp each entry to [-radius, radius]; [E, H] -> [E, H].

    >>> onto_linf(torch.tensor([[2.0], [-0.5]]), torch.tensor([0, 0]), 1, radius=1.0).flatten()
    tensor([ 1.0000, -0.5000])
    """
    return delta.clamp(-radius, radius)


def onto_l2(delta: Tensor, index: Tensor, num: int, radius: float) -> Tensor:
    """Scale the vector of each node to length `radius` if it is longer.

    >>> onto_l2(torch.tensor([[3.0], [4.0]]), torch.tensor([0, 0]), 1, radius=1.0).flatten()
    tensor([0.6000, 0.8000])
    """
    length = segment_sum(delta.square(), index, num).sqrt()
    return delta * (radius / length.clamp(min=radius))[index] if radius > 0 else torch.zeros_like(delta)


def onto_l1(delta: Tensor, index: Tensor, num: int, radius: float) -> Tensor:
    """Shrink the entries of each node towards zero by one amount t, (|d| - t)+, so that they sum to `radius`.

    With |d| sorted, t = (sum of the m largest - radius) / m for the largest m whose m-th entry exceeds t
    (Duchi et al. 2008).

    >>> onto_l1(torch.tensor([[3.0], [1.0]]), torch.tensor([0, 0]), 1, radius=1.0).flatten()
    tensor([1., 0.])
    """
    if radius == 0 or len(index) == 0:
        return torch.zeros_like(delta)
    size = to_double(delta.abs())  # sums over all entries lose too much in single precision
    index = index.to(size.device)
    sizes = degree(index, num)
    start = sizes.cumsum(0) - sizes  # [num], first sorted entry of each node
    rank = rank_within(size, index, num)
    ordered = torch.empty_like(size).scatter_(0, start[index, None] + rank, size)
    node = torch.arange(num, device=index.device).repeat_interleave(sizes)  # of each sorted entry
    running = ordered.cumsum(0)
    running = running - (running - ordered)[start[node]]  # restart at each node
    count = torch.arange(len(index), device=index.device) - start[node] + 1
    shrink = (running - radius) / count[:, None]
    active = segment_sum((ordered > shrink).long(), node, num)  # a prefix of each node's entries
    last = (start[:, None] + active - 1).clamp(min=0)
    amount = torch.where(segment_sum(size, index, num) > radius, shrink.gather(0, last.clamp(max=len(index) - 1)), 0.0)
    return delta.sign() * (size - amount[index]).clamp(min=0).to(delta)


PROJECTIONS: dict[str, Projection] = {"l1": onto_l1, "l2": onto_l2, "linf": onto_linf}


@ADVERSARIES.register("attention-ball")
@dataclass(frozen=True)
class AttentionBall:
    """Attention delta with |delta| <= radius for each node and head, by projected gradient ascent.

    With `on="weights"` delta is added after the softmax: the paper's y(w + delta). With `on="scores"` it is added
    before. Perturbed weights can be negative and need not sum to one: the set is the ball of the definition, not the
    simplex. Each neighbour has one entry, as in the certificate: parallel edges share the delta of their neighbour.

    Args:
        radius: Largest norm of delta, for each node and head.
        norm: `l1`, `l2` or `linf`.
        on: What delta is added to: `weights` or `scores`.
        steps: Steps of gradient ascent.
        sites: Names of the perturbed layers; by default the last attention layer, which is the explanation.
        seed: Seed of the random start.

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
        if self.sites is not None:
            check_sequence(sites=self.sites)
        check_numbers(0, radius=self.radius)
        check_whole(0, steps=self.steps)
        check_seed(self.seed)

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """Return the reading with the largest gain; see `Adversary`."""
        best, balls = Best(read, graph, gain), self._balls(read, graph)
        delta = self._start(balls)
        with frozen_params(read.model):
            for number in range(self.steps):
                for part in delta.values():
                    part.requires_grad_()
                value = gain(self._perturbation(delta).read(read, graph))
                slopes = gradients(value, list(delta.values()))
                best.offer(self._perturbation({site: part.detach() for site, part in delta.items()}), value)
                length = _step_length(self.radius, number, self.steps)
                delta = {
                    site: balls[site].project(delta[site].detach() + length * balls[site].direction(slope))
                    for site, slope in zip(delta, slopes, strict=True)
                }
        best.evaluate(self._perturbation(delta))
        return best.reading()

    def _balls(self, read: Reader, graph: Data) -> dict[str, _Ball]:
        """Return the ball of each perturbed layer, by the name of the layer."""
        with torch.no_grad():
            attention = read(graph).attention
        names = explaining_sites(attention)[-1:] if self.sites is None else self.sites
        if unknown := sorted(set(names) - set(attention)):
            raise SettingError(
                f"no attention is called {unknown}; this model has {sorted(attention)}, choose `sites` among them"
            )
        return {site: _Ball(attention[site], self.norm, self.radius, self.on == "weights") for site in names}

    def _start(self, balls: Mapping[str, _Ball]) -> dict[str, Tensor]:
        """Return a small random delta for each layer."""
        generator = torch.Generator().manual_seed(self.seed)
        delta = {}
        for site, ball in balls.items():
            weight = ball.weight
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype).to(weight.device)
            delta[site] = ball.project(0.01 * self.radius * noise)
        return delta

    def _perturbation(self, delta: Mapping[str, Tensor]) -> Perturbation:
        return Perturbation(weight_delta=delta) if self.on == "weights" else Perturbation(score_delta=delta)


class _Ball:
    """The ball of one layer: a vector per target and head, with an entry per edge, or per neighbour if `merged`."""

    def __init__(self, attention: Attention, norm: str, radius: float, merged: bool) -> None:
        self.weight, self._target, self._nodes = attention.weight, attention.target, attention.num_targets
        self._norm, self._radius = norm, radius
        base = int(attention.edge_index.max()) + 1 if len(attention.weight) else 1
        keys = edge_keys(attention.edge_index, base)
        keys, entry, copies = keys.unique(return_inverse=True, return_counts=True)
        self._entry = entry if merged and len(keys) < len(entry) else None
        self._copies = copies[entry, None]
        self._entry_target = torch.empty_like(keys).index_put((entry,), self._target)

    def project(self, delta: Tensor) -> Tensor:
        """Return the nearest point inside the ball; parallel edges share the delta of their neighbour evenly."""
        project = PROJECTIONS[self._norm]
        if self._entry is None:
            return project(delta, self._target, self._nodes, self._radius)
        merged = segment_sum(delta, self._entry, len(self._entry_target))
        return project(merged, self._entry_target, self._nodes, self._radius)[self._entry] / self._copies

    def direction(self, slope: Tensor) -> Tensor:
        """Return the gradient, scaled to length one per node; for `linf`, its sign."""
        return _direction(slope, self._target, self._nodes, self._norm)


@ADVERSARIES.register("feature-ball")
@dataclass(frozen=True)
class FeatureBall:
    """Features x + delta with |delta_i| <= radius for each node i, by projected gradient ascent.

    Of sparse features only the stored entries change: an absent word of a document stays absent.

    Args:
        radius: Largest norm of delta, for each node.
        norm: `l1`, `l2` or `linf`.
        steps: Steps of gradient ascent.
        targets: Nodes whose features may change; by default all.
        seed: Seed of the random start.

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
        """Return the reading with the largest gain; see `Adversary`."""
        best, x = Best(read, graph, gain), require(graph, "x")
        values, row = (x.coalesce().values(), x.coalesce().indices()[0]) if x.is_sparse else (x, _row_ids(x))
        free = self._free(row, x.size(0)).view(values.shape)

        def project(delta: Tensor) -> Tensor:
            flat = (delta * free).reshape(-1, 1)
            return PROJECTIONS[self.norm](flat, row, x.size(0), self.radius).view(values.shape)

        generator = torch.Generator().manual_seed(self.seed)
        noise = torch.randn(values.shape, generator=generator, dtype=values.dtype).to(values.device)
        delta = project(0.01 * self.radius * noise)
        with frozen_params(read.model):
            for number in range(self.steps):
                delta.requires_grad_()
                value = gain(Perturbation(x_delta=delta).read(read, graph))
                (slope,) = gradients(value, [delta])
                best.offer(Perturbation(x_delta=delta.detach()), value)
                direction = _direction(slope.reshape(-1, 1), row, x.size(0), self.norm).view(values.shape)
                delta = project(delta.detach() + _step_length(self.radius, number, self.steps) * direction)
        best.evaluate(Perturbation(x_delta=delta))
        return best.reading()

    def _free(self, row: Tensor, nodes: int) -> Tensor:
        """Return a mask of the entries that may change."""
        mask = torch.zeros(nodes, dtype=torch.bool).index_fill_(0, resolve_targets(self.targets, nodes), True)
        return mask.to(row.device)[row]


def _direction(slope: Tensor, index: Tensor, num: int, norm: str) -> Tensor:
    """Return the gradient, scaled to length one per node; for `linf`, its sign."""
    if norm == "linf":
        return slope.sign()
    length = segment_sum(slope.square(), index, num).sqrt()
    return slope / length.clamp(min=max(1e-12, torch.finfo(length.dtype).tiny))[index]


def _step_length(radius: float, number: int, steps: int) -> float:
    """Return the length of a step: large ones first, then small ones."""
    return radius * (1.0 if number < steps // 2 else 0.25)


def _row_ids(x: Tensor) -> Tensor:
    """Return the node of each entry of a dense matrix, flattened."""
    return torch.arange(x.size(0), device=x.device).repeat_interleave(x.size(1))
