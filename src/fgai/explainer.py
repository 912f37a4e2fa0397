"""Attention as a normal PyG explanation: an edge mask that lies on the input edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import Explanation
from torch_geometric.explain.algorithm import ExplainerAlgorithm

from fgai.attention import Attention
from fgai.explanations import AttentionExplanation, Attribution
from fgai.graph import segment_sum
from fgai.reading import Reader, eval_mode


class AttentionExplainer(ExplainerAlgorithm):
    """For `torch_geometric.explain.Explainer`: an explanation by name, matched edge by edge.

    `explanation` is one of `fgai.explanations.EXPLANATIONS` or `layer:NAME`. With an `index` only edges that count for
    those nodes are marked: under `tree` their computation graph, under `last` the edges into them. Without an index
    each edge has its sum over all nodes. PyG's own class of this name cuts the layer's rows to the number of input
    edges, which puts weights at the wrong edges where the graph has self-loops.

    >>> from torch_geometric.explain import Explainer
    >>> from torch_geometric.nn import GATConv
    >>> settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    >>> how = {"explanation_type": "model", "edge_mask_type": "object", "model_config": settings}
    >>> explain = Explainer(GATConv(3, 2), AttentionExplainer(), **how)
    >>> path = torch.ones(3, 3), torch.tensor([[0, 1, 1], [1, 1, 2]])
    >>> explain(*path).edge_mask  # nodes 1 and 2 look at the one before and at themselves
    tensor([0.5000, 0.5000, 0.5000])
    >>> explain(*path, index=1).edge_mask
    tensor([0.5000, 0.5000, 0.0000])
    """

    def __init__(self, explanation: str = "tree") -> None:
        super().__init__()
        self.explanation = explanation

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride], one kind of node and edge
        self, model: nn.Module, x: Tensor, edge_index: Tensor, *, target: Tensor, index: Any = None, **kwargs: Any
    ) -> Explanation:
        """The weights of the edges that count for the nodes `index`, or for all."""
        graph = Data(x=x, edge_index=edge_index)
        read = Reader(model, call=lambda net, _: net(x, edge_index, **kwargs))
        with eval_mode(model):
            with torch.no_grad():
                reading = read(graph)
            attribution = reading.attribution(self.explanation, read=read, graph=graph)
        mask = _weights(attribution, index).weights_at(edge_index, default=0.0)[:, 0]
        return AttentionExplanation(x=x, edge_index=edge_index, edge_mask=mask.to(x.dtype))

    def supports(self) -> bool:
        """Edge masks are all that attention can give."""
        return self.explainer_config.node_mask_type is None


def _weights(attribution: Attribution, index: Any) -> Attention:
    """What each edge counts for these nodes together, in the form of attention."""
    if index is None:
        weight = attribution.total()
    else:
        nodes = torch.arange(attribution.num_nodes, device=attribution.edge_index.device)[index]
        rows = attribution.of_nodes(nodes)
        weight = segment_sum(rows.weight, rows.edge, attribution.edge_index.size(1))
    return Attention(weight[:, None], attribution.edge_index, attribution.num_nodes)
