"""Attention as a PyG explanation: an edge mask on the input edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.explain import Explanation, HeteroExplanation
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.explain.config import ModelTaskLevel

from fgai.attention import Attention
from fgai.calling import Call, along_messages
from fgai.checks import check_attention, check_graph
from fgai.errors import SettingError
from fgai.explanations import AttentionExplanation, Attribution, hetero_explanation, resolve
from fgai.graph import require, segment_sum
from fgai.reading import open_reader
from fgai.typed import join


class AttentionExplainer(ExplainerAlgorithm):
    """An algorithm for `torch_geometric.explain.Explainer`: an attention explanation by name.

    With an `index`, the mask holds the weights of the edges that count for these nodes: their computation graph for
    `tree`, the edges into them for `last`. Without one, it holds the sum over all nodes. If the model classifies graphs
    (`task_level="graph"`), an `index` is a graph of `batch`. For features and edges by type, the result is a
    `HeteroExplanation`, with a mask for each relation.

    Weights are matched edge by edge. The class of the same name in PyG truncates the rows of the layer to the number of
    input edges, which assigns weights to wrong edges if the graph has self-loops.

    Args:
        explanation: One of `fgai.explanations.EXPLANATIONS`, or `layer:NAME`.
        answer: The type of the nodes that the model answers for; by default, the type with as many nodes as answers.

    Raises:
        UnknownNameError: No explanation has this name.

    >>> from torch_geometric.explain import Explainer
    >>> from torch_geometric.nn import GATConv
    >>> settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    >>> how = {"explanation_type": "model", "edge_mask_type": "object", "model_config": settings}
    >>> explain = Explainer(GATConv(3, 2), AttentionExplainer(), **how)
    >>> path = torch.ones(3, 3), torch.tensor([[0, 1, 1], [1, 1, 2]])
    >>> explain(*path).edge_mask  # nodes 1 and 2 attend to their predecessor and to themselves
    tensor([0.5000, 0.5000, 0.5000])
    >>> explain(*path, index=1).edge_mask
    tensor([0.5000, 0.5000, 0.0000])
    """

    def __init__(self, explanation: str = "tree", answer: str | None = None) -> None:
        super().__init__()
        resolve(explanation)  # raises if the name is unknown
        self.explanation, self.answer = explanation, answer

    def forward(
        self, model: nn.Module, x: Any, edge_index: Any, *, target: Tensor, index: Any = None, **kwargs: Any
    ) -> Explanation | HeteroExplanation:
        """Return the explanation of the nodes `index`, or of all nodes together."""
        if isinstance(x, dict):
            data = self._typed(x, edge_index, len(target))
            graph = join(data)
            call = lambda net, given: net(given.x_dict, given.edge_index_dict, **kwargs)  # noqa: E731
            return hetero_explanation(data, self._mask(model, graph, call, index, None))
        graph = Data(x=x, edge_index=edge_index)
        call = lambda net, given: net(given.x, edge_index, **kwargs)  # noqa: E731
        mask = self._mask(model, graph, call, index, kwargs.get("batch"))
        return AttentionExplanation(x=x, edge_index=edge_index, edge_mask=mask)

    def _mask(self, model: nn.Module, graph: Data, call: Call, index: Any, batch: Tensor | None) -> Tensor:
        """Return the weight of each edge of the graph; [E]."""
        check_graph(graph)
        graph, _ = along_messages(model, graph, explanation=self.explanation)  # `call` has its own edges
        edges = require(graph, "edge_index")
        with open_reader(model, call) as read:
            reading = read.marked(graph)  # not checked: a model for Explainer may return probabilities
            check_attention(reading.attention, type(model).__name__)
            attribution = reading.attribution(self.explanation, read=read, graph=graph)
        weight = _weights(attribution, self._nodes(index, batch))
        mask = weight.weights_at(edges.to(weight.edge_index.device), default=0.0)[:, 0]
        return mask.to(require(graph, "x").dtype).to(edges.device)  # in this order: mps has no float64

    def _typed(self, x: dict[str, Tensor], edge_index: dict[Any, Tensor], rows: int) -> HeteroData:
        """Return the typed graph, with the type that the model answers for."""
        data = HeteroData()
        for name, features in x.items():
            data[name].x = features
        for relation, edges in edge_index.items():
            data[relation].edge_index = edges
        fitting = [name for name, features in x.items() if len(features) == rows]
        if self.answer is None and len(fitting) != 1:
            raise SettingError(
                f"the model answers for {rows} nodes, and the types {fitting or list(x)} do not say which; name "
                "the type: AttentionExplainer(answer=...)"
            )
        data.answer = self.answer or fitting[0]
        return data

    def _nodes(self, index: Any, batch: Tensor | None) -> Any:
        """Return the nodes to explain: `index`, or the nodes of these graphs if the model classifies graphs."""
        if index is None or self.model_config.task_level != ModelTaskLevel.graph:
            return index
        return None if batch is None else torch.isin(batch, torch.as_tensor(index, device=batch.device))

    def supports(self) -> bool:
        """Return whether the configuration is supported: attention gives edge masks only."""
        return self.explainer_config.node_mask_type is None


def _weights(attribution: Attribution, index: Any) -> Attention:
    """Return the weight of each edge for these nodes together, as attention."""
    if index is None:
        weight = attribution.total()
    else:
        device = attribution.edge_index.device
        index = index.to(device) if isinstance(index, Tensor) else index
        rows = attribution.of_nodes(torch.arange(attribution.num_nodes, device=device)[index])
        weight = segment_sum(rows.weight, rows.edge, attribution.edge_index.size(1))
    return Attention(weight[:, None], attribution.edge_index, attribution.num_nodes)
