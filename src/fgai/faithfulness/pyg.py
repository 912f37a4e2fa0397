"""The metrics of PyG for explanations, averaged over nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import Explainer
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.explain.metric import characterization_score, fidelity, unfaithfulness

from fgai.explainer import AttentionExplainer
from fgai.graph import require
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
