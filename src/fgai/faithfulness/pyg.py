"""The metrics of PyG for explanations: means over nodes, and scores against edges that are known to be true."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import Explainer
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.explain.metric import characterization_score, fidelity, groundtruth_metrics, unfaithfulness

from fgai.errors import DataError, MissingExtraError
from fgai.explainer import AttentionExplainer
from fgai.graph import require
from fgai.items import refuse_graphs
from fgai.settings import check_whole

TOP = 10  # edges of an explanation


@dataclass(frozen=True)
class PyGScores:
    """Means over nodes of `torch_geometric.explain.metric`."""

    fidelity_plus: float  # share of predictions that change without these edges; higher is better
    fidelity_minus: float  # share of predictions that change with only these edges; lower is better
    characterization: float  # the harmonic mean of fidelity_plus and 1 - fidelity_minus
    unfaithfulness: float  # 1 - exp(-KL) of the prediction with only these edges; lower is better
    nodes: int


def pyg_scores(
    model: nn.Module, data: Data, nodes: Tensor, explanation: str | ExplainerAlgorithm = "tree", top: int = TOP
) -> PyGScores:
    """Return PyG's fidelity, characterization score and unfaithfulness of the `top` edges of each node.

    Args:
        model: A model that takes `x` and `edge_index`.
        data: The graph.
        nodes: The nodes to explain, [n].
        explanation: A name of `fgai.explanations`, or any PyG algorithm.
        top: The number of edges of an explanation.

    Returns:
        The means over the nodes.

    >>> from torch_geometric.nn import GATConv
    >>> graph = Data(x=torch.eye(3), edge_index=torch.tensor([[0, 1], [1, 2]]))
    >>> pyg_scores(GATConv(3, 2), graph, torch.tensor([1, 2])).nodes
    2
    """
    check_whole(1, top=top)
    refuse_graphs(data, "`pyg_scores`", "give torch_geometric.explain.Explainer an fgai.AttentionExplainer()")
    x, edges = require(data, "x"), require(data, "edge_index")
    algorithm = AttentionExplainer(explanation) if isinstance(explanation, str) else explanation
    settings: Any = {
        "explanation_type": "model",
        "edge_mask_type": "object",
        "model_config": {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
        "threshold_config": ("topk_hard", min(top, edges.size(1))),
    }
    explainer = Explainer(model, algorithm, **settings)
    rows = []
    for node in nodes.tolist():
        explained: Any = explainer(x, edges, index=node)
        explained.index = torch.tensor([node], device=x.device)  # PyG's metrics expect a row, not a scalar
        rows.append((*fidelity(explainer, explained), unfaithfulness(explainer, explained)))
    plus, minus, unfaithful = torch.tensor(rows, dtype=torch.double).mean(0)
    score = characterization_score(plus, minus)
    return PyGScores(float(plus), float(minus), float(score), float(unfaithful), len(rows))


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
