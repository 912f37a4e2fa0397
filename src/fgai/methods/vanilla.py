"""Plain training: what every other method is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fgai.adversaries.gains import binary_logits
from fgai.calling import Call, call_by_signature
from fgai.graph import require
from fgai.methods.base import METHODS, Graphs
from fgai.reading import Reading, TrainingReader
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

        def terms(read: TrainingReader, part: Batch) -> Terms:
            known, labels = part.known("train_mask"), require(part.graph, "y")
            logits = binary_logits(Reading(read.logits(part.graph), {}))
            return {"label": nn.functional.cross_entropy(logits[known], labels[known])}

        graphs = source(data, "y", "train_mask")
        return train(model, graphs, terms, call or call_by_signature, self.schedule, self, checkpoint=checkpoint)
