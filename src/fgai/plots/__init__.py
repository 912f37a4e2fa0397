"""Figures, with matplotlib (`pip install 'fgai[plots]'`): one function each, on what the library returns."""

from fgai.plots.certified import certified_curves

__all__ = ["certified_curves"]
