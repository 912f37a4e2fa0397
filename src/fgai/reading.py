"""A `Reading` is what a model says and where it looked on one graph. This is the only module that calls a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from fgai.acceleration import accelerated
from fgai.attention import Attention
from fgai.checks import check_answers, check_attention, check_graph, described, rows_of
from fgai.errors import CallError, FGAIError
from fgai.tap import NOTHING, Deltas, Edit, Tap

Graph = Data | HeteroData
Call = Callable[[nn.Module, Any], Tensor]


@dataclass(frozen=True)
class Reading:
    """What a model says (`logits`) and where it looked (`attention`, by site, in the order in which it acted)."""

    logits: Tensor  # [N, C]; one column, or none, is a binary answer
    attention: Mapping[str, Attention]
    unread: tuple[str, ...] = field(default=(), kw_only=True)  # parts of the model that attend and are not read

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

    def of_first(self, nodes: int) -> Reading:
        """What is said of the first nodes alone, and where they look: in a batch these are the seeds."""
        if nodes == len(self.logits):
            return self
        first = {site: a.of_first(nodes) for site, a in self.attention.items()}
        return Reading(self.logits[:nodes], first, unread=self.unread)

    def detach(self) -> Reading:
        """The same reading without its history of gradients."""
        still = {site: a.detach() for site, a in self.attention.items()}
        return replace(self, logits=self.logits.detach(), attention=still)


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
        self.call = call or by_name
        self._tap = Tap(model)
        self.unread = attention_not_read(model)

    def __call__(
        self, graph: Graph, *, plus_weight: Deltas = NOTHING, plus_score: Deltas = NOTHING, edit: Edit | None = None
    ) -> Reading:
        """Read `graph`, with its attention perturbed by site (shaped like the weights) or replaced by `edit`."""
        with self._tap.open(plus_weight, plus_score, edit) as caught:
            logits = self.call(self.model, graph)
        if not isinstance(logits, Tensor):
            raise CallError(
                f"{type(self.model).__name__} returned {type(logits).__name__}, and one tensor of logits is needed; "
                "pick it with call=lambda model, data: ..."
            )
        return Reading(logits, caught.attention, unread=self.unread)

    def checked(self, graph: Graph, owed: bool = True) -> Reading:
        """The clean reading, without gradients: what is wrong with it is said here, before anything rests on it.

        With `owed` there must be an answer for every node or pair of the graph.
        """
        with in_words(self.model, graph), torch.no_grad():
            reading = self(graph).detach()
        name = type(self.model).__name__
        check_answers(reading.logits, name, rows_owed(graph) if owed else ())
        check_attention(reading.attention, name)
        return reading


def rows_owed(graph: Any) -> tuple[int, ...]:
    """How many answers there may be: one for each node or pair, or for each seed of a batch."""
    return rows_of(graph), int(graph.get("batch_size") or rows_of(graph))


@contextmanager
def in_words(model: nn.Module, graph: Any) -> Iterator[None]:
    """What a model raises when it is called on a graph that does not fit it, with what was given, as a `CallError`."""
    try:
        yield
    except (FGAIError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, IndexError, KeyError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise CallError(
            f"{type(model).__name__} failed on this graph: {type(error).__name__}: {error or 'no message'}. It was "
            f"given {described(graph) or type(graph).__name__}; check the width and the type of the features (floats "
            "of the model's own precision), or say how to call the model with call=lambda model, data: ..."
        ) from error


def attention_not_read(model: nn.Module) -> tuple[str, ...]:
    """The modules that attend without PyG's softmax over edges, so that the tap does not see them, by name.

    These are torch's `MultiheadAttention`, PyG's global attention (as in `GPSConv`), and whatever calls torch's
    `scaled_dot_product_attention`.

    >>> attention_not_read(nn.TransformerEncoderLayer(4, 2))
    ('self_attn',)
    """
    found: list[str] = []
    for name, module in model.named_modules():
        if _attends_densely(module) and not any(name.startswith(f"{outer}.") for outer in found):
            found.append(name)
    return tuple(found)


def _attends_densely(module: nn.Module) -> bool:
    code = getattr(type(module).forward, "__code__", None)
    return (
        isinstance(module, nn.MultiheadAttention)
        or type(module).__module__.startswith("torch_geometric.nn.attention")
        or (code is not None and "scaled_dot_product_attention" in code.co_names)
    )


def read(model: nn.Module, graph: Graph, call: Call | None = None) -> Reading:
    """What `model` says of `graph` and where it looks, in evaluation mode and without gradients.

    >>> from torch_geometric.nn import GATConv
    >>> graph = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))
    >>> read(GATConv(3, 2), graph).explanation.weight.sum(0)
    tensor([2.])
    """
    check_graph(graph)
    with evaluating(model), accelerated(model):
        return Reader(model, call).checked(graph, owed=False)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the length of a block; every module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def still(model: nn.Module) -> Iterator[None]:
    """For the length of a block no parameter asks for a gradient, so that only what an attack moves has one.

    >>> layer = nn.Linear(1, 1)
    >>> with still(layer):
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


def by_name(model: nn.Module, graph: Graph) -> Tensor:
    """Call a model with the parameters of its `forward` filled by name from the graph."""
    if isinstance(_plain(model), nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise CallError(
            f"{type(model).__name__} wraps a model and hides what it takes; give what it wraps, model.module"
        )
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
    if not given:
        raise CallError(
            f"{type(model).__name__}.forward names none of {sorted(_names(graph))}, so nothing says what to give it; "
            "say how to call the model with call=lambda model, data: model(data.x, data.edge_index)"
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
