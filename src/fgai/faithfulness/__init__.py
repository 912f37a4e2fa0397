"""Does a model's answer rest on what its explanation names? Tested node by node, with the noise of the test."""

from fgai.faithfulness.pyg import PyGScores, pyg_scores
from fgai.faithfulness.record import Faithfulness, HopResult
from fgai.faithfulness.run import measure_faithfulness
from fgai.faithfulness.truth import TruthScores, truth_scores

__all__ = [
    "Faithfulness",
    "HopResult",
    "PyGScores",
    "TruthScores",
    "measure_faithfulness",
    "pyg_scores",
    "truth_scores",
]
