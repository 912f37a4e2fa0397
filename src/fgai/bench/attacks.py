"""The attacks of every comparison: one budget each, the same for all methods, each model through its own gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fgai.adversary import Adversary, NodeInjection, Strongest


@dataclass(frozen=True)
class Attack:
    """An adversary and what it wants."""

    adversary: Adversary
    gain: str


ATTACKS: Mapping[str, Attack] = {
    "injection-20x20": Attack(NodeInjection(nodes=20, edges=20), "cross-entropy"),
    "injection-20x40": Attack(NodeInjection(nodes=20, edges=40), "cross-entropy"),
    "strongest": Attack(Strongest(nodes=20, edges=(20, 40)), "flips"),
    "explanation": Attack(
        Strongest(nodes=20, edges=(40,), climbing=("soft-top-k", "top-k-loss", "cross-entropy")), "attention-divergence"
    ),
}
