"""Certificates: how far attention can be perturbed before its top k, or the predicted class, changes.

They hold in attention space (w + rho, w + delta), not in input space.
"""

from fgai.certificates.explanation import (
    certified_radius,
    certified_share,
    eviction_costs,
    guaranteed_overlap,
    worst_push,
)
from fgai.certificates.intervals import IntervalBound, interval_bounds
from fgai.certificates.prediction import PredictionBound, prediction_bound
from fgai.certificates.record import Certificate, certify

__all__ = [
    "Certificate",
    "IntervalBound",
    "PredictionBound",
    "certified_radius",
    "certified_share",
    "certify",
    "eviction_costs",
    "guaranteed_overlap",
    "interval_bounds",
    "prediction_bound",
    "worst_push",
]
