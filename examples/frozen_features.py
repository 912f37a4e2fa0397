"""A method of your own in one file: it trains only the last layer. Name it in a plan, and it is in the table.

fgai bench my-plan.toml --import frozen_features
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fgai.methods import METHODS, Fit, Graphs, Method, Vanilla
from fgai.reading import Call


@METHODS.register("frozen-features")
@dataclass(frozen=True)
class FrozenFeatures(Method):
    """Plain training of the last layer; the others stay as they were drawn."""

    epochs: int = 200
    seed: int = 0

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model`; the given one is left as it was."""
        model = copy.deepcopy(model)
        *early, _ = model.children()
        for layer in early:
            layer.requires_grad_(False)
        return Vanilla(epochs=self.epochs, seed=self.seed).fit(model, data, call=call, checkpoint=checkpoint)
