"""Metrics that are summed over batches and ranks, as torchmetrics classes. Needs the extra `metrics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fgai.errors import MissingExtraError, UnknownNameError
from fgai.metrics import METRICS
from fgai.trial import Trial

try:
    from torchmetrics import Metric
except ImportError as error:
    raise MissingExtraError(
        "metrics over batches and ranks need torchmetrics; install it with: pip install 'fgai[metrics]'"
    ) from error

WEIGHTS: Mapping[str, Callable[[Trial], Tensor]] = {  # the number of items that each metric averages
    "f1": lambda trial: trial.eval_mask.sum(),
    "g_tvd": lambda trial: torch.tensor(len(trial.y)),
    "g_jsd": lambda trial: torch.tensor(trial.clean.explanation.coalesce().edge_index.size(1)),
    "overlap": lambda trial: (trial.clean.explanation.degree > 0).sum(),
    "nonuniformity": lambda trial: torch.tensor(len(trial.y)),
    "entropy": lambda trial: (trial.clean.explanation.degree > 1).sum(),
}


class Streamed(Metric):
    """A metric that is a mean over nodes or edges, accumulated over the batches of all ranks.

    `update` takes the trial of a batch; `compute` returns the metric of the full graph.

    >>> from fgai import backbones, datasets
    >>> from fgai.trial import clean_trial
    >>> from fgai.reading import Reader
    >>> data = datasets.load("synthetic")
    >>> metric = Streamed("nonuniformity")
    >>> metric.update(clean_trial(Reader(backbones.build("gat", data).eval()), data))
    >>> 0 < metric.compute() < 2
    tensor(True)
    """

    full_state_update = False
    total: Tensor
    weight: Tensor

    def __init__(self, name: str) -> None:
        super().__init__()
        if name not in WEIGHTS:
            raise UnknownNameError(f"{name!r} is not a mean over nodes or edges; there is {', '.join(WEIGHTS)}")
        self.name = name
        self.add_state("total", torch.zeros((), dtype=torch.double), "sum")
        self.add_state("weight", torch.zeros((), dtype=torch.double), "sum")

    def update(self, trial: Trial) -> None:
        """Add a batch."""
        weight = float(WEIGHTS[self.name](trial))
        if weight > 0:
            self.total += METRICS[self.name].compute(trial) * weight
            self.weight += weight

    def compute(self) -> Tensor:
        """Return the mean over all batches and ranks."""
        return self.total / self.weight
