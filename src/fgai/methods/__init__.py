"""Training methods: settings in the constructor, data in `fit`, which returns a new model."""

from fgai.methods.adversarial import AdversarialTraining
from fgai.methods.base import METHODS, Graphs, Method
from fgai.methods.defences import GNNSVD, GNNGuard, ProGNN
from fgai.methods.fgai import FGAI
from fgai.methods.layernorm import LayerNorm
from fgai.methods.vanilla import Vanilla
from fgai.training.data import Batches
from fgai.training.history import Epoch
from fgai.training.loop import Fit

__all__ = [
    "FGAI",
    "GNNSVD",
    "METHODS",
    "AdversarialTraining",
    "Batches",
    "Epoch",
    "Fit",
    "GNNGuard",
    "Graphs",
    "LayerNorm",
    "Method",
    "ProGNN",
    "Vanilla",
]
