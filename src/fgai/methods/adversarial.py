"""Adversarial training: the loss also counts the labels on an attacked graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from fgai.adversaries import GAINS, Adversary, GraphInjection, NodeInjection, check_adversary
from fgai.calling import Call
from fgai.methods.base import METHODS, Graphs, Method
from fgai.methods.bounded import BoundedInfluence
from fgai.methods.objective import MASK, label_loss
from fgai.modes import eval_mode
from fgai.reading import TrainingReader
from fgai.settings import check_positive, check_whole
from fgai.training.data import Batch, source
from fgai.training.loop import Fit, Schedule, Terms, train
from fgai.training.warm_start import warm_starts_for

BY_DEGREE = NodeInjection(nodes=20, edges=40, steps=3, step=0.2, adam=True, links="random-by-degree")


@METHODS.register("at")
@dataclass(frozen=True)
class AdversarialTraining(Method):
    """Cross-entropy on the clean graph, plus `weight` times cross-entropy on the graph that the adversary attacks.

    The preset `graphs` is for graph classification; `chosen-links` trains against links to nodes of high degree,
    and `bounded` also keeps the first attention layer bounded.

    Args:
        weight: Weight of the attacked graph. The released code uses 0.1; by default both graphs have the same weight.
        adversary: The attack, through the gradients of the model that is trained.
        restart_every: Steps after which a node injection draws new links and features.
        bounded: Whether to keep the first attention layer such that no features, however large, can drive its output
            far (`methods.bounded`).
        epochs: The largest number of epochs.
        lr: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
        patience: Training stops after so many epochs without a better validation score.
        seed: Random seed of dropout.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> method = AdversarialTraining(adversary=NodeInjection(2, 3, steps=1), epochs=2)
    >>> sorted(method.fit(backbones.build("gat", data), data).best.terms)
    ['attacked', 'label']
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "graphs": {"adversary": GraphInjection(steps=3)},
        "chosen-links": {"adversary": BY_DEGREE},
        "bounded": {"adversary": BY_DEGREE, "bounded": True, "lr": 0.03},
    }

    weight: float = 1.0
    adversary: Adversary = NodeInjection(nodes=20, edges=40, steps=3, step=0.1)
    restart_every: int = 4
    bounded: bool = False
    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 5e-4
    patience: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_adversary(self.adversary)
        check_positive(weight=self.weight)
        check_whole(1, restart_every=self.restart_every)
        _ = self.schedule  # checks its settings

    @property
    def schedule(self) -> Schedule:
        """Length, learning rate and seed of the training."""
        return Schedule(self.epochs, self.lr, self.weight_decay, self.patience, self.seed)

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model`; see `Method.fit`."""
        batches = source(data, "y", MASK)
        warm_starts = warm_starts_for(self.adversary, batches, self.restart_every)

        def terms(read: TrainingReader, batch: Batch) -> Terms:
            clean = read(batch.graph)
            gain = GAINS["cross-entropy"](clean.detach().head(batch.seed_nodes))
            with eval_mode(read.model):
                attacked = warm_starts[batch.position].attack(read, batch, gain)
            return {"label": label_loss(clean, batch), "attacked": self.weight * label_loss(attacked, batch)}

        return train(
            self,
            model,
            batches,
            terms,
            call=call,
            warm_starts=warm_starts,
            constraint=BoundedInfluence.of(model) if self.bounded else None,
            checkpoint=checkpoint,
        )
