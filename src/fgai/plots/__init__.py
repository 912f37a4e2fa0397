"""Figures with matplotlib (`pip install 'fgai[plots]'`), from what `audit`, `fit` and `bench` return."""

from fgai.plots.canvas import format_of, save
from fgai.plots.curves import certified_curves, f_curves, loss_terms
from fgai.plots.neighbourhoods import attention_maps, stars

__all__ = ["attention_maps", "certified_curves", "f_curves", "format_of", "loss_terms", "save", "stars"]
