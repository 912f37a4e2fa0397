"""Adversaries: each returns the worst reading inside its budget, for any gain."""

from fgai.adversary.attention_ball import AttentionBall
from fgai.adversary.base import ADVERSARIES, Adversary, Gain
from fgai.adversary.feature_ball import FeatureBall
from fgai.adversary.gains import GAINS
from fgai.adversary.injection import NodeInjection
from fgai.adversary.perturbation import Attacked, Perturbation
from fgai.adversary.rewiring import EdgeRewiring
from fgai.adversary.strongest import Strongest

__all__ = [
    "ADVERSARIES",
    "GAINS",
    "Adversary",
    "Attacked",
    "AttentionBall",
    "EdgeRewiring",
    "FeatureBall",
    "Gain",
    "NodeInjection",
    "Perturbation",
    "Strongest",
]
