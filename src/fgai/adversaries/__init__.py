"""Adversaries: attacks that maximise a gain of the reading inside a budget."""

from fgai.adversaries.balls import AttentionBall, FeatureBall
from fgai.adversaries.base import ADVERSARIES, Adversary, Gain, check_adversary
from fgai.adversaries.block_coordinate import GRBCD, PRBCD
from fgai.adversaries.budget import Budget, WithinBudget, budget_of, has_budget
from fgai.adversaries.chosen import ChosenInjection, WorstOf
from fgai.adversaries.ensemble import AttackEnsemble
from fgai.adversaries.features import FEATURES
from fgai.adversaries.gains import GAINS
from fgai.adversaries.injection import GraphInjection, NodeInjection, TypedInjection, default_injection
from fgai.adversaries.links import LINKS
from fgai.adversaries.perturbation import AttackResult, Perturbation
from fgai.adversaries.rewiring import EdgeRewiring
from fgai.adversaries.single import SingleTarget
from fgai.adversaries.threats import THREATS, Threat, as_threat, describe, register_threat

__all__ = [
    "ADVERSARIES",
    "FEATURES",
    "GAINS",
    "GRBCD",
    "LINKS",
    "PRBCD",
    "THREATS",
    "Adversary",
    "AttackEnsemble",
    "AttackResult",
    "AttentionBall",
    "Budget",
    "ChosenInjection",
    "EdgeRewiring",
    "FeatureBall",
    "Gain",
    "GraphInjection",
    "NodeInjection",
    "Perturbation",
    "SingleTarget",
    "Threat",
    "TypedInjection",
    "WithinBudget",
    "WorstOf",
    "as_threat",
    "budget_of",
    "check_adversary",
    "default_injection",
    "describe",
    "has_budget",
    "register_threat",
]
