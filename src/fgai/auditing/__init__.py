"""Audits: attack a model with several seeds, measure its predictions and attention, and give a verdict."""

from fgai.auditing.audit import audit
from fgai.auditing.compare import Comparison, Likeness, compare
from fgai.auditing.neighbourhood import Neighbourhood
from fgai.auditing.record import WRITERS, AuditReport, Curves, Estimate, NodeShift
from fgai.auditing.verdict import Verdict

__all__ = [
    "WRITERS",
    "AuditReport",
    "Comparison",
    "Curves",
    "Estimate",
    "Likeness",
    "Neighbourhood",
    "NodeShift",
    "Verdict",
    "audit",
    "compare",
]
