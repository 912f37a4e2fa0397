"""Top-k sets T_k of each node's attention, their overlap V_k, and the differentiable surrogate L_k of -V_k.

One vector per node is stored as `weight` [E] or [E, H] with `index` [E], the node of each entry. If `index` is all
zero, the graph is one vector. Of equal entries the earlier one ranks first, so sort the entries in a fixed order before
(`Attention.coalesce` sorts by target, then source).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fgai.devices import to_double
from fgai.graph import degree, segment_sum
from fgai.settings import check_top

ENTRIES = 2**20  # entries of vectors that are compared at a time


def effective_k(k: int | float, size: Tensor) -> Tensor:
    """Return the number of top entries of vectors of these sizes: min(k, size), or ceil(k size) for a fraction k.

    >>> effective_k(3, torch.tensor([0, 2, 9])), effective_k(0.5, torch.tensor([0, 1, 5]))
    (tensor([0, 2, 3]), tensor([0, 1, 3]))
    """
    check_top(k)
    if isinstance(k, float):
        return (to_double(size) * k).round(decimals=9).ceil().to(size)
    return size.clamp(max=min(k, torch.iinfo(torch.int32).max))  # no node has more neighbours


def rank_within(weight: Tensor, index: Tensor, num: int) -> Tensor:
    """Return the rank of each entry within its vector, 0 for the largest; shaped like `weight`.

    >>> rank_within(torch.tensor([0.1, 0.9, 0.5]), torch.tensor([0, 0, 1]), 2)
    tensor([1, 0, 0])
    """
    order = _sort_entries(weight, index)
    sizes = degree(index, num)
    start = sizes.cumsum(0) - sizes
    rank = torch.arange(index.numel(), device=index.device) - start.repeat_interleave(sizes, output_size=index.numel())
    rank = rank.view(-1, *[1] * (weight.dim() - 1)).expand_as(order)
    return torch.empty_like(order).scatter_(0, order, rank)


def _sort_entries(weight: Tensor, index: Tensor) -> Tensor:
    """Return the stable order of entries by vector, then by decreasing weight; [E] or [E, H]."""
    if weight.dtype == torch.float:  # one sort of integer keys, made of the bits of the floats
        bits = (weight.detach() + 0.0).view(torch.int32).long()
        ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        key = (index.view(-1, *[1] * (weight.dim() - 1)) << 32) - ordered
        return key.sort(dim=0, stable=True).indices
    by_weight = weight.argsort(dim=0, descending=True, stable=True)
    return by_weight.gather(0, index[by_weight].argsort(dim=0, stable=True))


def topk_mask(weight: Tensor, index: Tensor, num: int, k: int | float) -> Tensor:
    """Return T_k as a mask: the k largest entries of each vector.

    >>> topk_mask(torch.tensor([0.2, 0.5, 0.3]), torch.tensor([0, 0, 0]), 1, k=2)
    tensor([False,  True,  True])
    """
    size = degree(index, num)
    allowed = effective_k(k, size)
    if isinstance(k, int) and weight.dim() == 1 and _is_sorted(index) and not bool(weight.isnan().any()):
        return _largest(weight.detach(), index, size, k)
    return rank_within(weight, index, num) < allowed[index].view(-1, *[1] * (weight.dim() - 1))


def _is_sorted(index: Tensor) -> bool:
    """Return whether the entries of each vector are together; False on a GPU, to avoid a sync."""
    return index.device.type == "cpu" and bool((index[1:] >= index[:-1]).all())


def _largest(weight: Tensor, index: Tensor, size: Tensor, k: int) -> Tensor:
    """Return T_k of sorted vectors, without sorting entries: those above the k-th largest, and the first equal ones."""
    least = _kth_largest(weight, size, k)
    bound = least[index]
    member, equal = weight > bound, weight == bound
    room = k - degree(index[member], len(size))
    at = equal.nonzero()[:, 0]
    owner, count = index[at], degree(index[at], len(size))
    place = torch.arange(len(at), device=at.device) - (count.cumsum(0) - count)[owner]
    return member.index_fill_(0, at[place < room[owner]], True)


def _kth_largest(weight: Tensor, size: Tensor, k: int) -> Tensor:
    """Return the k-th largest entry of each vector, -inf if it has fewer; vectors of similar size at a time."""
    least, start = weight.new_full((len(size),), -torch.inf), size.cumsum(0) - size
    longer = (size >= k).nonzero()[:, 0]
    longer = longer[size[longer].argsort()]
    while len(longer):
        width = 2 * int(size[longer[0]])
        few = longer[: max(int(torch.searchsorted(size[longer], width)), 1)][: max(ENTRIES // width, 1)]
        width = int(size[few[-1]])
        column = torch.arange(width, device=size.device)
        at = (start[few, None] + column).clamp_(max=len(weight) - 1)
        dense = weight[at].masked_fill_(column >= size[few, None], -torch.inf)
        least[few] = dense.topk(k, dim=1, sorted=False).values.min(1).values
        longer = longer[len(few) :]
    return least


def overlap(weight: Tensor, other: Tensor, index: Tensor, num: int, k: int | float) -> Tensor:
    """Return V_k(w, v) = |T_k(w) & T_k(v)| / min(k, size) of each vector; NaN for an empty vector.

    [E] -> [num], [E, H] -> [num, H]

    >>> w, v = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.6, 0.1, 0.3])
    >>> overlap(w, v, torch.zeros(3, dtype=torch.long), 1, k=2)
    tensor([0.5000])
    """
    both = topk_mask(weight, index, num, k) & topk_mask(other, index, num, k)
    shared = segment_sum(both.to(weight.dtype), index, num)
    size = effective_k(k, degree(index, num)).to(weight.dtype)
    return shared / size.view(-1, *[1] * (weight.dim() - 1))


def topk_loss(weight: Tensor, other: Tensor, index: Tensor, num: int, k: int | float) -> Tensor:
    """Return L_k(w, v) = (|w - v|_1 over T_k(w) + |w - v|_1 over T_k(v)) / 2k of each vector; 0 for an empty one.

    Gradients flow through the distance, not through the sets. A fraction k stands for ceil(k size).
    [E] -> [num], [E, H] -> [num, H]

    >>> w, v = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.6, 0.1, 0.3])
    >>> topk_loss(w, v, torch.zeros(3, dtype=torch.long), 1, k=2)
    tensor([0.1000])
    """
    count = topk_mask(weight, index, num, k).to(weight.dtype) + topk_mask(other, index, num, k).to(weight.dtype)
    total = segment_sum(count * (weight - other).abs(), index, num)
    sizes = (
        effective_k(k, degree(index, num)).clamp(min=1)
        if isinstance(k, float)
        else torch.full((1,), k, device=index.device)
    )
    return total / (2 * sizes).to(weight.dtype).view(-1, *[1] * (weight.dim() - 1))
