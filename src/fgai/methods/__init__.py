"""Ways to train a model: settings in the constructor, data in `fit`, a new model out."""

from fgai.methods.base import METHODS, Method
from fgai.methods.training import Epoch, Fit
from fgai.methods.vanilla import Vanilla

__all__ = ["METHODS", "Epoch", "Fit", "Method", "Vanilla"]
