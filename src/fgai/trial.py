"""A trial: a model on a graph as it is, or after an adversary has been at it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries import GAINS, Adversary, AttackResult
from fgai.attention import Attention
from fgai.calling import call_errors
from fgai.checks import check_attention, check_labels, check_logits, one_graph
from fgai.deletion import Among, First, f_curve, f_slope
from fgai.errors import DataError
from fgai.reading import Reader, Reading


@dataclass(frozen=True)
class Trial:
    """A model on a graph that may have been attacked, beside the same model on the clean one."""

    read: Reader
    graph: Data  # as it is now
    clean: Reading
    now: Reading
    y: Tensor  # [N], labels of the original nodes, or of the pairs that a model of links answers for
    eval_mask: Tensor  # [N], mask of those that count

    @property
    def predictions(self) -> Tensor:
        """The distributions predicted now, on the judged nodes; [J, C]."""
        return self.now.probs[: len(self.y)][self.eval_mask]

    @property
    def labels(self) -> Tensor:
        """The labels of the judged nodes; [J]."""
        return self.y[self.eval_mask]

    @property
    def correct(self) -> Tensor:
        """The judged nodes that were right on the clean graph; [N]."""
        return self.eval_mask & (self.clean.probs.argmax(-1) == self.y)

    @cached_property
    def curves(self) -> dict[First, list[float]]:
        """F(r) of the explanation now, deleting the most (F+) or the least (F-) attended edges first."""
        firsts: tuple[First, ...] = ("most", "least")
        return {f: f_curve(self.read, self.graph, self.now.explanation, self.y, self.correct, f) for f in firsts}


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
            f"`test_mask` holds {int(eval_mask.sum())} nodes, and {int((labels[eval_mask] < 0).sum())} of them have no "
            "label in `y`; give a mask of labelled nodes, or leave `y` out: the model's clean predictions are then the "
            "labels"
        )
    check_labels(labels[eval_mask], clean.probs.size(1))
    return Trial(read, data, clean, clean, labels, eval_mask)


def attacked_trial(adversary: Adversary, gain: str, trial: Trial, seed: int) -> Trial:
    """The same model after the adversary, with this seed, has made `gain` large; its gradients lead the attack."""
    seeded: Any = replace(adversary, seed=seed)  # pyright: ignore[reportArgumentType], adversaries are dataclasses
    model = trial.read.model
    with call_errors(model, trial.graph):
        now: AttackResult = seeded(trial.read, trial.graph, GAINS[gain](trial.clean)).detach()
    check_logits(now.logits, type(model).__name__, on="the attacked graph")
    check_attention(now.attention, type(model).__name__, on="the attacked graph")
    return replace(trial, graph=now.graph, now=now)


def deletion_slope(trial: Trial, explanation: Attention, first: First, among: Among = "graph") -> float:
    """The F-slope of any explanation of the trial's graph."""
    return f_slope(f_curve(trial.read, trial.graph, explanation, trial.y, trial.correct, first, among))


def _answers(clean: Reading) -> Tensor:
    return clean.probs.argmax(-1)


def _everyone(clean: Reading) -> Tensor:
    return torch.ones(len(clean.logits), dtype=torch.bool, device=clean.logits.device)
