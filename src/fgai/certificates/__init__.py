"""Certificates: how far attention can be perturbed before its top k, or the predicted class, changes.

`certify` is about perturbed attention (w + rho, w + delta), `certify_against` about an attacker of the graph.
"""

from fgai.certificates.against import certify_against
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
from fgai.certificates.record import Certificate, certify
from fgai.certificates.votes import Voted, Votes

__all__ = [
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
    "certify_against",
    "cloned_overlap",
    "cloned_weight",
    "eviction_costs",
    "guaranteed_overlap",
    "interval_bounds",
    "ordered_overlap",
    "prediction_bound",
    "worst_push",
]
