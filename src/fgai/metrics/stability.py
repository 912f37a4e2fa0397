"""How far an explanation moved; edges are matched by their two ends, heads are averaged."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fgai.attention import Attention
from fgai.checks import check_finite
from fgai.devices import to_double
from fgai.divergence import jsd_terms, tvd_terms
from fgai.graph import sum_by
from fgai.topk import quota, top

TOP = 5


def matched(clean: Attention, now: Attention) -> tuple[Attention, Tensor]:
    """The clean explanation, one row per edge, and the weights that those edges have now, 0 if dropped; [E, 1] each."""
    before = clean.mean().coalesce()
    after = now.mean().on(before.edge_index, absent=0.0)
    for weight in (before.weight, after):
        check_finite("the attention", weight)
    return before.double(), to_double(after)


def g_jsd(clean: Attention, now: Attention) -> float:
    """1/(2E) (KL(w|m) + KL(w'|m)), m = (w + w')/2, over the E edges of the clean explanation.

    >>> import torch
    >>> edges = torch.tensor([[0, 1, 2], [2, 2, 2]])
    >>> a = Attention(torch.tensor([[0.2], [0.3], [0.5]]), edges, 3)
    >>> g_jsd(a, Attention(a.weight.flip(0), edges.flip(1), 3))  # the same edges in another order
    0.0
    """
    before, after = matched(clean, now)
    return float(jsd_terms(before.weight, after).sum() / max(len(after), 1))


def top_overlap(clean: Attention, now: Attention, k: int | float = TOP) -> Tensor:
    """V_k per node: the share of the clean top k that is in the top k now; NaN for nodes without neighbours. [N].

    The top k now is taken over all edges there are now: an injected neighbour can push an old one out.
    """
    before, after = clean.mean().coalesce(), now.mean().coalesce()
    for attention in (before, after):
        check_finite("the attention", attention.weight)
    old = top(before.weight, before.target, before.num_targets, k)
    new = top(after.weight, after.target, after.num_targets, k)
    before, after = (
        replace(before, weight=old.to(before.weight)).double(),
        replace(after, weight=new.to(after.weight)).double(),
    )
    still = after.on(before.edge_index, absent=0.0) * before.weight
    kept = sum_by(still, before.target, before.num_targets)[:, 0]
    return kept / quota(k, before.degree)


def shift(clean: Attention, now: Attention) -> Tensor:
    """Per node, the attention that moved, 1/2 sum_j |w_ij - w'_ij| over the clean edges; [N]."""
    before, after = matched(clean, now)
    return sum_by(tvd_terms(before.weight, after), before.target, before.num_targets)[:, 0]
