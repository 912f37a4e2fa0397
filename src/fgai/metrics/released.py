"""The conventions of the paper's released code, so that a user can see the published numbers' own scale.

They are here to be compared with, not to be used: see the traps in the docs.
"""

from __future__ import annotations

from torch.nn.functional import elu

from fgai.attention import Attention
from fgai.devices import to_double
from fgai.divergence import jsd_terms
from fgai.reading import Reading


def released_g_tvd(clean: Reading, now: Reading) -> float:
    """1/(2N) sum |y - y'| over ELU scores without a softmax: it can pass 1."""
    return float((elu(clean.logits) - elu(now.logits[: len(clean.logits)])).abs().sum() / (2 * len(clean.logits)))


def released_g_jsd(clean: Attention, now: Attention) -> float:
    """g-JSD that compares rows: the first E rows of each vector, as they come, scaled to add up to one.

    After an injection, or in another order, a row holds another edge, so attention that did not change scores above 0.
    """
    before, after = to_double(clean.mean().weight), to_double(now.mean().weight)
    rows = min(len(before), len(after))
    before, after = before[:rows], after[:rows]
    terms = jsd_terms(before / before.sum(), after / after.sum())
    return float(terms.sum() / max(rows, 1)) if rows else 0.0
