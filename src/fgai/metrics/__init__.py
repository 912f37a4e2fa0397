"""Numbers that say how good, and how stable, a model's answers and explanations are."""

from fgai.metrics.prediction import micro_f1

__all__ = ["micro_f1"]
