"""The explanation's certificate: exact, in closed form, from one sort of each node's weights.

With w sorted descending, let a be the m smallest of the top k and b the m largest of the rest. The least |rho| that
puts b in the place of a, and no other exchange of m members is cheaper, is

    l1    sum(a) - sum(b)
    linf  (max a - min b) / 2
    l2    min_t sqrt(sum (a - t)+^2 + sum (t - b)+^2)

At exactly that size the weights tie, beyond it they have changed places. The costs grow with m, so those within a
radius count how many members can be lost. As in V_k, a neighbour is one entry: parallel edges add up first.
All is float64: on a device that has none, the results are on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fgai.attention import Attention
from fgai.checks import check_finite
from fgai.errors import SettingError
from fgai.graph import degree, locate, segment_sum
from fgai.settings import check_numbers
from fgai.topk import effective_k, rank_within

Norm = Literal["l1", "l2", "linf"]


@dataclass(frozen=True)
class Costs:
    """The least size of a perturbation that evicts m members of a node's top k, for every node and possible m."""

    node: Tensor  # [M]
    members: Tensor  # [M], m = 1, 2, ... for each node in turn
    cost: Tensor  # [M]
    effective_k: Tensor  # [N], how many members the top k has


@dataclass(frozen=True)
class _Sorted:
    """Each node's weights, one for each neighbour, falling, node after node."""

    once: Attention  # heads averaged, parallel edges added up
    weight: Tensor  # [E]
    start: Tensor  # [N]
    size: Tensor  # [N]
    effective_k: Tensor  # [N]


def eviction_costs(attention: Attention, k: int | float = 10, norm: Norm = "l1") -> Costs:
    """What it costs to evict members of each node's top k; heads are averaged.

    >>> a = Attention(torch.tensor([[0.5], [0.3], [0.2]]), torch.tensor([[0, 1, 2], [3, 3, 3]]), num_targets=4)
    >>> eviction_costs(a, k=1).cost  # 0.5 and 0.3 change places
    tensor([0.2000], dtype=torch.float64)
    """
    if norm not in ("l1", "l2", "linf"):
        raise SettingError(f"norm is {norm!r}; there is l1, l2 and linf")
    rows = _sorted(attention, k)
    possible = torch.minimum(rows.effective_k, rows.size - rows.effective_k)
    node = torch.arange(len(possible), device=possible.device).repeat_interleave(possible)
    members = torch.arange(len(node), device=node.device) - (possible.cumsum(0) - possible)[node] + 1
    edge = rows.start[node] + rows.effective_k[node]  # the first place outside the top k
    return Costs(node, members, _COST[norm](rows.weight, edge, members), rows.effective_k)


def guaranteed_overlap(attention: Attention, k: int | float = 10, radius: float = 0.05, norm: Norm = "l1") -> Tensor:
    """Min V_k(w, w + rho) over |rho| <= radius, per node; NaN without neighbours. [N].

    Where a cost equals the radius to the last digit the members count as lost.

    >>> a = Attention(torch.tensor([[0.5], [0.3], [0.2]]), torch.tensor([[0, 1, 2], [3, 3, 3]]), num_targets=4)
    >>> guaranteed_overlap(a, k=1, radius=0.1)[3], guaranteed_overlap(a, k=1, radius=0.3)[3]
    (tensor(1., dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    check_numbers(0, radius=radius)
    costs = eviction_costs(attention, k, norm)
    lost = segment_sum((costs.cost <= radius).double(), costs.node, len(costs.effective_k)) if radius > 0 else 0.0
    return (costs.effective_k - lost) / costs.effective_k.double()


def certified_radius(attention: Attention, k: int | float = 10, overlap: float = 1.0, norm: Norm = "l1") -> Tensor:
    """The largest radius inside which V_k >= overlap, per node; inf where nothing can be evicted. [N].

    >>> a = Attention(torch.tensor([[0.5], [0.3], [0.2]]), torch.tensor([[0, 1, 2], [3, 3, 3]]), num_targets=4)
    >>> certified_radius(a, k=1)[3]
    tensor(0.2000, dtype=torch.float64)
    """
    if not 0.0 <= overlap <= 1.0:
        raise SettingError(f"overlap is {overlap}; it is a share, from 0 to 1")
    costs = eviction_costs(attention, k, norm)
    allowed = ((1.0 - overlap) * costs.effective_k.double() + 1e-9).floor().long()
    first = costs.members == allowed[costs.node] + 1
    radius = torch.full((len(costs.effective_k),), math.inf, dtype=torch.double, device=costs.effective_k.device)
    return radius.index_put((costs.node[first],), costs.cost[first])


def certified_share(radius: Tensor, size: float) -> float:
    """The share of nodes that a push of this size cannot reach, among those that can lose a member at all; [N] -> 0..1.

    >>> certified_share(torch.tensor([0.1, 0.3, math.inf]), 0.2)
    0.5
    """
    check_numbers(0, size=size)
    contested = radius[radius.isfinite()]
    return float((contested > size).cpu().double().mean()) if len(contested) else 1.0


def worst_push(attention: Attention, k: int | float = 10, radius: float = 0.05, norm: Norm = "l1") -> Tensor:
    """A perturbation inside the radius that evicts all that can be evicted: the certificate is tight. [E].

    It moves a down and b up to the level where they meet, and what is left of the radius beyond it. Heads are averaged.
    Of parallel edges the first takes the whole push of their neighbour: sizes are those of one entry per neighbour.
    """
    check_numbers(0, radius=radius)
    costs, rows = eviction_costs(attention, k, norm), _sorted(attention, k)
    once = rows.once
    weight, target = once.weight[:, 0], once.target
    inside = costs.cost < radius  # strictly: weights that only tie need not change places
    lost = segment_sum(inside.long(), costs.node, len(rows.effective_k))
    nothing = torch.zeros(len(lost), dtype=torch.double, device=lost.device)
    price = nothing.scatter_reduce(0, costs.node[inside], costs.cost[inside], "amax")
    edge, some = rows.start + rows.effective_k, lost > 0
    level = torch.zeros_like(price)
    level[some] = _level(rows.weight, edge[some], lost[some], norm)
    entries = (2 * lost).double().clamp(min=1)  # that move
    beyond = (radius - price) / (entries if norm == "l1" else entries.sqrt())
    place = rank_within(weight, target, once.num_targets)
    first = (place < rows.effective_k[target]) & (place >= (rows.effective_k - lost)[target])
    then = (place >= rows.effective_k[target]) & (place < (rows.effective_k + lost)[target])
    gap = level[target] - weight
    if norm == "linf":  # every entry may move by the whole radius
        push = radius * (then.double() - first.double())
    else:
        down, up = gap.clamp(max=0) - beyond[target], gap.clamp(min=0) + beyond[target]
        push = torch.where(first, down, 0.0) + torch.where(then, up, 0.0)
    edges = attention.edge_index.to(push.device)
    return push.new_zeros(edges.size(1)).index_put((locate(once.edge_index, edges),), push)


def _sorted(attention: Attention, k: int | float) -> _Sorted:
    once = attention.mean_heads().coalesce().double()
    weight, target = once.weight[:, 0], once.target
    check_finite("attention", weight)
    size = degree(target, once.num_targets)
    start = size.cumsum(0) - size
    falling = torch.empty_like(weight).scatter_(
        0, start[target] + rank_within(weight, target, once.num_targets), weight
    )
    return _Sorted(once, falling, start, size, effective_k(k, size))


def _l1(weight: Tensor, edge: Tensor, members: Tensor) -> Tensor:
    return _over_members(members, lambda at, i: weight[edge[at] - i] - weight[edge[at] + i - 1])


def _linf(weight: Tensor, edge: Tensor, members: Tensor) -> Tensor:
    return (weight[edge - members] - weight[edge + members - 1]) / 2


def _l2(weight: Tensor, edge: Tensor, members: Tensor) -> Tensor:
    level = _level(weight, edge, members, "l2")

    def moved(at: Tensor, i: int) -> Tensor:
        down = (weight[edge[at] - i] - level[at]).clamp(min=0)
        up = (level[at] - weight[edge[at] + i - 1]).clamp(min=0)
        return down.square() + up.square()

    return _over_members(members, moved).sqrt()


def _over_members(members: Tensor, term: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Sum over i = 1 .. m of term(i), entry by entry: differences of running totals would lose the small costs."""
    most_first = members.argsort(descending=True)
    how_many = len(members) - degree(members, int(members.max()) + 1 if len(members) else 1).cumsum(0)
    total = torch.zeros(len(members), dtype=torch.double, device=members.device)
    for i, count in enumerate(how_many.tolist()[:-1], start=1):
        at = most_first[:count]
        total[at] += term(at, i)
    return total


def _level(weight: Tensor, edge: Tensor, members: Tensor, norm: Norm) -> Tensor:
    """Where a and b meet at the least cost: for l2 the mean of the entries that move, found by Newton's steps."""
    if norm != "l2":
        return (weight[edge - 1] + weight[edge]) / 2
    total = _cumulated(weight)
    level = (total[edge + members] - total[edge - members]) / (2 * members)
    for _ in range(64):
        high, low = _above(weight, edge - members, edge, level), _above(weight, edge, edge + members, level)
        moving = high - (edge - members) + (edge + members) - low
        better = (total[high] - total[edge - members] + total[edge + members] - total[low]) / moving.clamp(min=1)
        better = torch.where(moving > 0, better, level)
        if torch.equal(better, level):
            break
        level = better
    return level


def _above(weight: Tensor, start: Tensor, stop: Tensor, level: Tensor) -> Tensor:
    """The first place in start..stop, where weights fall, that is not above the level; by bisection."""
    low, high = start.clone(), stop.clone()
    for _ in range(int((stop - start).max().item()).bit_length() if len(start) else 0):
        middle = (low + high) // 2
        above = (low < high) & (weight[middle.clamp(max=max(len(weight) - 1, 0))] > level)
        low, high = torch.where(above, middle + 1, low), torch.where(above, high, middle)
        high = torch.maximum(low, high)
    return low


def _cumulated(value: Tensor) -> Tensor:
    return torch.cat([value.new_zeros(1), value.cumsum(0)])


_COST = {"l1": _l1, "l2": _l2, "linf": _linf}
