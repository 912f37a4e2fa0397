"""Metrics of an explanation: how far it changed and how uniform it is; explanations from other sources."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import elu
from torch_geometric.explain import Explanation

from fgai.attention import Attention, entropy, uniform
from fgai.checks import check_finite
from fgai.devices import to_double
from fgai.divergence import jsd_terms, tvd_terms
from fgai.errors import DataError
from fgai.graph import edge_keys, segment_sum
from fgai.reading import Reading
from fgai.topk import effective_k, topk_mask

# k of the top-k overlap in audits and reports: the k of FGAI's training objective. Many nodes of sparse graphs have few
# neighbours, and a node with at most k neighbours has no order to lose. Certificates have a larger default, see
# `fgai.certificates.explanation.CERTIFIED_TOP`.
TOP = 5


def matched(clean: Attention, now: Attention) -> tuple[Attention, Tensor]:
    """Return the clean explanation, one row per edge, and the current weights of its edges, 0 if dropped; [E, 1]."""
    before = clean.mean_heads().coalesce()
    after = now.mean_heads().weights_at(before.edge_index, default=0.0)
    for weight in (before.weight, after):
        check_finite("the attention", weight)
    return before.double(), to_double(after)


def g_jsd(clean: Attention, now: Attention) -> float:
    """Compute g-JSD: 1/(2E) (KL(w|m) + KL(w'|m)), m = (w + w')/2, over the E edges of the clean explanation.

    Args:
        clean: Explanation of the clean graph.
        now: Explanation of the clean or attacked graph.

    Returns:
        The mean over the edges of `clean`; an edge that was dropped has weight 0 now.

    >>> import torch
    >>> edges = torch.tensor([[0, 1, 2], [2, 2, 2]])
    >>> a = Attention(torch.tensor([[0.2], [0.3], [0.5]]), edges, 3)
    >>> g_jsd(a, Attention(a.weight.flip(0), edges.flip(1), 3))  # the same edges in another order
    0.0
    """
    before, after = matched(clean, now)
    return float(jsd_terms(before.weight, after).sum() / max(len(after), 1))


def top_overlap(clean: Attention, now: Attention, k: int | float = TOP) -> Tensor:
    """Compute V_k per node: the share of the clean top k that is in the top k now.

    The top k now is over all current edges: an injected neighbour can replace an old one.

    Args:
        clean: Explanation of the clean graph.
        now: Explanation of the clean or attacked graph.
        k: Size of the top k: a number of neighbours, or a fraction of them.

    Returns:
        The overlap, from 0 to 1; NaN for nodes without neighbours; [N].

    >>> edges = torch.tensor([[0, 1, 2], [2, 2, 2]])
    >>> a = Attention(torch.tensor([[0.2], [0.3], [0.5]]), edges, 3)
    >>> top_overlap(a, Attention(torch.tensor([[0.3], [0.2], [0.5]]), edges, 3), k=2)
    tensor([   nan,    nan, 0.5000], dtype=torch.float64)
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
    in_both = after.weights_at(before.edge_index, default=0.0) * before.weight
    shared = segment_sum(in_both, before.target, before.num_targets)[:, 0]
    return shared / effective_k(k, before.degree)


def shift(clean: Attention, now: Attention) -> Tensor:
    """Compute the change of attention per node, 1/2 sum_j |w_ij - w'_ij| over the clean edges.

    Args:
        clean: Explanation of the clean graph.
        now: Explanation of the clean or attacked graph.

    Returns:
        The change of each node; [N].
    """
    before, after = matched(clean, now)
    return segment_sum(tvd_terms(before.weight, after), before.target, before.num_targets)[:, 0]


def mean_nonuniformity(explanation: Attention, nodes: int | None = None) -> float:
    """Compute the mean l1 distance between attention and 1/degree; 0 is uniform attention, which explains nothing.

    Args:
        explanation: Attention of one layer; heads are averaged.
        nodes: Number of leading nodes to average over; by default all.

    Returns:
        The mean over nodes.
    """
    heads = explanation.mean_heads()
    own, even = heads.double(), uniform(heads).double()  # 1/d is rounded as the weights are
    return float(segment_sum((own.weight - even.weight).abs(), own.target, own.num_targets)[:nodes].mean())


def mean_entropy(explanation: Attention, nodes: int | None = None) -> float:
    """Compute the mean entropy of attention, divided by that of uniform attention; 1 is uniform.

    Args:
        explanation: Attention of one layer; heads are averaged.
        nodes: Number of leading nodes to average over; by default all.

    Returns:
        The mean over nodes with at least two neighbours.
    """
    return float(entropy(explanation.double().mean_heads())[:nodes].nanmean())


def as_attention(explanation: Explanation) -> Attention:
    """Convert an edge mask to attention, scaled to sum to one over the edges of each target.

    The metrics g-JSD, V_k and F then apply to any PyG explanation.

    Args:
        explanation: A PyG explanation with an `edge_mask`.

    Returns:
        Attention with one head on the edges of the explanation.

    Raises:
        DataError: If the explanation has no `edge_mask`.

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
    """Draw random weights on the same edges, which sum to one over each target: a baseline for any explanation.

    Args:
        attention: Attention of one layer; only its edges are used.
        seed: Seed of the weights.

    Returns:
        Attention with one head; parallel edges are merged.
    """
    once, generator = attention.mean_heads().coalesce(), torch.Generator().manual_seed(seed)
    draw = torch.rand(once.weight.shape, generator=generator, dtype=once.weight.dtype).to(once.weight.device)
    total = segment_sum(draw, once.target, once.num_targets)
    return replace(once, weight=draw / total[once.target])


def released_g_tvd(clean: Reading, now: Reading) -> float:
    """Compute 1/(2N) sum |y - y'| over ELU of the logits, without a softmax: it can exceed 1.

    Args:
        clean: Reading of the clean graph, with N nodes.
        now: Reading of the attacked graph; only its first N nodes count.

    Returns:
        g-TVD as the released code of the paper computes it.
    """
    return float((elu(clean.logits) - elu(now.logits[: len(clean.logits)])).abs().sum() / (2 * len(clean.logits)))


def released_g_jsd(clean: Attention, now: Attention) -> float:
    """Compute g-JSD row by row: over the first E rows of each weight vector, scaled to sum to one.

    After an injection a row holds another edge, so unchanged attention scores above 0. Rows are sorted by target, then
    source, so that the value does not depend on the order of the edges or on the implementation of the layers.

    Args:
        clean: Explanation of the clean graph.
        now: Explanation of the attacked graph.

    Returns:
        g-JSD as the released code of the paper computes it.
    """
    before, after = (_sort_by_target(attention) for attention in (clean, now))
    rows = min(len(before), len(after))
    before, after = before[:rows], after[:rows]
    terms = jsd_terms(before / before.sum(), after / after.sum())
    return float(terms.sum() / max(rows, 1)) if rows else 0.0


def _sort_by_target(attention: Attention) -> Tensor:
    """Return the weights, averaged over heads, sorted by target, then source; [E, 1]."""
    once = attention.mean_heads().double()
    weight, edges = once.weight, once.edge_index
    check_finite("the attention", weight)
    base = int(edges.max()) + 1 if edges.numel() else 1
    return weight[edge_keys(edges, base).argsort(stable=True)]
