"""Adversarial training: the labels are also learnt on an attacked graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fgai.adversaries import GAINS, Adversary, NodeInjection
from fgai.adversaries.gains import binary_logits
from fgai.calling import Call, call_by_signature, eval_mode
from fgai.graph import require
from fgai.methods.base import METHODS, Graphs
from fgai.reading import TrainingReader
from fgai.settings import check_positive, check_whole
from fgai.training.data import Batch, source
from fgai.training.loop import Fit, Schedule, Terms, train
from fgai.training.warm_start import warm_starts_for


@METHODS.register("at")
@dataclass(frozen=True)
class AdversarialTraining:
    """Cross-entropy on the clean graph, and `weight` times on one that an adversary attacks through this model.

    The released code has weight 0.1; the default gives both graphs the same say.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> method = AdversarialTraining(adversary=NodeInjection(2, 3, steps=1), epochs=2)
    >>> sorted(method.fit(backbones.build("gat", data), data).best.terms)
    ['attacked', 'label']
    """

    weight: float = 1.0
    adversary: Adversary = NodeInjection(nodes=20, edges=40, steps=3, step=0.1)
    restart_every: int = 4
    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 5e-4
    patience: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(weight=self.weight)
        check_whole(1, restart_every=self.restart_every)
        _ = self.schedule  # it checks its settings

    @property
    def schedule(self) -> Schedule:
        """How long and how fast to train."""
        return Schedule(self.epochs, self.lr, self.weight_decay, self.patience, self.seed)

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model`; the given one is left as it was."""
        calling, graphs = call or call_by_signature, source(data, "y", "train_mask")
        warm_starts = warm_starts_for(self.adversary, graphs, self.restart_every)

        def terms(read: TrainingReader, part: Batch) -> Terms:
            labels, known = require(part.graph, "y"), part.known("train_mask")
            said = read(part.graph)
            gain = GAINS["cross-entropy"](said.detach().head(part.seed_nodes))
            with eval_mode(read.model):
                attacked = warm_starts[part.position].attack(read, part, gain)
            label, hit = (
                nn.functional.cross_entropy(binary_logits(reading)[known], labels[known])
                for reading in (said, attacked)
            )
            return {"label": label, "attacked": self.weight * hit}

        return train(model, graphs, terms, calling, self.schedule, self, warm_starts=warm_starts, checkpoint=checkpoint)
