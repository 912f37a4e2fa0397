"""Plain training: what every other method is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch_geometric.data import Data

from fgai.graph import need
from fgai.methods.base import METHODS
from fgai.methods.training import Fit, Schedule, Terms, train
from fgai.reading import Call, by_name


@METHODS.register("vanilla")
@dataclass(frozen=True)
class Vanilla:
    """Cross-entropy on the training nodes, nothing else.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> fit = Vanilla(epochs=3).fit(backbones.build("gat", data), data)
    >>> len(fit.history)
    3
    """

    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 5e-4
    patience: int = 100
    seed: int = 0

    def fit(
        self, model: nn.Module, data: Data, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model`; the given one is left as it was."""
        call, labels, known = call or by_name, need(data, "y"), need(data, "train_mask")
        schedule = Schedule(self.epochs, self.lr, self.weight_decay, self.patience, self.seed)

        def terms(model: nn.Module, _: int) -> Terms:
            return {"label": nn.functional.cross_entropy(call(model, data)[known], labels[known])}

        return train(model, data, terms, call, schedule, "vanilla", checkpoint=checkpoint)
