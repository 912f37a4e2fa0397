"""Ways to train a model: settings in the constructor, data in `fit`, a new model out."""

from fgai.methods.adversarial import AdversarialTraining
from fgai.methods.base import METHODS, Method
from fgai.methods.batches import Batches
from fgai.methods.fgai import FGAI
from fgai.methods.layernorm import LayerNorm
from fgai.methods.purified import GNNSVD, GNNGuard, ProGNN
from fgai.methods.training import Epoch, Fit
from fgai.methods.vanilla import Vanilla

__all__ = [
    "FGAI",
    "GNNSVD",
    "METHODS",
    "AdversarialTraining",
    "Batches",
    "Epoch",
    "Fit",
    "GNNGuard",
    "LayerNorm",
    "Method",
    "ProGNN",
    "Vanilla",
]
