"""What can be proved about an explanation: how far attention can be pushed before its top k, or the class, changes.

These certify attention space (w + rho, w + delta), not input space.
"""

from fgai.certificate.composition import Composed, composed
from fgai.certificate.explanation import (
    certified_radius,
    certified_share,
    eviction_costs,
    guaranteed_overlap,
    worst_push,
)
from fgai.certificate.prediction import Reach, reach
from fgai.certificate.record import Certificate, certify

__all__ = [
    "Certificate",
    "Composed",
    "Reach",
    "certified_radius",
    "certified_share",
    "certify",
    "composed",
    "eviction_costs",
    "guaranteed_overlap",
    "reach",
    "worst_push",
]
