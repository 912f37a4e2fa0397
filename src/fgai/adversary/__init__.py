"""Adversaries: each returns the worst reading inside its budget, for any gain."""

from fgai.adversary.attention_ball import AttentionBall
from fgai.adversary.base import ADVERSARIES, Adversary, Gain
from fgai.adversary.block_coordinate import GRBCD, PRBCD
from fgai.adversary.encodings import RecomputedEncodings
from fgai.adversary.ensemble import ChosenInjection, WorstOf
from fgai.adversary.feature_ball import FeatureBall
from fgai.adversary.features import FEATURES
from fgai.adversary.gains import GAINS
from fgai.adversary.injection import NodeInjection
from fgai.adversary.links import LINKS
from fgai.adversary.perturbation import Attacked, Perturbation
from fgai.adversary.rewiring import EdgeRewiring
from fgai.adversary.single import SingleTarget
from fgai.adversary.strongest import Strongest
from fgai.adversary.threats import THREATS, Threat

__all__ = [
    "ADVERSARIES",
    "FEATURES",
    "GAINS",
    "GRBCD",
    "LINKS",
    "PRBCD",
    "THREATS",
    "Adversary",
    "Attacked",
    "AttentionBall",
    "ChosenInjection",
    "EdgeRewiring",
    "FeatureBall",
    "Gain",
    "NodeInjection",
    "Perturbation",
    "RecomputedEncodings",
    "SingleTarget",
    "Strongest",
    "Threat",
    "WorstOf",
]
