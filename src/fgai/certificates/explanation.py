"""Certificate of the explanation: exact, in closed form, from one sort of the weights of each node.

With w sorted descending, let a be the m smallest of the top k and b the m largest of the rest. The least |rho| that
puts b in the place of a is given below. No other exchange of m members is cheaper.

    l1    sum(a) - sum(b)
    linf  (max a - min b) / 2
    l2    min_t sqrt(sum (a - t)+^2 + sum (t - b)+^2)

At exactly that size the weights tie; beyond it they have changed places. The costs increase with m, so the number of
costs within a radius is the number of members that can be lost. On the simplex (w + rho >= 0 with sum 1) the cost of
one member is exact, and that of more is a lower bound. As in V_k, a neighbour is one entry: parallel edges are summed
first. All results are float64, on the CPU if the device has no float64.
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
# Default k of certificates: the published certificates (`results/`, docs/certificates.md) are for the top 10. Audits
# compare a smaller top k, see `fgai.metrics.explanation.TOP`.
CERTIFIED_TOP = 10


@dataclass(frozen=True)
class Costs:
    """The least size of a perturbation that evicts m members of the top k of a node, for each node and possible m."""

    node: Tensor  # [M]
    members: Tensor  # [M], m = 1, 2, ... for each node
    cost: Tensor  # [M]
    effective_k: Tensor  # [N], size of the top k


@dataclass(frozen=True)
class _Sorted:
    """The weights of each node, one per neighbour, in descending order, node after node."""

    merged: Attention  # heads averaged, parallel edges summed
    weight: Tensor  # [E]
    start: Tensor  # [N], first entry of each node
    size: Tensor  # [N], number of neighbours
    effective_k: Tensor  # [N]


def eviction_costs(attention: Attention, k: int | float = CERTIFIED_TOP, norm: Norm = "l1") -> Costs:
    """Compute the least perturbation that evicts m members of the top k of each node.

    Args:
        attention: Attention of one layer; heads are averaged.
        k: Size of the top k: a number of neighbours, or a fraction of them.
        norm: Norm of the perturbation: `l1`, `l2` or `linf`.

    Returns:
        The costs, an entry for each node and each possible m.

    >>> a = Attention(torch.tensor([[0.5], [0.3], [0.2]]), torch.tensor([[0, 1, 2], [3, 3, 3]]), num_targets=4)
    >>> eviction_costs(a, k=1).cost  # 0.5 and 0.3 change places
    tensor([0.2000], dtype=torch.float64)
    """
    if norm not in ("l1", "l2", "linf"):
        raise SettingError(f"norm={norm!r}; choose l1, l2 or linf")
    rows = _sorted(attention, k)
    possible = torch.minimum(rows.effective_k, rows.size - rows.effective_k)
    node = torch.arange(len(possible), device=possible.device).repeat_interleave(possible)
    members = torch.arange(len(node), device=node.device) - (possible.cumsum(0) - possible)[node] + 1
    outside = rows.start[node] + rows.effective_k[node]  # the first entry outside the top k
    return Costs(node, members, _COST[norm](rows.weight, outside, members), rows.effective_k)


def guaranteed_overlap(
    attention: Attention, k: int | float = CERTIFIED_TOP, radius: float = 0.05, norm: Norm = "l1"
) -> Tensor:
    """Compute min V_k(w, w + rho) over |rho| <= radius, per node.

    Members whose cost equals the radius count as lost.

    Args:
        attention: Attention of one layer; heads are averaged.
        k: Size of the top k: a number of neighbours, or a fraction of them.
        radius: Largest norm of rho.
        norm: `l1`, `l2` or `linf`.

    Returns:
        The guaranteed overlap, from 0 to 1; NaN for nodes without neighbours; [N].

    >>> a = Attention(torch.tensor([[0.5], [0.3], [0.2]]), torch.tensor([[0, 1, 2], [3, 3, 3]]), num_targets=4)
    >>> guaranteed_overlap(a, k=1, radius=0.1)[3], guaranteed_overlap(a, k=1, radius=0.3)[3]
    (tensor(1., dtype=torch.float64), tensor(0., dtype=torch.float64))
    """
    check_numbers(0, radius=radius)
    costs = eviction_costs(attention, k, norm)
    lost = segment_sum((costs.cost <= radius).double(), costs.node, len(costs.effective_k)) if radius > 0 else 0.0
    return (costs.effective_k - lost) / costs.effective_k.double()


def certified_radius(
    attention: Attention, k: int | float = CERTIFIED_TOP, overlap: float = 1.0, norm: Norm = "l1"
) -> Tensor:
    """Compute the largest radius inside which V_k(w, w + rho) >= overlap, per node.

    Args:
        attention: Attention of one layer; heads are averaged.
        k: Size of the top k: a number of neighbours, or a fraction of them.
        overlap: The least V_k, a share from 0 to 1.
        norm: Norm of rho: `l1`, `l2` or `linf`.

    Returns:
        The radius; inf where no member can be evicted; [N].

    >>> a = Attention(torch.tensor([[0.5], [0.3], [0.2]]), torch.tensor([[0, 1, 2], [3, 3, 3]]), num_targets=4)
    >>> certified_radius(a, k=1)[3]
    tensor(0.2000, dtype=torch.float64)
    """
    if not 0.0 <= overlap <= 1.0:
        raise SettingError(f"overlap={overlap}; give a share, a number from 0 to 1")
    costs = eviction_costs(attention, k, norm)
    allowed = ((1.0 - overlap) * costs.effective_k.double() + 1e-9).floor().long()
    first = costs.members == allowed[costs.node] + 1
    radius = torch.full((len(costs.effective_k),), math.inf, dtype=torch.double, device=costs.effective_k.device)
    return radius.index_put((costs.node[first],), costs.cost[first])


def certified_share(radius: Tensor, size: float) -> float:
    """Compute the share of nodes with a certified radius above `size`, among those that can lose a member.

    Args:
        radius: Certified radius of each node, inf where no member can be evicted; [N].
        size: Norm of the perturbation.

    Returns:
        The share, from 0 to 1; 1 if no node can lose a member.

    >>> certified_share(torch.tensor([0.1, 0.3, math.inf]), 0.2)
    0.5
    """
    check_numbers(0, size=size)
    contested = radius[radius.isfinite()]
    return float((contested > size).cpu().double().mean()) if len(contested) else 1.0


def worst_push(attention: Attention, k: int | float = CERTIFIED_TOP, radius: float = 0.05, norm: Norm = "l1") -> Tensor:
    """Construct a perturbation inside the radius that attains the certificate: it is tight.

    The perturbation lowers a and raises b to a common level, and spends the rest of the radius beyond that level. Of
    parallel edges, the first takes the perturbation of the neighbour.

    Args:
        attention: Attention of one layer; heads are averaged.
        k: Size of the top k: a number of neighbours, or a fraction of them.
        radius: Largest norm of the perturbation, for each node.
        norm: `l1`, `l2` or `linf`.

    Returns:
        The perturbation of each edge of `attention`; [E].

    >>> a = Attention(torch.tensor([[0.5], [0.3], [0.2]]), torch.tensor([[0, 1, 2], [3, 3, 3]]), num_targets=4)
    >>> worst_push(a, k=1, radius=0.3)  # 0.35 and 0.45
    tensor([-0.1500,  0.1500,  0.0000], dtype=torch.float64)
    """
    check_numbers(0, radius=radius)
    costs, rows = eviction_costs(attention, k, norm), _sorted(attention, k)
    merged = rows.merged
    weight, target = merged.weight[:, 0], merged.target
    inside = costs.cost < radius  # strictly: tied weights need not change places
    lost = segment_sum(inside.long(), costs.node, len(rows.effective_k))
    zeros = torch.zeros(len(lost), dtype=torch.double, device=lost.device)
    cost = zeros.scatter_reduce(0, costs.node[inside], costs.cost[inside], "amax")
    rank = rank_within(weight, target, merged.num_targets)
    lowered = (rank < rows.effective_k[target]) & (rank >= (rows.effective_k - lost)[target])
    raised = (rank >= rows.effective_k[target]) & (rank < (rows.effective_k + lost)[target])
    if norm == "linf":  # each entry may change by the full radius
        push = radius * (raised.double() - lowered.double())
    else:
        changed = (2 * lost).double().clamp(min=1)  # number of entries that change
        beyond = ((radius - cost) / (changed if norm == "l1" else changed.sqrt()))[target]
        gap = _exchange_level(rows, lost, norm)[target] - weight
        down, up = gap.clamp(max=0) - beyond, gap.clamp(min=0) + beyond
        push = torch.where(lowered, down, 0.0) + torch.where(raised, up, 0.0)
    edges = attention.edge_index.to(push.device)
    return push.new_zeros(edges.size(1)).index_put((locate(merged.edge_index, edges),), push)


def _exchange_level(rows: _Sorted, lost: Tensor, norm: Norm) -> Tensor:
    """Return the level at which the `lost` members of each node meet their successors; 0 where none is lost; [N]."""
    level, affected = torch.zeros(len(lost), dtype=torch.double, device=lost.device), lost > 0
    level[affected] = _level(rows.weight, (rows.start + rows.effective_k)[affected], lost[affected], norm)
    return level


def _sorted(attention: Attention, k: int | float) -> _Sorted:
    """Sort the weights of each node in descending order."""
    once = attention.mean_heads().coalesce().double()
    weight, target = once.weight[:, 0], once.target
    check_finite("attention", weight)
    size = degree(target, once.num_targets)
    start = size.cumsum(0) - size
    descending = torch.empty_like(weight).scatter_(
        0, start[target] + rank_within(weight, target, once.num_targets), weight
    )
    return _Sorted(once, descending, start, size, effective_k(k, size))


def _l1(weight: Tensor, outside: Tensor, members: Tensor) -> Tensor:
    """Compute sum(a) - sum(b)."""
    return _sum_members(members, lambda at, i: weight[outside[at] - i] - weight[outside[at] + i - 1])


def _linf(weight: Tensor, outside: Tensor, members: Tensor) -> Tensor:
    """Compute (max a - min b) / 2."""
    return (weight[outside - members] - weight[outside + members - 1]) / 2


def _l2(weight: Tensor, outside: Tensor, members: Tensor) -> Tensor:
    """Compute sqrt(sum (a - t)+^2 + sum (t - b)+^2) at the best level t."""
    level = _level(weight, outside, members, "l2")

    def squares(at: Tensor, i: int) -> Tensor:
        down = (weight[outside[at] - i] - level[at]).clamp(min=0)
        up = (level[at] - weight[outside[at] + i - 1]).clamp(min=0)
        return down.square() + up.square()

    return _sum_members(members, squares).sqrt()


def _sum_members(members: Tensor, term: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Sum term(i) over i = 1 .. m, term by term: differences of cumulative sums would lose small costs."""
    descending = members.argsort(descending=True)
    counts = len(members) - degree(members, int(members.max()) + 1 if len(members) else 1).cumsum(0)
    total = torch.zeros(len(members), dtype=torch.double, device=members.device)
    for i, count in enumerate(counts.tolist()[:-1], start=1):
        at = descending[:count]
        total[at] += term(at, i)
    return total


def _level(weight: Tensor, outside: Tensor, members: Tensor, norm: Norm) -> Tensor:
    """Return the level t of the least cost; for l2 the mean of the entries that change, by Newton's method."""
    if norm != "l2":
        return (weight[outside - 1] + weight[outside]) / 2
    total, start, stop = _cumulative(weight), outside - members, outside + members
    level = (total[stop] - total[start]) / (2 * members)
    for _ in range(64):
        high, low = _bisect(weight, start, outside, level), _bisect(weight, outside, stop, level)
        changed = high - start + stop - low
        update = (total[high] - total[start] + total[stop] - total[low]) / changed.clamp(min=1)
        update = torch.where(changed > 0, update, level)
        if torch.equal(update, level):
            break
        level = update
    return level


def _bisect(weight: Tensor, start: Tensor, stop: Tensor, level: Tensor) -> Tensor:
    """Return the first position in start..stop, where weights descend, whose weight is not above the level."""
    low, high = start.clone(), stop.clone()
    for _ in range(int((stop - start).max().item()).bit_length() if len(start) else 0):
        middle = (low + high) // 2
        above = (low < high) & (weight[middle.clamp(max=max(len(weight) - 1, 0))] > level)
        low, high = torch.where(above, middle + 1, low), torch.where(above, high, middle)
        high = torch.maximum(low, high)
    return low


def _cumulative(value: Tensor) -> Tensor:
    """Return cumulative sums with a leading 0."""
    return torch.cat([value.new_zeros(1), value.cumsum(0)])


_COST = {"l1": _l1, "l2": _l2, "linf": _linf}
