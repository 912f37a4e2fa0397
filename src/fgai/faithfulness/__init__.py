"""Tests whether the predictions of a model depend on the edges that an explanation ranks first."""

from fgai.faithfulness.pyg import PyGScores, TruthScores, pyg_scores, truth_scores
from fgai.faithfulness.record import Faithfulness, HopResult
from fgai.faithfulness.run import faithfulness_of, measure_faithfulness

__all__ = [
    "Faithfulness",
    "HopResult",
    "PyGScores",
    "TruthScores",
    "faithfulness_of",
    "measure_faithfulness",
    "pyg_scores",
    "truth_scores",
]
