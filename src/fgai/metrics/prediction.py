"""Metrics of the predictions: accuracy, and distance from the clean predictions."""

from __future__ import annotations

import math

from torch import Tensor

from fgai.checks import check_finite
from fgai.divergence import tvd
from fgai.reading import Reading


def micro_f1(logits: Tensor, y: Tensor) -> float:
    """Compute micro-averaged F1; with one label per node, this is the accuracy.

    Args:
        logits: Logits or probabilities, [N, C].
        y: Labels, [N].

    Returns:
        The share of correct predictions.

    >>> import torch
    >>> micro_f1(torch.tensor([[2.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    0.5
    """
    check_finite("the predictions", logits)
    return float((logits.argmax(-1) == y).cpu().double().mean())


def roc_auc(probs: Tensor, y: Tensor) -> float:
    """Compute the area under the ROC curve: P(a positive scores above a negative), where ties count half.

    With more than two classes, this is the mean over classes of one-versus-rest areas.

    Args:
        probs: Probabilities, [N, C].
        y: Labels, [N].

    Returns:
        The area; NaN if only one class is present.

    >>> import torch
    >>> roc_auc(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), torch.tensor([0, 1, 1]))
    1.0
    """
    check_finite("the predictions", probs)
    classes = range(1, 2) if probs.size(1) == 2 else range(probs.size(1))
    probs, y = probs.cpu(), y.cpu()
    areas = [area for c in classes if not math.isnan(area := _area(probs[:, c].double(), y == c))]
    return sum(areas) / len(areas) if areas else math.nan


def _area(score: Tensor, positive: Tensor) -> float:
    """Compute the Mann-Whitney statistic from mid-ranks."""
    _, group, count = score.unique(return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count.double() - 1) / 2)[group]
    p, n = int(positive.sum()), int((~positive).sum())
    return float((rank[positive].sum() - p * (p + 1) / 2) / (p * n)) if p and n else math.nan


def g_tvd(clean: Reading, now: Reading) -> float:
    """Compute g-TVD: 1/(2N) sum_i |y_i - y'_i|_1 over the probabilities of the N original nodes.

    Args:
        clean: Reading of the clean graph, with N nodes.
        now: Reading of the clean or attacked graph; only its first N nodes count.

    Returns:
        The mean distance, from 0 to 1.

    >>> import torch
    >>> a, b = Reading(torch.tensor([[9.0, -9.0]]), {}), Reading(torch.tensor([[-9.0, 9.0]]), {})
    >>> round(g_tvd(a, b), 4)
    1.0
    """
    return float(tvd(clean.probs, now.probs[: len(clean.probs)]).mean())
