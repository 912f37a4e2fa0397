"""Plain training: what every other method is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fgai.graph import require
from fgai.methods.base import METHODS, Graphs
from fgai.reading import Call, call_by_signature
from fgai.training.data import Batch, source
from fgai.training.loop import Fit, Schedule, Terms, train


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
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model`; the given one is left as it was."""
        calling = call or call_by_signature
        schedule = Schedule(self.epochs, self.lr, self.weight_decay, self.patience, self.seed)

        def terms(model: nn.Module, part: Batch) -> Terms:
            known, labels = part.known("train_mask"), require(part.graph, "y")
            return {"label": nn.functional.cross_entropy(calling(model, part.graph)[known], labels[known])}

        return train(model, source(data), terms, calling, schedule, self, checkpoint=checkpoint)
