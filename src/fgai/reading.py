"""A `Reading` is what a model says and where it looked on one graph. This is the only module that calls a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from fgai.acceleration import accelerated
from fgai.attention import Attention
from fgai.errors import CallError
from fgai.explanations import Attribution, Edge, Explanation, NodeExplanation, explain_node, resolve
from fgai.tap import NOTHING, Deltas, Edit, Tap

Graph = Data | HeteroData
Call = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Reading:
    """What a model says (`logits`) and where it looked (`attention`, by site, in the order in which it acted)."""

    logits: Tensor  # [N, C]; one column, or none, is a binary answer
    attention: Mapping[str, Attention]

    @property
    def probs(self) -> Tensor:
        """The predicted distribution over classes; a single logit is the sigmoid's; [N, C]."""
        if self.logits.dim() == 1 or self.logits.size(1) == 1:
            yes = self.logits.reshape(-1, 1).sigmoid()
            return torch.cat([1 - yes, yes], dim=1)
        return self.logits.softmax(-1)

    @property
    def explanation(self) -> Attention:
        """The attention of the last site: what the paper calls the explanation."""
        return self.attention[next(reversed(list(self.attention)))]

    def attribution(
        self, explanation: str | Explanation = "tree", *, read: Reader | None = None, graph: Graph | None = None
    ) -> Attribution:
        """What every edge counts for every node under an explanation: `tree`, `last`, `first`, `layer:NAME`, ...

        `leave-one-out` runs the model again: give it the reader and the graph.
        """
        return resolve(explanation)(self, read, graph)

    def explain(
        self,
        node: int,
        explanation: str | Explanation = "tree",
        *,
        read: Reader | None = None,
        graph: Graph | None = None,
    ) -> NodeExplanation:
        """The edges that the answer for one node rests on, up to as many hops away as there are layers.

        >>> from torch_geometric.nn import GATConv
        >>> path = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> read_path = Reader(GATConv(2, 2).eval())
        >>> read_path(path).explain(1).top(1)
        [Edge(source=0, target=1, weight=0.5, hop=1)]
        """
        return explain_node(self.attribution(explanation, read=read, graph=graph), node)

    def top(self, node: int, k: int = 5, explanation: str | Explanation = "tree") -> list[Edge]:
        """The k edges that the answer for one node rests on most."""
        return self.explain(node, explanation).top(k)

    def head(self, nodes: int) -> Reading:
        """What is said of the first nodes alone, and where they look: in a batch these are the seeds."""
        if nodes == len(self.logits):
            return self
        return Reading(self.logits[:nodes], {site: a.head(nodes) for site, a in self.attention.items()})

    def detach(self) -> Reading:
        """The same reading without its history of gradients."""
        return Reading(self.logits.detach(), {site: a.detach() for site, a in self.attention.items()})


class Reader:
    """Reads one model on graphs.

    `call` says how the model is called, `call(model, graph) -> logits`. Without it the parameters of `forward` are
    filled by name from the graph (`x`, `edge_index`, `edge_attr`, ...), or the graph itself is given to a
    parameter called `data` or `graph`. The model's training mode is left as it is.

    >>> from torch_geometric.nn import GATConv
    >>> read = Reader(GATConv(3, 2).eval())
    >>> reading = read(Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]])))
    >>> reading.logits.shape, list(reading.attention)
    (torch.Size([2, 2]), [''])
    """

    def __init__(self, model: nn.Module, call: Call | None = None) -> None:
        self.model = model
        self.call = call or call_by_signature
        self._tap = Tap(model)

    def __call__(
        self, graph: Graph, *, weight_delta: Deltas = NOTHING, score_delta: Deltas = NOTHING, edit: Edit | None = None
    ) -> Reading:
        """Read `graph`, with its attention perturbed by site (shaped like the weights) or replaced by `edit`."""
        with self._tap.open(weight_delta, score_delta, edit) as caught:
            logits = self.call(self.model, graph)
        if not isinstance(logits, Tensor):
            raise CallError(
                f"{type(self.model).__name__} returned {type(logits).__name__}, and one tensor of logits is needed; "
                "pick it with call=lambda model, data: ..."
            )
        return Reading(logits, caught.attention)


def read(model: nn.Module, graph: Graph, call: Call | None = None) -> Reading:
    """What `model` says of `graph` and where it looks, in evaluation mode and without gradients.

    >>> from torch_geometric.nn import GATConv
    >>> graph = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))
    >>> read(GATConv(3, 2), graph).explanation.weight.sum(0)
    tensor([2.])
    """
    with eval_mode(model), accelerated(model), torch.no_grad():
        return Reader(model, call)(graph)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the length of a block; every module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def frozen_params(model: nn.Module) -> Iterator[None]:
    """For the length of a block no parameter asks for a gradient, so that only what an attack moves has one.

    >>> layer = nn.Linear(1, 1)
    >>> with frozen_params(layer):
    ...     layer.weight.requires_grad
    False
    """
    asking = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in asking:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asking:
            parameter.requires_grad_()


def call_by_signature(model: nn.Module, graph: Graph) -> Tensor:
    """Call a model with the parameters of its `forward` filled by name from the graph."""
    parameters = inspect.signature(_plain(model).forward).parameters.values()
    first = next(iter(parameters), None)
    if first is not None and (first.name in ("data", "graph") or first.annotation in (Data, HeteroData, "Data")):
        return model(graph)
    given = {p.name: found for p in parameters if (found := _attribute(graph, p.name)) is not None}
    missing = [p.name for p in parameters if p.name not in given and _required(p)]
    if missing:
        raise CallError(
            f"{type(model).__name__}.forward needs {missing}, and the graph has {sorted(_names(graph))}; "
            "add them to the graph, or say how to call the model with call=lambda model, data: ..."
        )
    return model(**given)


def _plain(model: nn.Module) -> nn.Module:
    return getattr(model, "_orig_mod", model)  # torch.compile wraps a model and hides its signature


def _required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_KEYWORD,
        parameter.VAR_POSITIONAL,
    )


def _names(graph: Graph) -> list[str]:
    names = graph.keys()
    return names if isinstance(graph, Data) else [f"{name}_dict" for name in names]


def _attribute(graph: Graph, name: str) -> Any:
    """An attribute that holds tensors, or None: counts and names are the loader's, not the model's."""
    if name not in _names(graph):
        return None
    value = getattr(graph, name)
    return value if isinstance(value, Tensor | dict) else None
