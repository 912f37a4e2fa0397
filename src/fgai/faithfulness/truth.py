"""Comparison of an explanation with the true edges, for graphs where these are known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.explain.metric import groundtruth_metrics

from fgai.errors import DataError, MissingExtraError


@dataclass(frozen=True)
class TruthScores:
    """Accuracy of a ranking of edges."""

    auroc: float  # 0.5 for a random ranking
    precision: float  # share of true edges among the first n, where n is their number


def truth_scores(mask: Tensor, true: Tensor, seed: int = 0) -> TruthScores:
    """Return the AUROC of an edge mask and its precision at the number of true edges.

    Both are computed by `torch_geometric.explain.metric.groundtruth_metrics`.

    Args:
        mask: The weights of the edges, [E].
        true: Which edges are true, [E], bool.
        seed: Random seed that breaks ties of the precision.

    Returns:
        AUROC and precision.

    Raises:
        DataError: All edges are true, or none is.

    >>> truth_scores(torch.tensor([0.9, 0.1, 0.5]), torch.tensor([True, False, False]))
    TruthScores(auroc=1.0, precision=1.0)
    """
    mask, true = mask.detach().cpu(), true.cpu()
    count = int(true.sum())
    if not 0 < count < len(true):
        raise DataError(f"{count} of {len(true)} edges are true; give a mask with edges of both kinds")
    order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(seed))
    first = order[mask[order].argsort(descending=True, stable=True)[:count]]
    chosen = torch.zeros(len(mask)).index_fill_(0, first, 1.0)
    low, high = mask.min(), mask.max()
    scaled = (mask - low) / (high - low).clamp(min=torch.finfo(mask.dtype).tiny)  # AUROC needs values in [0, 1]
    try:
        auroc = groundtruth_metrics(scaled, true, "auroc")
        precision = groundtruth_metrics(chosen, true, "precision")
    except ImportError as error:
        raise MissingExtraError(
            "PyG's metrics need torchmetrics; install it with: pip install 'fgai[metrics]'"
        ) from error
    return TruthScores(float(auroc), float(precision))  # pyright: ignore[reportArgumentType], one metric is one number
