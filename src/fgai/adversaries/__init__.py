"""Adversaries: attacks that maximise a gain of the reading inside a budget."""

from fgai.adversaries.balls import AttentionBall, FeatureBall
from fgai.adversaries.base import ADVERSARIES, Adversary, Gain
from fgai.adversaries.ensemble import AttackEnsemble
from fgai.adversaries.gains import GAINS
from fgai.adversaries.injection import NodeInjection
from fgai.adversaries.perturbation import AttackResult, Perturbation
from fgai.adversaries.rewiring import EdgeRewiring

__all__ = [
    "ADVERSARIES",
    "GAINS",
    "Adversary",
    "AttackEnsemble",
    "AttackResult",
    "AttentionBall",
    "EdgeRewiring",
    "FeatureBall",
    "Gain",
    "NodeInjection",
    "Perturbation",
]
