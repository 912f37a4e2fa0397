"""Metrics of an explanation: how far it moved, how uniform it is, and explanations from other sources."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import elu
from torch_geometric.explain import Explanation

from fgai.attention import Attention, entropy, nonuniformity
from fgai.checks import check_finite
from fgai.devices import to_double
from fgai.divergence import jsd_terms, tvd_terms
from fgai.errors import DataError
from fgai.graph import edge_keys, segment_sum
from fgai.reading import Reading
from fgai.topk import effective_k, topk_mask

TOP = 5


def matched(clean: Attention, now: Attention) -> tuple[Attention, Tensor]:
    """The clean explanation, one row per edge, and the weights that those edges have now, 0 if dropped; [E, 1] each."""
    before = clean.mean_heads().coalesce()
    after = now.mean_heads().weights_at(before.edge_index, default=0.0)
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
    before, after = clean.mean_heads().coalesce(), now.mean_heads().coalesce()
    for attention in (before, after):
        check_finite("the attention", attention.weight)
    old = topk_mask(before.weight, before.target, before.num_targets, k)
    new = topk_mask(after.weight, after.target, after.num_targets, k)
    before, after = (
        replace(before, weight=old.to(before.weight)).double(),
        replace(after, weight=new.to(after.weight)).double(),
    )
    still = after.weights_at(before.edge_index, default=0.0) * before.weight
    kept = segment_sum(still, before.target, before.num_targets)[:, 0]
    return kept / effective_k(k, before.degree)


def shift(clean: Attention, now: Attention) -> Tensor:
    """Per node, the attention that moved, 1/2 sum_j |w_ij - w'_ij| over the clean edges; [N]."""
    before, after = matched(clean, now)
    return segment_sum(tvd_terms(before.weight, after), before.target, before.num_targets)[:, 0]


def mean_nonuniformity(explanation: Attention, nodes: int | None = None) -> float:
    """The mean over the first `nodes` nodes of the l1 distance between attention and 1/degree; 0 explains nothing."""
    return float(nonuniformity(explanation.mean_heads())[:nodes].mean())


def mean_entropy(explanation: Attention, nodes: int | None = None) -> float:
    """The mean over the first `nodes` nodes, if they have two neighbours, of entropy over uniform's; 1 is uniform."""
    return float(entropy(explanation.mean_heads())[:nodes].nanmean())


def as_attention(explanation: Explanation) -> Attention:
    """An edge mask as attention: scaled to sum to one over the edges of a target, so that g-JSD, V_k and F apply.

    >>> mask = torch.tensor([3.0, 1.0, 5.0])
    >>> edges = torch.tensor([[0, 1, 2], [2, 2, 0]])
    >>> as_attention(Explanation(x=torch.ones(3, 1), edge_index=edges, edge_mask=mask)).weight.flatten()
    tensor([0.7500, 0.2500, 1.0000])
    """
    mask, edges = explanation.get("edge_mask"), explanation.get("edge_index")
    if not isinstance(mask, Tensor) or not isinstance(edges, Tensor):
        raise DataError("the explanation has no `edge_mask`; explain with edge_mask_type='object'")
    nodes = int(explanation.num_nodes or 0)
    weight = mask.detach().clamp(min=0)[:, None]
    total = segment_sum(weight, edges[1], nodes)[edges[1]]
    share = torch.where(total > 0, weight / total.clamp(min=torch.finfo(weight.dtype).tiny), 0.0)
    return Attention(share, edges, nodes)


def random_attention(attention: Attention, seed: int = 0) -> Attention:
    """Random weights on the same edges, summing to one over a target: the floor for any explanation."""
    once, generator = attention.mean_heads().coalesce(), torch.Generator().manual_seed(seed)
    draw = torch.rand(once.weight.shape, generator=generator, dtype=once.weight.dtype).to(once.weight.device)
    total = segment_sum(draw, once.target, once.num_targets)
    return replace(once, weight=draw / total[once.target])


def released_g_tvd(clean: Reading, now: Reading) -> float:
    """1/(2N) sum |y - y'| over ELU scores without a softmax: it can pass 1."""
    return float((elu(clean.logits) - elu(now.logits[: len(clean.logits)])).abs().sum() / (2 * len(clean.logits)))


def released_g_jsd(clean: Attention, now: Attention) -> float:
    """g-JSD that compares rows: the first E rows of each vector, by target, then source, scaled to add up to one.

    After an injection a row holds another edge, so attention that did not change scores above 0. The order is fixed,
    so that the value depends neither on the order of the edges nor on how the layers compute.
    """
    before, after = (_by_target(attention) for attention in (clean, now))
    rows = min(len(before), len(after))
    before, after = before[:rows], after[:rows]
    terms = jsd_terms(before / before.sum(), after / after.sum())
    return float(terms.sum() / max(rows, 1)) if rows else 0.0


def _by_target(attention: Attention) -> Tensor:
    """The weights, heads averaged, sorted by target, then source; [E, 1]."""
    once = attention.mean_heads().double()
    weight, edges = once.weight, once.edge_index
    check_finite("the attention", weight)
    base = int(edges.max()) + 1 if edges.numel() else 1
    return weight[edge_keys(edges, base).argsort(stable=True)]
