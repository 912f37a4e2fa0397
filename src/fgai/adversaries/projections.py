"""Projections of rows onto the feature sets of injected nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

BISECTIONS = 60  # more than the bits of a float64


def onto_binary(x: Tensor, ones: int) -> Tensor:
    """Return the nearest rows of `ones` ones: the largest entries, of equal ones the first; [M, F] -> [M, F].

    >>> onto_binary(torch.tensor([[0.2, 0.9, 0.4]]), 2)
    tensor([[0., 1., 1.]])
    """
    at = x.sort(dim=1, descending=True, stable=True).indices[:, :ones]
    return torch.zeros_like(x).scatter_(1, at, 1.0)


def onto_capped_simplex(x: Tensor, total: float) -> Tensor:
    """Return the nearest rows with 0 <= x <= 1 and sum x = total: clamp(x - t, 0, 1), with one t per row.

    >>> onto_capped_simplex(torch.tensor([[3.0, 0.5, 0.5]]), 2.0)
    tensor([[1.0000, 0.5000, 0.5000]])
    """
    if total == 1:  # the cap does not matter
        ranked, places = x.sort(dim=1, descending=True).values, torch.arange(1, x.size(1) + 1, device=x.device)
        shifts = (ranked.cumsum(1) - 1) / places
        return (x - shifts.gather(1, (ranked > shifts).sum(1, keepdim=True) - 1)).clamp(0, 1)
    return onto_sum(x, x.new_zeros(()), x.new_ones(()), total)


def onto_sum(x: Tensor, low: Tensor, high: Tensor, total: float) -> Tensor:
    """Return the nearest rows with low <= x <= high and sum x = total: clamp(x - t), with one t per row.

    >>> onto_sum(torch.tensor([[3.0, 0.5]]), torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 1.0]), 0.5)
    tensor([[ 1.0000, -0.5000]])
    """

    def shifted(t: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(x - t, low), high)

    below, above = (x - high).amin(1, keepdim=True), (x - low).amax(1, keepdim=True)
    return shifted(bisect(lambda t: shifted(t).sum(1, keepdim=True) > total, below, above))


def onto_box_and_ball(x: Tensor, low: Tensor, high: Tensor, radius: float, norm: Literal["l1", "l2"]) -> Tensor:
    """Return the nearest rows with low <= x <= high and |x| <= radius. The box must intersect the ball.

    With a multiplier t of the norm the entries are independent: clamp(sign(x) (|x| - t)+) for l1, clamp(x / (1 + t))
    for l2. The norm decreases in t, so bisection finds t.

    >>> onto_box_and_ball(torch.tensor([[3.0, 4.0]]), torch.zeros(2), torch.tensor([9.0, 9.0]), 1.0, "l2")
    tensor([[0.6000, 0.8000]])
    """

    def shrink(t: Tensor) -> Tensor:
        point = x.sign() * (x.abs() - t).clamp(min=0) if norm == "l1" else x * (1 - t)
        return torch.minimum(torch.maximum(point, low), high)

    order = 1 if norm == "l1" else 2
    most = x.abs().amax(1, keepdim=True) if norm == "l1" else torch.ones_like(x[:, :1])  # 1 - t is 1 / (1 + multiplier)
    outside = shrink(torch.zeros_like(most)).norm(order, 1, keepdim=True) > radius
    amount = bisect(lambda t: shrink(t).norm(order, 1, keepdim=True) > radius, torch.zeros_like(most), most)
    return torch.where(outside, shrink(amount), shrink(torch.zeros_like(most)))


def bisect(too_large: Callable[[Tensor], Tensor], below: Tensor, above: Tensor) -> Tensor:
    """Return the least t per row that is not `too_large`, to the precision of the dtype, approached from above."""
    for _ in range(BISECTIONS):
        middle = (below + above) / 2
        large = too_large(middle)
        below, above = torch.where(large, middle, below), torch.where(large, above, middle)
    return above
