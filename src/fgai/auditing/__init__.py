"""Audits: attack a model with several seeds, measure its predictions and attention, and grade the explanation."""

from fgai.auditing.audit import audit
from fgai.auditing.compare import Agreement, Comparison, compare
from fgai.auditing.formats import WRITERS
from fgai.auditing.graph_view import GraphView
from fgai.auditing.neighbourhood import Neighbourhood
from fgai.auditing.record import AuditReport, Curves, Estimate, NodeShift

__all__ = [
    "WRITERS",
    "Agreement",
    "AuditReport",
    "Comparison",
    "Curves",
    "Estimate",
    "GraphView",
    "Neighbourhood",
    "NodeShift",
    "audit",
    "compare",
]
