"""Adversarial training: the labels are also learnt on an attacked graph."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from fgai.adversary import GAINS, Adversary, NodeInjection
from fgai.adversary.gains import two_columns
from fgai.graph import need
from fgai.methods.base import METHODS, Graphs
from fgai.methods.batches import Part, source
from fgai.methods.opponent import opposing
from fgai.methods.training import Fit, Schedule, Terms, train
from fgai.reading import Call, TrainingReader, by_name, eval_mode
from fgai.settings import check_positive, check_whole


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
    fresh: int = 4
    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 5e-4
    patience: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive(weight=self.weight)
        check_whole(1, fresh=self.fresh)
        _ = self.schedule  # it checks its settings

    @property
    def schedule(self) -> Schedule:
        """How long and how fast to train."""
        return Schedule(self.epochs, self.lr, self.weight_decay, self.patience, self.seed)

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model`; the given one is left as it was."""
        calling, graphs = call or by_name, source(data, "y", "train_mask")
        opponents = opposing(self.adversary, graphs, self.fresh)

        def terms(read: TrainingReader, part: Part) -> Terms:
            labels, known = need(part.graph, "y"), part.known("train_mask")
            said = read(part.graph)
            gain = GAINS["cross-entropy"](said.detach().of_first(part.seeds))
            with eval_mode(read.model):
                attacked = opponents[part.slot].meet(read, part, gain)
            label, hit = (
                nn.functional.cross_entropy(two_columns(reading)[known], labels[known]) for reading in (said, attacked)
            )
            return {"label": label, "attacked": self.weight * hit}

        return train(model, graphs, terms, calling, self.schedule, self, opponents=opponents, checkpoint=checkpoint)
