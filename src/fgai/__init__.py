"""fgai: how far the attention of a graph neural network can be trusted, and a method that makes it trustworthy."""

from fgai import backbones, datasets, methods, metrics
from fgai.attention import Attention
from fgai.errors import FGAIError
from fgai.methods import Fit, Vanilla
from fgai.reading import Reader, Reading, read
from fgai.tap import AttentionPoint, Tap

__version__ = "0.1.0"
__all__ = [
    "Attention",
    "AttentionPoint",
    "FGAIError",
    "Fit",
    "Reader",
    "Reading",
    "Tap",
    "Vanilla",
    "__version__",
    "backbones",
    "datasets",
    "methods",
    "metrics",
    "read",
]
