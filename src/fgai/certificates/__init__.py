"""Certificates: what an attacker of the attention, or of the graph, cannot change. `certify` is the entry."""

from fgai.adversaries import AttentionBall
from fgai.certificates.certify import certify
from fgai.certificates.explanation import (
    certified_radius,
    certified_share,
    eviction_costs,
    guaranteed_overlap,
    worst_push,
)
from fgai.certificates.intervals import IntervalBound, interval_bounds
from fgai.certificates.order import cloned_overlap, cloned_weight, ordered_overlap
from fgai.certificates.perturbation_sets import Deletions, Features, Injection, Links
from fgai.certificates.prediction import PredictionBound, prediction_bound
from fgai.certificates.proof import Proof
from fgai.certificates.record import Certificate
from fgai.certificates.votes import Voted, Votes

__all__ = [
    "AttentionBall",
    "Certificate",
    "Deletions",
    "Features",
    "Injection",
    "IntervalBound",
    "Links",
    "PredictionBound",
    "Proof",
    "Voted",
    "Votes",
    "certified_radius",
    "certified_share",
    "certify",
    "cloned_overlap",
    "cloned_weight",
    "eviction_costs",
    "guaranteed_overlap",
    "interval_bounds",
    "ordered_overlap",
    "prediction_bound",
    "worst_push",
]
