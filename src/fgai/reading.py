"""A `Reading` is what a model says and where it looked on one graph.

`open_reader` is the one way to read a model: nothing above this module knows the tap or the kernels, or switches a
model to evaluation mode to read it. Training has its own, `training_reader`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from fgai.attention import Attention
from fgai.checks import check_answers, check_attention, check_graph, described, described_tensor, rows_of
from fgai.errors import CallError, FGAIError
from fgai.kernels.pyg import accelerated
from fgai.kernels.trim import Trim
from fgai.tap import NOTHING, Deltas, Edit, Tap

Graph = Data | HeteroData
Call = Callable[[nn.Module, Any], Tensor]
MODEL_ERRORS = (RuntimeError, LookupError, TypeError, ValueError, AttributeError, NotImplementedError, AssertionError)


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

    def head(self, nodes: int) -> Reading:
        """What is said of the first nodes alone, and where they look: in a batch these are the seeds."""
        if nodes == len(self.logits):
            return self
        first = {site: a.head(nodes) for site, a in self.attention.items()}
        return Reading(self.logits[:nodes], first, unread=self.unread)

    def detach(self) -> Reading:
        """The same reading without its history of gradients."""
        still = {site: a.detach() for site, a in self.attention.items()}
        return replace(self, logits=self.logits.detach(), attention=still)


class Reader:
    """Reads one model on graphs.

    `call` says how the model is called, `call(model, graph) -> logits`. Without it the parameters of `forward` are
    filled by name from the graph (`x`, `edge_index`, `edge_attr`, ...), or the graph itself is given to a
    parameter called `data` or `graph`. The model is read as it is, in its own training mode and on its own layers;
    `open_reader` reads it in evaluation mode, faster.

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
        self.unread = attention_not_read(model)

    def __call__(
        self, graph: Graph, *, weight_delta: Deltas = NOTHING, score_delta: Deltas = NOTHING, edit: Edit | None = None
    ) -> Reading:
        """Read `graph`, with its attention perturbed by site (shaped like the weights) or replaced by `edit`."""
        with self._around(graph), self._tap.open(weight_delta, score_delta, edit) as caught:
            logits = self._call(graph)
        return Reading(logits, caught.attention, unread=self.unread)

    def checked(self, graph: Graph, owed: bool = True) -> Reading:
        """The clean reading, without gradients: what is wrong with it is said here, before anything rests on it.

        With `owed` there must be an answer for every node or pair of the graph.
        """
        with torch.no_grad():
            reading = self(graph).detach()
        name = type(self.model).__name__
        check_answers(reading.logits, name, rows_owed(graph) if owed else ())
        check_attention(reading.attention, name)
        return reading

    def logits(self, graph: Graph) -> Tensor:
        """What the model says, without its attention."""
        with self._around(graph):
            return self._call(graph)

    def _call(self, graph: Graph) -> Tensor:
        with in_words(self.model, graph):
            logits = self.call(self.model, graph)
        if not isinstance(logits, Tensor) or logits.layout != torch.strided or logits.is_meta or logits.dim() == 0:
            kind = described_tensor(logits) if isinstance(logits, Tensor) else type(logits).__name__
            raise CallError(
                f"{type(self.model).__name__} returned {kind}, and one dense tensor of logits is needed, a row per "
                "node; pick it with call=lambda model, data: ..."
            )
        return logits

    def _around(self, graph: Graph) -> AbstractContextManager[None]:
        """The block in which a graph is read."""
        return nullcontext()


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
    except MODEL_ERRORS as error:
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


class _FrozenReader(Reader):
    def _around(self, graph: Graph) -> AbstractContextManager[None]:
        return frozen_params(self.model)


@contextmanager
def open_reader(model: nn.Module, call: Call | None = None) -> Iterator[Reader]:
    """For the length of a block, a reader of `model` in evaluation mode and on the kernels.

    While it reads, no parameter asks for a gradient. So a plain read records none and needs no `torch.no_grad`, and an
    attack differentiates with respect to what it adds to the graph or to the attention. Afterwards the model is as it
    was. Copies and pickles made inside the block are of PyG's own classes.

    Args:
        model: A model with at least one attention layer; a block inside another one of the same model is fine.
        call: How the model is called, see `Reader`.

    >>> from torch_geometric.nn import GATConv
    >>> model = GATConv(3, 2)
    >>> with open_reader(model) as read:
    ...     reading = read(Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]])))
    >>> reading.logits.requires_grad, model.training
    (False, True)
    """
    reader = _FrozenReader(model, call)
    with eval_mode(model), accelerated(model):
        yield reader


class TrainingReader(Reader):
    """Reads a model that learns; of a model without attention, `logits` only.

    In a batch that says how many nodes each hop has reached (`num_sampled_nodes`), layers skip edges that do not change
    what is said of the seeds (`fgai.kernels.trim`). On the first batch the seeds' logits with and without are compared;
    for a model in which nodes exchange information in another way than layer after layer, nothing is skipped.
    """

    def __init__(self, model: nn.Module, call: Call | None, trim: Trim) -> None:
        self.model, self.call = model, call or call_by_signature
        self._trim = trim
        self._trims: bool | None = None  # unknown before the first batch
        self.unread = attention_not_read(model)

    @cached_property
    def _tap(self) -> Tap:  # pyright: ignore[reportIncompatibleVariableOverride], made when attention is first read
        return Tap(self.model)

    def _around(self, graph: Graph) -> AbstractContextManager[None]:
        counts = graph.get("num_sampled_nodes") if isinstance(graph, Data) else None
        if counts is not None and self._trims is None:
            self._trims = self._same_logits(graph, counts)
        return self._trim.batch(counts if self._trims else None)

    def _same_logits(self, graph: Graph, counts: Sequence[int]) -> bool:
        with eval_mode(self.model), torch.no_grad():
            full = self.call(self.model, graph)[: counts[0]]
            with self._trim.batch(counts):
                trimmed = self.call(self.model, graph)[: counts[0]]
        return bool(((full - trimmed).abs() <= 1e-4 * full.abs().max()).all())


@contextmanager
def training_reader(model: nn.Module, call: Call | None = None) -> Iterator[TrainingReader]:
    """For the length of a block, a reader of a model that learns: gradients reach its parameters, its mode is its own.

    The kernels are free to sort edges and to draw cheaper dropout masks (`accelerated(model, exact=False)`), and of a
    sampled batch only the seeds are read: see `TrainingReader`.
    """
    with accelerated(model, exact=False) as trim:
        yield TrainingReader(model, call, trim)


def read(model: nn.Module, graph: Graph, call: Call | None = None) -> Reading:
    """What `model` says of `graph` and where it looks, in evaluation mode and without gradients.

    >>> from torch_geometric.nn import GATConv
    >>> graph = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))
    >>> read(GATConv(3, 2), graph).explanation.weight.sum(0)
    tensor([2.])
    """
    check_graph(graph)
    with open_reader(model, call) as reader:
        return reader.checked(graph, owed=False)


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
    """Call a model with the parameters of its `forward` filled by name from the graph.

    A module that wraps another and takes its inputs names it as `__wrapped__`, as `functools.wraps` does.
    """
    if isinstance(_unwrapped(model), nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise CallError(
            f"{type(model).__name__} wraps a model and hides what it takes; give what it wraps, model.module"
        )
    parameters = inspect.signature(_unwrapped(model).forward).parameters.values()
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


def _unwrapped(model: nn.Module) -> nn.Module:
    """The module whose signature counts; torch.compile has a name of its own for it."""
    inner = getattr(model, "__wrapped__", getattr(model, "_orig_mod", None))
    return model if inner is None else _unwrapped(inner)


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
