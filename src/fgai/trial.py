"""A trial: a model on a graph as it is, or after an adversary has been at it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries import GAINS, Adversary, AttackResult
from fgai.checks import check_answers, check_attention, check_labels, one_graph
from fgai.errors import DataError
from fgai.metrics import METRICS, Trial
from fgai.reading import Reader, Reading, in_words


def clean_trial(read: Reader, data: Data) -> Trial:
    """The model on the clean graph, checked, judged on `data.test_mask` or on all nodes.

    Without `data.y` the model's own clean answers are the labels.
    """
    data = one_graph(data, masks=("test_mask",))
    clean = read.checked(data)
    labels, eval_mask = data.get("y"), data.get("test_mask")
    labels = _answers(clean) if labels is None else labels
    eval_mask = _everyone(clean) if eval_mask is None else eval_mask
    if not eval_mask.any() or (labels[eval_mask] < 0).any():
        raise DataError(
            f"`test_mask` judges {int(eval_mask.sum())} nodes, and `y` has no label of {int((labels[eval_mask] < 0).sum())}; "
            "give a mask of nodes that have one, or leave `y` out and the model's own answers are the labels"
        )
    check_labels(labels[eval_mask], clean.probs.size(1))
    return Trial(read, data, clean, clean, labels, eval_mask)


def attacked_trial(adversary: Adversary, gain: str, trial: Trial, seed: int) -> Trial:
    """The same model after the adversary, with this seed, has made `gain` large; its gradients lead the attack."""
    seeded: Any = replace(adversary, seed=seed)  # pyright: ignore[reportArgumentType], adversaries are dataclasses
    model = trial.read.model
    with in_words(model, trial.graph):
        now: AttackResult = seeded(trial.read, trial.graph, GAINS[gain](trial.clean)).detach()
    check_answers(now.logits, type(model).__name__, on="the attacked graph")
    check_attention(now.attention, type(model).__name__, on="the attacked graph")
    return replace(trial, graph=now.graph, now=now)


def measure(trial: Trial) -> dict[str, float]:
    """Every registered metric of a trial."""
    return {name: metric.compute(trial) for name, metric in METRICS.items()}


def _answers(clean: Reading) -> Tensor:
    return clean.probs.argmax(-1)


def _everyone(clean: Reading) -> Tensor:
    return torch.ones(len(clean.logits), dtype=torch.bool, device=clean.logits.device)
