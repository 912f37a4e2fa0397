"""Figures from what `audit`, `fit` and `bench` return. Those of matplotlib need `pip install 'fgai[plots]'`."""

from fgai.plots.before_after import before_after
from fgai.plots.canvas import format_of, save
from fgai.plots.curves import certified_curves, f_curves, loss_terms
from fgai.plots.molecules import molecules
from fgai.plots.neighbourhoods import attention_maps, stars

__all__ = [
    "attention_maps",
    "before_after",
    "certified_curves",
    "f_curves",
    "format_of",
    "loss_terms",
    "molecules",
    "save",
    "stars",
]
