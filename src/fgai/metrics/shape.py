"""What the explanation looks like by itself: stability alone is a trap, uniform attention never moves."""

from __future__ import annotations

from fgai.attention import Attention, entropy, nonuniformity


def mean_nonuniformity(explanation: Attention, nodes: int | None = None) -> float:
    """The mean over the first `nodes` nodes of the l1 distance between attention and 1/degree; 0 explains nothing."""
    return float(nonuniformity(explanation.mean())[:nodes].mean())


def mean_entropy(explanation: Attention, nodes: int | None = None) -> float:
    """The mean over the first `nodes` nodes, if they have two neighbours, of entropy over uniform's; 1 is uniform."""
    return float(entropy(explanation.mean())[:nodes].nanmean())
