"""Metrics that sum over batches and ranks: torchmetrics classes over our own functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fgai.errors import MissingExtraError, UnknownNameError
from fgai.metrics import METRICS, Trial

try:
    from torchmetrics import Metric
except ImportError as error:
    raise MissingExtraError(
        "metrics over batches and ranks need torchmetrics; install it with: pip install 'fgai[metrics]'"
    ) from error

WEIGHTS: Mapping[str, Callable[[Trial], Tensor]] = {  # what each metric is a mean over
    "f1": lambda trial: trial.judged.sum(),
    "g_tvd": lambda trial: torch.tensor(len(trial.y)),
    "g_jsd": lambda trial: torch.tensor(trial.clean.explanation.coalesce().edge_index.size(1)),
    "overlap": lambda trial: (trial.clean.explanation.degree > 0).sum(),
    "nonuniformity": lambda trial: torch.tensor(len(trial.y)),
    "entropy": lambda trial: (trial.clean.explanation.degree > 1).sum(),
}


class Streamed(Metric):
    """A metric of `fgai ls` that is a mean over nodes or edges, of the trials of all batches and ranks.

    `update` takes the trial of a batch; `compute` is what the whole graph would give.

    >>> from fgai import backbones, datasets
    >>> from fgai.audit.trial import calm
    >>> from fgai.reading import Reader
    >>> data = datasets.load("synthetic")
    >>> metric = Streamed("nonuniformity")
    >>> metric.update(calm(Reader(backbones.build("gat", data).eval()), data))
    >>> 0 < metric.compute() < 2
    tensor(True)
    """

    full_state_update = False
    total: Tensor
    weight: Tensor

    def __init__(self, name: str) -> None:
        super().__init__()
        if name not in WEIGHTS:
            raise UnknownNameError(f"{name!r} is no mean over nodes or edges; these stream: {', '.join(WEIGHTS)}")
        self.name = name
        self.add_state("total", torch.zeros((), dtype=torch.double), "sum")
        self.add_state("weight", torch.zeros((), dtype=torch.double), "sum")

    def update(self, trial: Trial) -> None:
        """Count a batch."""
        weight = float(WEIGHTS[self.name](trial))
        if weight > 0:
            self.total += METRICS[self.name].compute(trial) * weight
            self.weight += weight

    def compute(self) -> Tensor:
        """The mean over all that was counted."""
        return self.total / self.weight
