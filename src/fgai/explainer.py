"""Attention as a PyG explanation: an edge mask on the input edges."""

from __future__ import annotations

from html import escape
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import Explanation
from torch_geometric.explain.algorithm import ExplainerAlgorithm

from fgai.checks import check_attention, check_graph
from fgai.errors import SettingError
from fgai.reading import open_reader


class AttentionExplanation(Explanation):
    """A PyG explanation that notebooks show as a table of its largest edges."""

    def _repr_html_(self, count: int = 10) -> str:
        mask, edges = self.get("edge_mask"), self.get("edge_index")
        if mask is None or edges is None:
            return f"<pre>{escape(repr(self))}</pre>"
        largest = mask.topk(min(count, mask.numel()))
        ends = zip(largest.values.tolist(), edges[:, largest.indices].t().tolist(), strict=True)
        rows = "".join(f"<tr><td>{s}</td><td>{t}</td><td>{weight:.4g}</td></tr>" for weight, (s, t) in ends)
        head = "<tr><th>source</th><th>target</th><th>attention</th></tr>"
        return f"<table>{head}{rows}</table><p>The {largest.values.numel()} largest of {mask.numel()} edges.</p>"


class AttentionExplainer(ExplainerAlgorithm):
    """An algorithm for `torch_geometric.explain.Explainer`: the attention of one layer, averaged over heads.

    Weights are matched edge by edge. The class of the same name in PyG truncates the rows of the layer to the number of
    input edges, which assigns weights to wrong edges if the graph has self-loops.

    Args:
        site: Name of the attention layer; by default the last one.

    >>> import torch
    >>> from torch_geometric.explain import Explainer
    >>> from torch_geometric.nn import GATConv
    >>> settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    >>> how = {"explanation_type": "model", "edge_mask_type": "object", "model_config": settings}
    >>> explain = Explainer(GATConv(3, 2), AttentionExplainer(), **how)
    >>> explain(torch.ones(2, 3), torch.tensor([[0, 1], [1, 1]])).edge_mask  # node 1 attends to 0 and to itself
    tensor([0.5000, 0.5000])
    """

    def __init__(self, site: str | None = None) -> None:
        super().__init__()
        self.site = site

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride], one kind of node and edge
        self, model: nn.Module, x: Tensor, edge_index: Tensor, *, target: Tensor, index: Any = None, **kwargs: Any
    ) -> Explanation:
        """Return the explanation of all nodes; `index` has no effect, since attention does not depend on it."""
        graph = Data(x=x, edge_index=edge_index)
        check_graph(graph)
        call = lambda net, _: net(x, edge_index, **kwargs)  # noqa: E731
        with open_reader(model, call) as read, torch.no_grad():
            reading = read(graph)  # without a check of the logits: a model for Explainer may return probabilities
        check_attention(reading.attention, type(model).__name__)
        if self.site is not None and self.site not in list(reading.attention):
            raise SettingError(f"no attention layer is called {self.site!r}; this model has {list(reading.attention)}")
        attention = reading.explanation if self.site is None else reading.attention[self.site]
        mask = attention.mean_heads().weights_at(edge_index, default=0.0)[:, 0]
        return AttentionExplanation(x=x, edge_index=edge_index, edge_mask=mask)

    def supports(self) -> bool:
        """Return whether the configuration is supported: attention gives edge masks only."""
        return self.explainer_config.node_mask_type is None
