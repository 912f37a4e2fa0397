"""Can I trust this attention? Models x adversaries x seeds, and a verdict in words."""

from fgai.audit.comparison import Comparison, Likeness, compare
from fgai.audit.neighbourhood import Neighbourhood
from fgai.audit.record import AuditReport, Curves, Figure, Moved
from fgai.audit.run import audit
from fgai.audit.verdict import Verdict
from fgai.audit.writers import WRITERS

__all__ = [
    "WRITERS",
    "AuditReport",
    "Comparison",
    "Curves",
    "Figure",
    "Likeness",
    "Moved",
    "Neighbourhood",
    "Verdict",
    "audit",
    "compare",
]
