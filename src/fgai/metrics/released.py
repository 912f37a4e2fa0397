"""The conventions of the paper's released code, so that a user can see the published numbers' own scale.

They are here to be compared with, not to be used: see the traps in the docs.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import elu

from fgai.attention import Attention
from fgai.checks import check_finite
from fgai.divergence import jsd_terms
from fgai.graph import edge_keys
from fgai.reading import Reading


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
    once = attention.mean().double()
    weight, edges = once.weight, once.edge_index
    check_finite("the attention", weight)
    base = int(edges.max()) + 1 if edges.numel() else 1
    return weight[edge_keys(edges, base).argsort(stable=True)]
