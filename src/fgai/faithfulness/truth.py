"""An explanation beside the true reasons, where these are known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.explain.metric import groundtruth_metrics

from fgai.errors import DataError, MissingExtraError


@dataclass(frozen=True)
class TruthScores:
    """How well a ranking of edges finds the true ones."""

    auroc: float  # 0.5 by chance
    precision: float  # the share of true ones among the first n, where n is their number


def truth_scores(mask: Tensor, true: Tensor, seed: int = 0) -> TruthScores:
    """AUROC of an edge mask, and its precision at the number of true edges, by PyG's `groundtruth_metrics`.

    Ties of the ranking are broken at random by `seed`.

    >>> truth_scores(torch.tensor([0.9, 0.1, 0.5]), torch.tensor([True, False, False]))
    TruthScores(auroc=1.0, precision=1.0)
    """
    count = int(true.sum())
    if not 0 < count < len(true):
        raise DataError(f"{count} of {len(true)} edges are true; a ranking needs edges of both kinds")
    order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(seed))
    first = order[mask[order].argsort(descending=True, stable=True)[:count]]
    chosen = torch.zeros(len(mask)).index_fill_(0, first, 1.0)
    low, high = mask.min(), mask.max()
    scaled = (mask - low) / (high - low).clamp(min=torch.finfo(mask.dtype).tiny)  # AUROC asks for values in [0, 1]
    try:
        auroc = groundtruth_metrics(scaled, true, "auroc")
        precision = groundtruth_metrics(chosen, true, "precision")
    except ImportError as error:
        raise MissingExtraError(
            "PyG's measures need torchmetrics; install it with: pip install 'fgai[metrics]'"
        ) from error
    return TruthScores(float(auroc), float(precision))  # pyright: ignore[reportArgumentType], one metric is one number
