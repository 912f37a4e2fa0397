"""Calls a model on a graph: by its signature, on recomputed encodings, in evaluation mode, with frozen parameters."""

from __future__ import annotations

import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch_geometric.data import Batch, Data, HeteroData

from fgai.attending import attention_flows
from fgai.checks import describe, describe_tensor, refuse_cached
from fgai.errors import CallError, DataError, FGAIError, TapError
from fgai.graph import require
from fgai.items import copied
from fgai.settings import check_whole
from fgai.typed import is_typed, split

Graph = Data | HeteroData
Input = TypeVar("Input")
Call = Callable[[nn.Module, Any], Tensor]
LINK_INPUTS = ("edge_attr", "edge_weight")
MESSAGE = 300  # characters of an error of the model; those of torch list every backend
AGAINST = "target_to_source"  # the flow of layers that send messages against the edges
MODEL_ERRORS = (RuntimeError, LookupError, TypeError, ValueError, AttributeError, NotImplementedError, AssertionError)


def call_by_signature(model: nn.Module, graph: Graph) -> Tensor:
    """Call a model with the arguments of its `forward` taken from the graph, by name.

    A `forward` whose first parameter is named `data` or `graph`, or is annotated as `Data`, gets the graph itself. A
    module that wraps another one and takes the same inputs should name it as `__wrapped__`, as `functools.wraps` does.

    >>> from torch_geometric.nn import GATConv
    >>> call_by_signature(GATConv(3, 2), Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))).shape
    torch.Size([2, 2])
    """
    if isinstance(_unwrap(model), nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise CallError(
            f"{type(model).__name__} wraps a model and hides its signature; give the wrapped model, model.module"
        )
    if takes_graph(model):
        return model(graph)
    parameters = forward_parameters(model).values()
    arguments = {p.name: value for p in parameters if (value := _attribute(graph, p.name)) is not None}
    missing = [p.name for p in parameters if p.name not in arguments and _is_required(p)]
    if missing:
        raise CallError(
            f"{type(model).__name__}.forward needs {missing}, and the graph has {sorted(_names(graph))}; "
            "add them to the graph, or define how to call the model with call=lambda model, data: ..."
        )
    _check_links_passed(model, graph, arguments)
    if not arguments:
        raise CallError(
            f"{type(model).__name__}.forward names none of {sorted(_names(graph))}, so its arguments are unknown; "
            "define how to call the model with call=lambda model, data: model(data.x, data.edge_index)"
        )
    return model(**arguments)


def run_model(model: nn.Module, graph: Graph, call: Call | None = None) -> Any:
    """Return the output of a model, called with `call` or by its signature; of a dict by type, that of the answer."""
    graph = copy.copy(split(graph).graph if is_typed(graph) else graph)  # a model may assign its attributes
    with _refused_writes(model, graph), torch.compiler.set_stance("force_eager"):  # compiled code cannot be read
        output = (call or call_by_signature)(model, graph)
    if isinstance(graph, HeteroData) and isinstance(output, Mapping) and "answer" in graph:
        return output.get(graph["answer"])
    return output


def call_model(model: nn.Module, graph: Graph, call: Call | None = None) -> Tensor:
    """Return the logits of a model, called with `call` or by its signature; raise `CallError` if there are none."""
    with call_errors(model, graph):
        logits = run_model(model, graph, call)
    if not isinstance(logits, Tensor) or logits.layout != torch.strided or logits.is_meta or logits.dim() == 0:
        raise CallError(
            f"{type(model).__name__} returned {describe_tensor(logits)}, and fgai needs one dense tensor of logits "
            "with a row per node, pair or graph; select it with call=lambda model, data: ..."
        )
    return logits


def along_messages(
    model: nn.Module, data: Input, call: Call | None = None, explanation: Any = None
) -> tuple[Input, Call | None]:
    """Return the graph with its edges in the direction of the messages, and how to call the model on it.

    Layers with `flow="target_to_source"` send messages against the edges. Their attention is read in the direction of
    the messages. If the layers that are explained are such, the edges are reversed for all that compares the two, and
    back for the model.

    Args:
        model: The model.
        data: The graph.
        call: How to call the model.
        explanation: What is compared with the edges; nothing by default.

    Raises:
        DataError: The graph has several types of nodes, and such a layer is in the model.
        TapError: The explanation is about several layers, and messages go both ways.

    >>> from torch_geometric.nn import GATConv
    >>> conv, path = GATConv(2, 2, flow="target_to_source"), Data(x=torch.eye(2), edge_index=torch.tensor([[0], [1]]))
    >>> along, call = along_messages(conv, path)
    >>> along.edge_index.flatten().tolist(), torch.equal(call(conv, along), conv(path.x, path.edge_index))
    ([1, 0], True)
    """
    check_model(model)
    flows = attention_flows(model)
    if AGAINST not in flows.values() or not isinstance(data, Data) or not isinstance(data.get("edge_index"), Tensor):
        return data, call
    if is_typed(data):
        raise DataError(
            f"{type(model).__name__} has layers with flow='target_to_source', and the graph has several types; build "
            "the layers with the default flow, and reverse the edges of the graph"
        )
    explained = {*flows.values()} if len({*flows.values()}) == 1 else _explained_flow(model, flows, explanation)
    if explained != {AGAINST}:
        return data, call
    plain = call or call_by_signature
    return _reversed(data), lambda net, graph: plain(net, _reversed(graph))


def _explained_flow(model: nn.Module, flows: dict[str, str], explanation: Any) -> set[str]:
    """Return the flow of the layer that an explanation is about, in a model with both; empty if it is about none."""
    if explanation is not None and not str(explanation).startswith("layer:"):
        name = getattr(explanation, "__name__", explanation)
        raise TapError(
            f"{type(model).__name__} has attention layers with both values of `flow`, so '{name}' would mix edges "
            f"with their reverse; use the attention of one of them, 'layer:{next(iter(flows))}'"
        )
    named = str(explanation).removeprefix("layer:").partition("@")[0]  # layer@1: its second call
    return {flows[named]} if named in flows else set()


def _reversed(graph: Any) -> Any:
    return copied(graph).update({"edge_index": require(graph, "edge_index").flip(0)})


def check_model(model: Any) -> None:
    """Raise unless this is a module with weights, and it does not store the links of its first graph.

    >>> check_model(nn.Linear(2, 1).state_dict())
    Traceback (most recent call last):
    fgai.errors.CallError: OrderedDict is not a model; give the torch.nn.Module, and load weights with load_state_dict
    """
    if not isinstance(model, nn.Module):
        raise CallError(
            f"{type(model).__name__} is not a model; give the torch.nn.Module, and load weights with load_state_dict"
        )
    if lazy := [name for name, parameter in model.named_parameters() if is_lazy(parameter)]:
        raise CallError(
            f"{type(model).__name__} has no weights yet: {', '.join(lazy[:3])} {'are' if len(lazy) > 1 else 'is'} set "
            "by its first call; call the model once on the graph, then load or train its weights"
        )
    refuse_cached(model)


class RecomputedEncodings:
    """A call of a model that first computes the encodings of the graph; pass it to `Reader` or `audit` as `call`.

    A deployed model computes the encodings of the graph that it gets. Without this class, injected nodes have encodings
    of zero and all other nodes keep those of the clean graph. Graphs that share their `edge_index` are prepared once.

    Args:
        prepare: Adds to a graph the encodings that the model reads, e.g. `backbones.BACKBONES[name].prepare`.
        call: Calls the model on the prepared graph.
        size: Number of prepared graphs that are cached.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import NodeInjection, gains
    >>> from fgai.reading import Reader
    >>> data = backbones.GT.prepare(datasets.load("synthetic"))
    >>> read = Reader(backbones.build("gt", data).eval(), RecomputedEncodings(backbones.GT.prepare))
    >>> attacked = NodeInjection(2, 3, steps=1)(read, data, gains.kl(read(data).detach()))
    >>> len(attacked.logits) - data.num_nodes
    2
    """

    def __init__(self, prepare: Callable[[Data], Data], call: Call = call_by_signature, size: int = 4) -> None:
        check_whole(1, size=size)
        self._prepare, self._call, self._size = prepare, call, size
        self._cache: list[tuple[Tensor, Data]] = []  # edge_index, and the graph that was prepared with it

    def __call__(self, model: nn.Module, graph: Data) -> Tensor:
        """Return the logits on the graph with its own encodings."""
        edges = require(graph, "edge_index")
        prepared = next((value for key, value in self._cache if key is edges), None)
        if prepared is None:
            prepared = self._prepare(graph)
            self._cache = [*self._cache, (edges, prepared)][-self._size :]
        prepared = copy.copy(prepared)
        prepared.x = graph.x
        return self._call(model, prepared)


def forward_parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of `forward` of the innermost wrapped module, by name."""
    return inspect.signature(_unwrap(model).forward).parameters


def takes_graph(model: nn.Module) -> bool:
    """Return whether `forward` takes the graph itself: by the name or the annotation of its first parameter."""
    first = next(iter(forward_parameters(model).values()), None)
    kinds = (Data, Batch, HeteroData, "Data", "Batch")
    return first is not None and (first.name in ("data", "graph") or first.annotation in kinds)


@contextmanager
def call_errors(model: nn.Module, graph: Any) -> Iterator[None]:
    """Raise the errors of a model's call as `CallError`, with a description of the graph."""
    try:
        yield
    except (FGAIError, torch.OutOfMemoryError):
        raise
    except MODEL_ERRORS as error:
        message = textwrap.shorten(str(error), MESSAGE, placeholder=" ...") or "no message"
        raise CallError(
            f"{type(model).__name__} failed on this graph: {type(error).__name__}: {message}. Its input "
            f"was {describe(graph) or type(graph).__name__}; check the width and the dtype of the features (floats of "
            "the model's precision), or define how to call the model with call=lambda model, data: ..."
        ) from error


@contextmanager
def _refused_writes(model: nn.Module, graph: Graph) -> Iterator[None]:
    """Raise `CallError` if a dense tensor of the graph was written in place inside a `with` block."""
    stores = graph.stores if isinstance(graph, Data | HeteroData) else ()
    tensors = [(name, value) for store in stores for name, value in store.items() if isinstance(value, Tensor)]
    dense = [(name, value) for name, value in tensors if value.layout == torch.strided and not value.is_inference()]
    versions = [(name, value, value._version) for name, value in dense]
    yield
    if written := sorted({name for name, value, version in versions if value._version != version}):
        raise CallError(
            f"{type(model).__name__} writes into {written} of the graph that it is given, so each call has another "
            "input; write into a copy, such as x = x.clone() at the start of forward. The graph is changed now: load "
            "it again"
        )


def _unwrap(model: nn.Module) -> nn.Module:
    """Return the innermost wrapped module; `torch.compile` stores it as `_orig_mod`."""
    inner = getattr(model, "__wrapped__", getattr(model, "_orig_mod", None))
    return model if inner is None else _unwrap(inner)


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in (
        parameter.VAR_KEYWORD,
        parameter.VAR_POSITIONAL,
    )


def _check_links_passed(model: nn.Module, graph: Graph, arguments: Mapping[str, Any]) -> None:
    """Raise `CallError` if an optional argument about links stays out, and the graph has them under another name."""
    optional = [name for name, p in forward_parameters(model).items() if p.default is None and name not in arguments]
    about_links = [name for name in optional if name.startswith("edge") or name in ("weight", "weights", "attr")]
    if not about_links or not isinstance(graph, Data) or any(name in arguments for name in LINK_INPUTS):
        return
    for name in LINK_INPUTS:
        value = graph.get(name)
        several = isinstance(value, Tensor) and value.dim() == 2 and value.size(1) > 1  # these are no weights
        if isinstance(value, Tensor) and not (several and about_links == ["edge_weight"]):
            raise CallError(
                f"{type(model).__name__}.forward takes {about_links}, and the graph has `{name}` instead, so the model "
                "would be called without it; rename or remove it, or define call=lambda model, data: ..."
            )


def _names(graph: Graph) -> list[str]:
    names = graph.keys()
    return names if isinstance(graph, Data) else [f"{name}_dict" for name in names]


def _attribute(graph: Graph, name: str) -> Any:
    """Return an attribute that holds tensors, or None. Counts and names belong to the loader, not to the model.

    A `HeteroData` gives `x_dict` also for `x`, as `to_hetero` names it.
    """
    if isinstance(graph, HeteroData) and f"{name}_dict" in _names(graph):
        name = f"{name}_dict"
    if name not in _names(graph):
        return None
    value = getattr(graph, name)
    return value if isinstance(value, Tensor | dict) else None
