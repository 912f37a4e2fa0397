"""fgai: how far the attention of a graph neural network can be trusted, and a method that makes it trustworthy."""

from fgai import adversaries as adversary
from fgai import backbones, datasets, methods, metrics, plots, report, saved
from fgai import large as scale
from fgai.acceleration import accelerated
from fgai.adversaries import AttackEnsemble, AttentionBall, EdgeRewiring, FeatureBall, NodeInjection, Perturbation
from fgai.attention import Attention
from fgai.auditing import AuditReport, Comparison, audit, compare
from fgai.certificates import Certificate, certify
from fgai.errors import FGAIError
from fgai.explainer import AttentionExplainer
from fgai.faithfulness import measure_faithfulness
from fgai.methods import FGAI, AdversarialTraining, Fit, LayerNorm, Vanilla
from fgai.reading import Reader, Reading, read
from fgai.tap import AttentionPoint, Tap

__version__ = "0.1.0"
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
    "adversary",
    "audit",
    "backbones",
    "certify",
    "compare",
    "datasets",
    "measure_faithfulness",
    "methods",
    "metrics",
    "plots",
    "read",
    "report",
    "saved",
    "scale",
]
