"""Rounding: how much logits differ if sums are taken in another order, as a share of the largest logit."""

from __future__ import annotations

import torch
from torch import Tensor, nn

ROUNDING = {torch.float64: 1e-13, torch.float32: 1e-5}
UNITS = 32  # in other precisions: so many times their resolution


def rounding(*dtypes: torch.dtype, least: float = 0.0) -> float:
    """Return the share of a logit that rounding can change in the coarsest of these precisions, at least `least`.

    >>> rounding(torch.float32), rounding(torch.float32, torch.bfloat16)
    (1e-05, 0.25)
    """
    return max(least, *(ROUNDING.get(dtype, UNITS * torch.finfo(dtype).eps) for dtype in dtypes))


def precisions(model: nn.Module, x: Tensor) -> set[torch.dtype]:
    """Return the precisions that a model computes in: of its parameters, of the features and of `torch.autocast`."""
    kind = x.device.type
    autocast = {torch.get_autocast_dtype(kind)} if torch.is_autocast_enabled(kind) else set()
    tensors = (x, *model.parameters())
    return {tensor.dtype for tensor in tensors if tensor.is_floating_point()} | autocast
