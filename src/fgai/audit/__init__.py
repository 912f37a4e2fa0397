"""Can I trust this attention? Models x adversaries x seeds, and a verdict in words."""

from fgai.audit.comparison import Comparison, compare
from fgai.audit.record import AuditReport, Figure, Moved
from fgai.audit.run import audit
from fgai.audit.verdict import Verdict

__all__ = ["AuditReport", "Comparison", "Figure", "Moved", "Verdict", "audit", "compare"]
