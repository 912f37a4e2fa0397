"""fgai: how far the attention of a graph neural network can be trusted, and a method that makes it trustworthy."""

from importlib.metadata import version

from fgai import adversaries, backbones, datasets, large, methods, metrics, plots, report, saved
from fgai.adversaries import AttackEnsemble, AttentionBall, EdgeRewiring, FeatureBall, NodeInjection, Perturbation
from fgai.attention import Attention
from fgai.auditing import AuditReport, Comparison, audit, compare
from fgai.certificates import Certificate, certify
from fgai.errors import FGAIError
from fgai.explainer import AttentionExplainer
from fgai.faithfulness import Faithfulness, measure_faithfulness
from fgai.kernels.pyg import accelerated
from fgai.methods import FGAI, AdversarialTraining, Fit, LayerNorm, Vanilla
from fgai.reading import Reader, Reading, open_reader, read
from fgai.tap import AttentionPoint, Tap

__version__ = version("fgai")
__all__ = [
    "FGAI",
    "AdversarialTraining",
    "AttackEnsemble",
    "Attention",
    "AttentionBall",
    "AttentionExplainer",
    "AttentionPoint",
    "AuditReport",
    "Certificate",
    "Comparison",
    "EdgeRewiring",
    "FGAIError",
    "Faithfulness",
    "FeatureBall",
    "Fit",
    "LayerNorm",
    "NodeInjection",
    "Perturbation",
    "Reader",
    "Reading",
    "Tap",
    "Vanilla",
    "__version__",
    "accelerated",
    "adversaries",
    "audit",
    "backbones",
    "certify",
    "compare",
    "datasets",
    "large",
    "measure_faithfulness",
    "methods",
    "metrics",
    "open_reader",
    "plots",
    "read",
    "report",
    "saved",
]
