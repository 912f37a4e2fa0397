"""Plain training, the baseline of all other methods."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fgai.calling import Call
from fgai.methods.base import METHODS, Graphs, Method
from fgai.methods.objective import MASK, label_loss
from fgai.reading import Reading, TrainingReader
from fgai.training.data import Batch, source
from fgai.training.loop import Fit, Schedule, Terms, train


@METHODS.register("vanilla")
@dataclass(frozen=True)
class Vanilla(Method):
    """Cross-entropy on the training nodes.

    Args:
        epochs: The largest number of epochs.
        lr: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
        patience: Training stops after so many epochs without a better validation score.
        seed: Random seed of dropout.

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

    def __post_init__(self) -> None:
        _ = self.schedule  # checks its settings

    @property
    def schedule(self) -> Schedule:
        """Length, learning rate and seed of the training."""
        return Schedule(self.epochs, self.lr, self.weight_decay, self.patience, self.seed)

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model`; see `Method.fit`."""

        def terms(read: TrainingReader, batch: Batch) -> Terms:
            return {"label": label_loss(Reading(read.logits(batch.graph), {}), batch)}

        return train(self, model, source(data, "y", MASK), terms, call=call, checkpoint=checkpoint)
