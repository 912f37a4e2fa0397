"""How good the answers are, and how far they moved."""

from __future__ import annotations

import math

from torch import Tensor

from fgai.checks import check_finite
from fgai.divergence import tvd
from fgai.reading import Reading


def micro_f1(logits: Tensor, y: Tensor) -> float:
    """Micro-averaged F1; with one label per node it is the share of nodes that are right.

    >>> import torch
    >>> micro_f1(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    0.5
    """
    check_finite("the answers", logits)
    return float((logits.argmax(-1) == y).cpu().double().mean())


def roc_auc(probs: Tensor, y: Tensor) -> float:
    """The area under the ROC curve: P(a positive scores above a negative), ties count half.

    With more than two classes the mean over classes of one against the rest. NaN where only one class is there.

    >>> import torch
    >>> roc_auc(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), torch.tensor([0, 1, 1]))
    1.0
    """
    check_finite("the answers", probs)
    classes = range(1, 2) if probs.size(1) == 2 else range(probs.size(1))
    probs, y = probs.cpu(), y.cpu()
    areas = [area for c in classes if not math.isnan(area := _area(probs[:, c].double(), y == c))]
    return sum(areas) / len(areas) if areas else math.nan


def _area(score: Tensor, positive: Tensor) -> float:
    """Mann and Whitney's statistic, from mid-ranks."""
    _, group, count = score.unique(return_inverse=True, return_counts=True)
    middle = (count.cumsum(0) - (count.double() - 1) / 2)[group]
    ups, downs = int(positive.sum()), int((~positive).sum())
    return float((middle[positive].sum() - ups * (ups + 1) / 2) / (ups * downs)) if ups and downs else math.nan


def g_tvd(clean: Reading, now: Reading) -> float:
    """How far the answers moved: 1/(2N) sum_i |y_i - y'_i|_1 over probabilities of the N original nodes.

    >>> import torch
    >>> a, b = Reading(torch.tensor([[9.0, -9.0]]), {}), Reading(torch.tensor([[-9.0, 9.0]]), {})
    >>> round(g_tvd(a, b), 4)
    1.0
    """
    return float(tvd(clean.probs, now.probs[: len(clean.probs)]).mean())
