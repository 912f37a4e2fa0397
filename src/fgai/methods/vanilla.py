"""Plain training: what every other method is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fgai.adversary.gains import two_columns
from fgai.graph import need
from fgai.methods.base import METHODS, Graphs
from fgai.methods.batches import Part, source
from fgai.methods.training import Fit, Schedule, Terms, train
from fgai.reading import Call, Reading, TrainingReader, by_name


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

    def __post_init__(self) -> None:
        _ = self.schedule  # it checks its settings

    @property
    def schedule(self) -> Schedule:
        """How long and how fast to train."""
        return Schedule(self.epochs, self.lr, self.weight_decay, self.patience, self.seed)

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model`; the given one is left as it was."""

        def terms(read: TrainingReader, part: Part) -> Terms:
            known, labels = part.known("train_mask"), need(part.graph, "y")
            logits = two_columns(Reading(read.logits(part.graph), {}))
            return {"label": nn.functional.cross_entropy(logits[known], labels[known])}

        graphs = source(data, "y", "train_mask")
        return train(model, graphs, terms, call or by_name, self.schedule, self, checkpoint=checkpoint)
