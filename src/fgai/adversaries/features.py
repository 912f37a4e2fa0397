"""Feature sets of injected nodes: a box, or sets whose rows resemble the rows of the data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch_geometric.data import Data

from fgai.adversaries.projections import bisect, onto_binary, onto_box_and_ball, onto_capped_simplex, onto_sum
from fgai.errors import SettingError
from fgai.graph import require, segment_sum
from fgai.registry import Registry

Ends = tuple[float, float] | None
DOUBLINGS = 10  # of the length of a similar row
SPARE = 1.25  # the similarity that a longer row must have, as a multiple of the least


@dataclass(frozen=True)
class FeatureBox:
    """The range of the features of an injected node: from `low` to `high`, per feature.

    An attack moves a state x by `ascend`; the features of the injected nodes are `rows(x)`, for a box x itself.
    """

    smooth: ClassVar[bool] = True  # whether the rows change a little when the state does, as Adam needs
    low: Tensor  # [F]
    high: Tensor  # [F]

    @property
    def half(self) -> Tensor:
        """Half the width of each feature: the unit of a step; [F]."""
        return (self.high - self.low) / 2

    def clamp(self, x: Tensor) -> Tensor:
        """Return the nearest point inside."""
        return torch.minimum(torch.maximum(x, self.low), self.high)

    def rows(self, x: Tensor) -> Tensor:
        """Return the features of the state x; [M, F] -> [M, F]."""
        return x

    def ascend(self, x: Tensor, slope: Tensor, step: float) -> Tensor:
        """Return the state after one step of ascent: clamp(x + step * half-width * sign(slope))."""
        return self.move(x, self.tangent(slope).sign(), step)

    def move(self, x: Tensor, direction: Tensor, step: float) -> Tensor:
        """Return the nearest state to x + step * half-width * direction."""
        return self.clamp(x + step * self.half * direction)

    def tangent(self, slope: Tensor) -> Tensor:
        """Return the part of a slope that moves inside the set, for a box all of it."""
        return slope

    def linked(self, graph: Data, pairs: Tensor) -> FeatureBox:
        """Return the set for these links, injected nodes above the nodes that they are linked to, [2, L]."""
        return self


@dataclass(frozen=True)
class NormBox(FeatureBox):
    """The intersection of a box and a ball around zero: the range and the norm of the rows of the data."""

    radius: float
    norm: Literal["l1", "l2"] = "l2"

    def clamp(self, x: Tensor) -> Tensor:
        """Return the nearest point inside."""
        return onto_box_and_ball(x, self.low, self.high, self.radius, self.norm)


@dataclass(frozen=True)
class UnitSumBox(FeatureBox):
    """The rows of a box with the sum 1. A model that divides each row by its sum leaves them unchanged."""

    def clamp(self, x: Tensor) -> Tensor:
        """Return the nearest point of {low <= x <= high, sum x = 1}."""
        return onto_sum(x, self.low, self.high, 1.0)

    def tangent(self, slope: Tensor) -> Tensor:
        """Return the slope inside the plane of equal sums: without its mean."""
        return slope - slope.mean(1, keepdim=True)


@dataclass(frozen=True)
class BinaryRows(FeatureBox):
    """Rows of exactly `ones` ones and zeros elsewhere. The state is a score per feature; the largest become ones.

    The gradient is computed at the binary row. It moves the state, which lies in [0, 1] and has the sum `ones`.
    """

    smooth: ClassVar[bool] = False
    ones: int

    def clamp(self, x: Tensor) -> Tensor:
        """Return the nearest point of {0 <= x <= 1, sum x = ones}."""
        return onto_capped_simplex(x, self.ones)

    def rows(self, x: Tensor) -> Tensor:
        """Return the nearest binary rows. Their gradient passes to x unchanged (straight-through)."""
        return x + (onto_binary(x, self.ones) - x).detach() if x.requires_grad else onto_binary(x, self.ones)

    def ascend(self, x: Tensor, slope: Tensor, step: float) -> Tensor:
        """Return the state after one step; the feature with the steepest slope of each row moves by `step`."""
        return self.clamp(x + step * slope / slope.abs().amax(1, keepdim=True).clamp(min=1e-30))


@dataclass(frozen=True)
class SimilarBox(FeatureBox):
    """A box for rows with a cosine similarity of at least `least` to the nodes that they will be linked to."""

    least: float

    def linked(self, graph: Data, pairs: Tensor) -> SimilarRows:
        """Return the set for these links, injected nodes above the nodes that they are linked to, [2, L]."""
        x, nodes = require(graph, "x"), int(graph.num_nodes or 0)
        count = int(pairs.max()) + 1 - nodes
        row, node = (pairs[:, pairs[1] < nodes] - torch.tensor([[nodes], [0]])).to(x.device)
        linked = x.index_select(0, node)
        linked = (linked.to_dense() if linked.is_sparse else linked)[:, : len(self.low)].to(self.low)
        unit = normalize(linked, dim=1)
        inside = self._inside(normalize(segment_sum(unit, row, count), dim=1), unit, row)
        counts = _cosine(inside, unit, row) > self.least
        return SimilarRows(self.low, self.high, self.least, inside, unit[counts], row[counts])

    def _inside(self, mean: Tensor, unit: Tensor, row: Tensor) -> Tensor:
        """Return clamp(c * mean) for the largest c that keeps the similarities `SPARE` times as large as needed.

        c is a power of two times the c at which c * mean leaves the box. A long row leaves room for large features:
        its similarity to a node that shares its signs falls slowly with c, and its length grows.
        """
        room = torch.where(mean == 0, math.inf, torch.where(mean < 0, self.low, self.high) / mean)
        scale = room.amin(1, keepdim=True).clamp(0, 1)
        inside = self.clamp(scale * mean)
        counts = _cosine(inside, unit, row) > self.least
        for _ in range(DOUBLINGS):
            scale = 2 * scale
            longer = self.clamp(scale * mean)
            lost = counts & (_cosine(longer, unit, row) < SPARE * self.least)
            inside = torch.where(segment_sum(lost.to(mean), row, len(mean)).unsqueeze(1) == 0, longer, inside)
        return inside


def _cosine(x: Tensor, unit: Tensor, row: Tensor) -> Tensor:
    """Return the cosine similarity of each linked node, of length 1, to its injected node; [L]."""
    return (unit * normalize(x, dim=1)[row]).sum(1)


@dataclass(frozen=True)
class SimilarRows(FeatureBox):
    """Rows of a box whose cosine similarity to the nodes that they are linked to is at least `least`.

    For one node the set is the intersection of a box and convex cones, so a segment from a point inside leaves it once.
    That point is along the mean direction of the linked nodes. A link whose similarity to it is too small is not
    counted: a defence removes it.

    Args:
        least: Least cosine similarity.
        inside: The mean direction of the nodes linked to each injected node, longer and cut to the box; [M, F].
        unit: The features of the linked nodes that count, of length 1; [L, F].
        row: The injected node of each of them; [L].
    """

    least: float
    inside: Tensor
    unit: Tensor
    row: Tensor

    def clamp(self, x: Tensor) -> Tensor:
        """Return the point of the box nearest to x, moved towards `inside` until it is in the set."""
        row, way = self.row, super().clamp(x) - self.inside
        start, slope = ((self.unit * part[row]).sum(1) for part in (self.inside, way))
        norms = [(a * b).sum(1, keepdim=True) for a, b in ((self.inside, self.inside), (self.inside, way), (way, way))]

        def too_far(share: Tensor) -> Tensor:
            size = (norms[0] + 2 * share * norms[1] + share.square() * norms[2]).clamp(min=0).sqrt()
            short = start + share[row, 0] * slope < self.least * size[row, 0]
            return torch.zeros_like(size).index_add_(0, row, short.unsqueeze(1).to(size)) > 0

        zero, one = torch.zeros_like(norms[0]), torch.ones_like(norms[0])
        rest = torch.where(too_far(one), bisect(lambda rest: too_far(1 - rest), zero, one), zero)
        return self.inside + (1 - rest) * way


FeatureSet = Callable[[Data, Ends], FeatureBox]
FEATURES: Registry[FeatureSet] = Registry("feature set")


@FEATURES.register("box")
def box(graph: Data, ends: Ends) -> FeatureBox:
    """All features between two ends; without ends, each feature in the range of the data.

    >>> box(Data(x=torch.zeros(1, 2)), (-1.0, 1.0)).high
    tensor([1., 1.])
    """
    x = require(graph, "x")
    if ends is None:
        return FeatureBox(*_range(x))
    dtype = x.dtype if x.is_floating_point() else torch.float
    return FeatureBox(*(torch.full((x.size(1),), end, dtype=dtype, device=x.device) for end in ends))


@FEATURES.register("binary")
def binary(graph: Data, ends: Ends = None) -> BinaryRows:
    """Rows of zeros and ones, with as many ones as the median row of the data, which must be binary.

    >>> binary(Data(x=torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]))).ones
    2
    """
    x = require(graph, "x")
    if not _is_binary(x):
        raise SettingError("the features of this graph are not zeros and ones; use the feature set l1, l2 or realistic")
    values, row = _entries(x)
    counts = segment_sum((values != 0).long(), row, x.size(0))
    return BinaryRows(*_range(x), ones=max(int(counts.median()), 1))


@FEATURES.register("l1")
def l1(graph: Data, ends: Ends = None) -> NormBox:
    """Rows in the range of each feature, with an l1 norm no larger than the largest in the data.

    >>> l1(Data(x=torch.tensor([[3.0, -4.0], [1.0, 0.0]]))).radius
    7.0
    """
    return _norm_box(require(graph, "x"), "l1")


@FEATURES.register("l2")
def l2(graph: Data, ends: Ends = None) -> NormBox:
    """Rows in the range of each feature, with an l2 norm no larger than the largest in the data.

    >>> l2(Data(x=torch.tensor([[3.0, -4.0], [1.0, 0.0]]))).radius
    5.0
    """
    return _norm_box(require(graph, "x"), "l2")


@FEATURES.register("realistic")
def realistic(graph: Data, ends: Ends = None) -> FeatureBox:
    """Rows that resemble the data: `binary` if the data is binary, else `l2`.

    >>> type(realistic(Data(x=torch.eye(2)))).__name__
    'BinaryRows'
    """
    return binary(graph) if _is_binary(require(graph, "x")) else l2(graph)


@FEATURES.register("unit-sum")
def unit_sum(graph: Data, ends: Ends) -> UnitSumBox:
    """Rows of a box with the sum 1, for an attack on a model that divides each row by its sum.

    >>> unit_sum(Data(x=torch.zeros(1, 3)), (-1.0, 1.0)).clamp(torch.tensor([[1.0, 1.0, 0.5]]))
    tensor([[0.5000, 0.5000, 0.0000]])
    """
    inside = box(graph, ends)
    if not inside.low.sum() <= 1 <= inside.high.sum():
        raise SettingError("no row of this box has the sum 1; use the feature set box")
    return UnitSumBox(inside.low, inside.high)


SIMILARITY = 0.1  # the threshold of GNNGuard


@FEATURES.register("similar")
def similar(graph: Data, ends: Ends) -> SimilarBox:
    """Rows of a box with a cosine similarity of more than 0.1 to the nodes that they are linked to, as far as possible.

    An attack on a defence that removes links between dissimilar nodes needs such rows.

    >>> similar(Data(x=torch.eye(2)), (-1.0, 1.0)).least > 0.1
    True
    """
    inside = box(graph, ends)
    return SimilarBox(inside.low, inside.high, least=SIMILARITY + 1e-4)  # more than rounding can change


def _norm_box(x: Tensor, norm: Literal["l1", "l2"]) -> NormBox:
    """Return the range of each feature, bounded by the largest norm of a row."""
    values, row = _entries(x)
    sums = segment_sum(values.abs() if norm == "l1" else values.square(), row, x.size(0))
    return NormBox(*_range(x), radius=float(sums.max() if norm == "l1" else sums.max().sqrt()), norm=norm)


def _is_binary(x: Tensor) -> bool:
    """Return whether all features are 0 or 1."""
    values = _entries(x)[0]
    return bool(((values == 0) | (values == 1)).all())


def _entries(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the stored entries, as floats, and the row of each."""
    x = x if x.is_floating_point() else x.float()
    if x.is_sparse:
        x = x.coalesce()
        return x.values(), x.indices()[0]
    return x.flatten(), torch.arange(x.size(0), device=x.device).repeat_interleave(x.size(1))


def _range(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least and the largest value of each feature, as floats; [F], [F]."""
    x = x.to_dense() if x.is_sparse else x
    x = x if x.is_floating_point() else x.float()
    return x.min(0).values, x.max(0).values
