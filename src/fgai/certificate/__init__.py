"""What can be proved about an explanation: how far attention can be pushed before its top k, or the class, changes.

`certify` is about attention space (w + rho, w + delta); `certify_against` about a named attacker of the graph.
"""

from fgai.certificate.against import Proof, certify_against
from fgai.certificate.composition import Composed, composed
from fgai.certificate.explanation import (
    certified_radius,
    certified_share,
    eviction_costs,
    guaranteed_overlap,
    worst_push,
)
from fgai.certificate.order import cloned_overlap, cloned_weight, ordered_overlap
from fgai.certificate.prediction import Reach, reach
from fgai.certificate.record import Certificate, certify
from fgai.certificate.threats import Deletions, Features, Injection, Links
from fgai.certificate.votes import Voted, Votes

__all__ = [
    "Certificate",
    "Composed",
    "Deletions",
    "Features",
    "Injection",
    "Links",
    "Proof",
    "Reach",
    "Voted",
    "Votes",
    "certified_radius",
    "certified_share",
    "certify",
    "certify_against",
    "cloned_overlap",
    "cloned_weight",
    "composed",
    "eviction_costs",
    "guaranteed_overlap",
    "ordered_overlap",
    "reach",
    "worst_push",
]
