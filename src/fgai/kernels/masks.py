"""Dropout whose masks cost a quarter: sixteen random bits an entry."""

from __future__ import annotations

import torch
from torch import Tensor

LEVELS = 1 << 16


def thinned(x: Tensor, p: float, training: bool = True) -> Tensor:
    """Dropout: each entry is kept with probability q, the multiple of 2^-16 nearest to 1 - p, and divided by it.

    >>> torch.manual_seed(0) and thinned(torch.ones(100_000), 0.6).mean().round(decimals=1)
    tensor(1.)
    """
    if training and p >= 1:
        return torch.zeros_like(x)
    kept = max(round((1 - p) * LEVELS), 1)
    if not training or kept >= LEVELS:
        return x
    words = torch.empty(-(-x.numel() // 4), dtype=torch.long, device=x.device).random_(-(2**63), None)
    mask = words.view(torch.int16)[: x.numel()] < kept - LEVELS // 2
    return x * mask.view(x.shape).to(x.dtype).mul_(LEVELS / kept)
