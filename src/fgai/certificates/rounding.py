"""How much rounding may change.

For any model, `rounding` tells it as a share of the largest logit. For a model of attention layers, `Slack` tells it
from the sizes of the numbers that are rounded: a number of size s is computed with an error of about eps s. The scores
and values of a layer are sums over its inputs; an error of the inputs adds the norm of the weights times it. An error
of a score is a relative error of a weight. All classes share the weights of a node, so in
logit_c* - logit_c = sum_j w_j y_j it changes a share of y_j. An error of the values does not cancel in y_j, even where
the values themselves do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fgai.certificates.layers import Activation, Layer

LargestForm = Callable[[Tensor], Tensor]  # the largest |form . x| over the rows x of a layer's input; [..., F] -> [...]
SHARES = {torch.float64: 1e-13, torch.float32: 1e-5}  # of a logit, if sums are taken in another order
COARSE = 32  # in other precisions: so many times their resolution
UNITS = 8.0  # of eps in `Slack`: sums of many terms lose more than one


def rounding(*dtypes: torch.dtype, least: float = 0.0) -> float:
    """Return the share of a logit that rounding can change in the coarsest of these precisions, at least `least`.

    >>> rounding(torch.float32), rounding(torch.float32, torch.bfloat16)
    (1e-05, 0.25)
    """
    return max(least, *(SHARES.get(dtype, COARSE * torch.finfo(dtype).eps) for dtype in dtypes))


def precisions(model: nn.Module, x: Tensor) -> set[torch.dtype]:
    """Return the precisions that a model computes in: of its parameters, of the features and of `torch.autocast`."""
    kind = x.device.type
    autocast = {torch.get_autocast_dtype(kind)} if torch.is_autocast_enabled(kind) else set()
    tensors = (x, *model.parameters())
    return {tensor.dtype for tensor in tensors if tensor.is_floating_point()} | autocast


def error_of_sum(number: Tensor, size: Tensor) -> Tensor:
    """Return what rounding may change in float64 sums of `number` terms, whose absolute values add up to `size`.

    >>> bool(0.1 + 0.2 - 0.3 <= error_of_sum(torch.tensor(3), torch.tensor(0.6)))
    True
    """
    return torch.finfo(torch.float64).eps * (UNITS + number) * size


@dataclass(frozen=True)
class Slack:
    """What rounding may change: an amount of each value of the last layer, and a share of each weight."""

    amount: float
    share: float

    @classmethod
    def of(
        cls, first: Layer | None, last: Layer, act: Activation, eps: float, reach: LargestForm, largest: float
    ) -> Slack:
        """Return the slack of one or two layers.

        Args:
            first: The first of two layers.
            last: The last layer.
            act: The activation between them.
            eps: The precision of the model.
            reach: Bounds linear forms of the features.
            largest: The largest size of a feature.
        """
        error = last.value.new_tensor([largest])
        if first is not None:
            score, value = _sizes(first, reach, error)
            error = ((1 + score[:, None]) * value).flatten()
            most = torch.maximum(value, act(value)).flatten()
            reach = lambda form: form.abs() @ most  # noqa: E731
        score, value = _sizes(last, reach, error)
        return cls(UNITS * eps * float(value.max()), UNITS * eps * (1 + float(score.max())))

    def below(self, y: Tensor) -> Tensor:
        """Return y, differences of values, less what rounding may change.

        >>> Slack(0.5, 0.25).below(torch.tensor([4.0, -4.0]))
        tensor([ 2.5000, -5.5000])
        """
        return y - self.amount - self.share * y.abs()


def _sizes(layer: Layer, reach: LargestForm, error: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sizes of the scores, [H], and of the values, [H, C], if the inputs have these errors in eps."""

    def size(form: Tensor) -> Tensor:
        return reach(form) + (form * error).norm(dim=-1)

    score = size(layer.source) + size(layer.target)
    if layer.att is not None:
        score = ((score + layer.inner.abs()) * layer.att.abs()).sum(1)
    return score, size(layer.value) + layer.shift.abs()
