"""The features that an injected node may have: a box, or a set whose rows look like those of the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.errors import SettingError
from fgai.graph import require, segment_sum
from fgai.registry import Registry

Ends = tuple[float, float] | None


@dataclass(frozen=True)
class Box:
    """Features each between its own `low` and `high`.

    An attack moves a state x by `ascend`; the features that it stands for are `rows(x)`. Here they are the same.
    """

    low: Tensor  # [F]
    high: Tensor  # [F]

    @property
    def half(self) -> Tensor:
        """Half the width, per feature: the unit of a step."""
        return (self.high - self.low) / 2

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest point inside."""
        return torch.minimum(torch.maximum(x, self.low), self.high)

    def rows(self, x: Tensor) -> Tensor:
        """The features that the state x stands for; [M, F] -> [M, F]."""
        return x

    def ascend(self, x: Tensor, slope: Tensor, step: float) -> Tensor:
        """The state after one step up the gain: x + step * half-width * sign(slope), back inside."""
        return self.clamp(x + step * self.half * slope.sign())


@dataclass(frozen=True)
class Ball(Box):
    """A box cut by a ball around zero: the range and the norm that real rows have."""

    radius: float
    norm: Literal["l1", "l2"] = "l2"

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest point inside."""
        return onto_box_and_ball(x, self.low, self.high, self.radius, self.norm)


@dataclass(frozen=True)
class Binary(Box):
    """Rows of exactly `ones` ones, else zeros; the state is a score per feature, of which the largest are ones.

    The gradient is taken at the binary row and moves the state, in [0, 1] with the sum `ones`.
    """

    ones: int

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest point of {0 <= x <= 1, sum x = ones}."""
        return onto_capped_simplex(x, self.ones)

    def rows(self, x: Tensor) -> Tensor:
        """The nearest binary rows; gradients pass as if they were x itself."""
        return x + (onto_binary(x, self.ones) - x).detach() if x.requires_grad else onto_binary(x, self.ones)

    def ascend(self, x: Tensor, slope: Tensor, step: float) -> Tensor:
        """The state after one step, in which the steepest feature of each row moves by `step`."""
        return self.clamp(x + step * slope / slope.abs().amax(1, keepdim=True).clamp(min=1e-30))


FeatureSet = Callable[[Data, Ends], Box]
FEATURES: Registry[FeatureSet] = Registry("feature set")


@FEATURES.register("box")
def box(graph: Data, ends: Ends) -> Box:
    """All features between two ends, or each in the range that the data has."""
    x = require(graph, "x")
    if ends is None:
        return Box(*_range(x))
    dtype = x.dtype if x.is_floating_point() else torch.float
    return Box(*(torch.full((x.size(1),), end, dtype=dtype, device=x.device) for end in ends))


@FEATURES.register("binary")
def binary(graph: Data, ends: Ends = None) -> Binary:
    """Rows of zeros and ones, with as many ones as the median row of the data, which must be binary.

    >>> binary(Data(x=torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]))).ones
    2
    """
    x = require(graph, "x")
    if not _is_binary(x):
        raise SettingError(
            "the features of this graph are not zeros and ones; take the feature set l1, l2 or realistic"
        )
    values, row = _entries(x)
    counts = segment_sum((values != 0).long(), row, x.size(0))
    return Binary(*_range(x), ones=max(int(counts.median()), 1))


@FEATURES.register("l1")
def l1(graph: Data, ends: Ends = None) -> Ball:
    """Rows in the range of each feature, with an l1 norm no larger than any row of the data."""
    return _ball(require(graph, "x"), "l1")


@FEATURES.register("l2")
def l2(graph: Data, ends: Ends = None) -> Ball:
    """Rows in the range of each feature, with an l2 norm no larger than any row of the data."""
    return _ball(require(graph, "x"), "l2")


@FEATURES.register("realistic")
def realistic(graph: Data, ends: Ends = None) -> Box:
    """Rows like those of the data: binary if they are, else inside the observed range and l2 norm."""
    return binary(graph) if _is_binary(require(graph, "x")) else l2(graph)


def onto_binary(x: Tensor, ones: int) -> Tensor:
    """The nearest rows of `ones` ones: those of the largest entries, ties to the first; [M, F] -> [M, F].

    >>> onto_binary(torch.tensor([[0.2, 0.9, 0.4]]), 2)
    tensor([[0., 1., 1.]])
    """
    at = x.sort(dim=1, descending=True, stable=True).indices[:, :ones]
    return torch.zeros_like(x).scatter_(1, at, 1.0)


def onto_capped_simplex(x: Tensor, total: float) -> Tensor:
    """The nearest rows with 0 <= x <= 1 and sum x = total: clamp(x - t, 0, 1) for the one t per row that fits.

    >>> onto_capped_simplex(torch.tensor([[3.0, 0.5, 0.5]]), 2.0)
    tensor([[1.0000, 0.5000, 0.5000]])
    """
    below, above = x.amin(1, keepdim=True) - 1, x.amax(1, keepdim=True)
    amount = _bisect(lambda t: (x - t).clamp(0, 1).sum(1, keepdim=True) > total, below, above)
    return (x - amount).clamp(0, 1)


def onto_box_and_ball(x: Tensor, low: Tensor, high: Tensor, radius: float, norm: Literal["l1", "l2"]) -> Tensor:
    """The nearest rows with low <= x <= high and |x| <= radius, where the box has a point in the ball.

    With a multiplier t of the norm every entry is by itself: clamp(sign(x) (|x| - t)+) for l1, clamp(x / (1 + t)) for
    l2. The norm falls as t grows; t is found by bisection.

    >>> onto_box_and_ball(torch.tensor([[3.0, 4.0]]), torch.zeros(2), torch.tensor([9.0, 9.0]), 1.0, "l2")
    tensor([[0.6000, 0.8000]])
    """

    def shrunk(t: Tensor) -> Tensor:
        point = x.sign() * (x.abs() - t).clamp(min=0) if norm == "l1" else x * (1 - t)
        return torch.minimum(torch.maximum(point, low), high)

    order = 1 if norm == "l1" else 2
    most = x.abs().amax(1, keepdim=True) if norm == "l1" else torch.ones_like(x[:, :1])  # 1 - t is 1 / (1 + multiplier)
    outside = shrunk(torch.zeros_like(most)).norm(order, 1, keepdim=True) > radius
    amount = _bisect(lambda t: shrunk(t).norm(order, 1, keepdim=True) > radius, torch.zeros_like(most), most)
    return torch.where(outside, shrunk(amount), shrunk(torch.zeros_like(most)))


def _bisect(larger: Callable[[Tensor], Tensor], below: Tensor, above: Tensor) -> Tensor:
    """The least t, per row, that is not `larger` any more, from above; as exact as the numbers are."""
    for _ in range(60):
        middle = (below + above) / 2
        far = larger(middle)
        below, above = torch.where(far, middle, below), torch.where(far, above, middle)
    return above


def _ball(x: Tensor, norm: Literal["l1", "l2"]) -> Ball:
    values, row = _entries(x)
    sums = segment_sum(values.abs() if norm == "l1" else values.square(), row, x.size(0))
    return Ball(*_range(x), radius=float(sums.max() if norm == "l1" else sums.max().sqrt()), norm=norm)


def _is_binary(x: Tensor) -> bool:
    values = _entries(x)[0]
    return bool(((values == 0) | (values == 1)).all())


def _entries(x: Tensor) -> tuple[Tensor, Tensor]:
    """The entries that can differ from zero, and the row of each."""
    if x.is_sparse:
        x = x.coalesce()
        return x.values(), x.indices()[0]
    return x.flatten(), torch.arange(x.size(0), device=x.device).repeat_interleave(x.size(1))


def _range(x: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest value of each feature; [F], [F]."""
    x = x.to_dense() if x.is_sparse else x
    return x.min(0).values, x.max(0).values
