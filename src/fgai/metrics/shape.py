"""What the explanation looks like by itself: stability alone is a trap, uniform attention never moves."""

from __future__ import annotations

from fgai.attention import Attention, entropy, nonuniformity


def mean_nonuniformity(explanation: Attention) -> float:
    """The mean over nodes of the l1 distance between the attention and 1/degree; 0 explains nothing."""
    return float(nonuniformity(explanation.mean()).mean())


def mean_entropy(explanation: Attention) -> float:
    """The mean over nodes with two neighbours or more of the entropy over that of uniform attention; 1 is uniform."""
    return float(entropy(explanation.mean()).nanmean())
