"""Projections onto norm balls, for one vector per node: entries [E, H] with the node of each entry [E]."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fgai.devices import to_double
from fgai.graph import degree, segment_sum
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
