"""Reads and perturbs attention inside a user's own PyG model by intercepting PyG's softmax.

Every sparse attention layer of PyG normalises its scores with one function, `torch_geometric.utils.softmax`.
For the length of a `with` block such a layer is a generated subclass of itself whose attention methods call our
softmax instead: after the softmax, before the attention dropout, before the aggregation. No global is patched, no
parameter is added, and leaving the block restores the layer's class (`fgai.patching`).
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import FunctionType, MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import is_sparse, softmax, to_edge_index

from fgai.attention import Attention
from fgai.errors import TapError
from fgai.kernels import segmented_softmax
from fgai.patching import Hook, subclass, swapped_class, with_globals

Deltas = Mapping[str, Tensor]
Edit = Callable[[str, Attention], Tensor]  # the weights that act instead, given a site and its attention
NOTHING: Deltas = MappingProxyType({})
_SOFTMAXES = (softmax, segmented_softmax)  # PyG's, and the one that takes its place in accelerated layers


class AttentionPoint(nn.Module):
    """Marks the attention of a layer that normalises without PyG's softmax, so that fgai can read it.

    It has no parameters: the `state_dict` of a model keeps its keys.

    >>> point = AttentionPoint()
    >>> point(torch.zeros(2, 1), torch.tensor([[0, 1], [2, 2]]), num_targets=3).flatten()
    tensor([0.5000, 0.5000])
    """

    def forward(self, score: Tensor, edge_index: Tensor, num_targets: int) -> Tensor:
        """Softmax of `score` [E, H] over the edges that share a target."""
        return softmax(score, edge_index[1], num_nodes=num_targets)


@dataclass(frozen=True)
class _Call:
    """One call of the softmax: what came in and what went out."""

    score: Tensor  # [E, H]
    weight: Tensor  # [E, H]
    index: Tensor  # [E]
    num_targets: int


@dataclass
class Recording:
    """What one opening of a tap caught, by site: `conv1`, and `conv1@1`, ... where a layer ran again."""

    weight_delta: Deltas
    score_delta: Deltas
    edit: Edit | None
    calls: dict[str, list[_Call]] = field(default_factory=lambda: defaultdict(list))
    edges: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    sites: list[str] = field(default_factory=list)  # in the order in which they act

    @property
    def attention(self) -> dict[str, Attention]:
        """The attention that acted, with the edges it acted on, in the order in which it did."""
        found: dict[str, Attention] = {}
        for name, edges in self.edges.items():
            calls = self.calls[name] or [_empty(edge_index) for edge_index in edges if edge_index.size(1) == 0]
            if not _same_edges(calls, edges):
                raise TapError(
                    f"layer '{name}' normalises over parts of its edges, so it has no attention per edge to read; "
                    "use its variant that normalises over all edges of a target"
                )
            for number, (call, edge_index) in enumerate(zip(calls, edges, strict=True)):
                found[_site(name, number)] = Attention(call.weight, edge_index, call.num_targets, call.score)
        unknown = sorted((self.weight_delta.keys() | self.score_delta.keys()) - found.keys())
        if unknown:
            raise TapError(f"no attention is called {unknown}; in this model there is {sorted(found)}")
        return {site: found[site] for site in self.sites}

    def softmax(self, name: str, plain: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """A softmax with the perturbations of this site, noting what came in and went out."""
        given = inspect.signature(plain).bind(*args, **kwargs).arguments
        site = _site(name, len(self.calls[name]))
        score = given["src"] = _nudged(site, given["src"], self.score_delta, "scores")
        weight = _nudged(site, plain(**given), self.weight_delta, "weights")
        call = _Call(_flat(score), _flat(weight), *_targets(given))
        self.calls[name].append(call if self.edit is None else _edited(site, call, self.edit))
        return self.calls[name][-1].weight.view_as(weight)

    def note_edges(self, name: str, edge_index: Tensor, flow: str = "source_to_target") -> None:
        """Remembers the edges, source -> target, that a layer is about to attend over."""
        if is_sparse(edge_index):  # sparse adjacencies are stored transposed
            edge_index = _entries(edge_index).flip(0)
        self.sites.append(_site(name, len(self.edges[name])))
        self.edges[name].append(edge_index.flip(0) if flow == "target_to_source" else edge_index)


class Tap:
    """Finds the attention layers of a model and, while open, catches and perturbs their attention.

    >>> from torch_geometric.nn import GATConv
    >>> conv = GATConv(3, 2, heads=4)
    >>> with Tap(conv).open() as caught:
    ...     y = conv(torch.ones(2, 3), torch.tensor([[0], [1]]))
    >>> caught.attention[""].weight.shape  # one edge, two self-loops
    torch.Size([3, 4])
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = {name: layer for name, layer in model.named_modules() if _attends(layer)}
        if not self.layers:
            raise TapError(
                f"{type(model).__name__} has no attention layer: none of its layers calls PyG's softmax. "
                "Mark the attention of a custom layer with fgai.AttentionPoint, or use a model that attends "
                "(GATConv, GATv2Conv, TransformerConv, ...)"
            )
        self._refuse_nesting()
        self._catch: Recording | None = None
        self._listening: dict[tuple[str, type], type] = {}  # made once: a tap is opened many times in an attack

    @contextmanager
    def open(
        self, weight_delta: Deltas = NOTHING, score_delta: Deltas = NOTHING, edit: Edit | None = None
    ) -> Iterator[Recording]:
        """Catch attention; add `plus_weight` to weights and `plus_score` to scores, by site, shaped like them.

        `edit` puts other weights in their place: `edit(site, attention)`, whose sources are not known yet (-1).
        """
        self._refuse_nesting()
        catch = self._catch = Recording(weight_delta, score_delta, edit)
        with ExitStack() as undo:
            undo.callback(setattr, self, "_catch", None)
            undo.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code would not see the tap
            for name, layer in self.layers.items():
                undo.enter_context(swapped_class(layer, self._listener(name, type(layer))))
                undo.callback(_watch_edges(name, layer, catch).remove)
            yield catch

    def _refuse_nesting(self) -> None:
        if any(isinstance(layer, _Tapped) for layer in self.layers.values()):
            raise TapError("the model is tapped already; leave the first `with` block before opening another")

    def _listener(self, name: str, cls: type) -> type:
        if (name, cls) not in self._listening:
            self._listening[name, cls] = _listening(cls, {plain: self._softmax(name, plain) for plain in _SOFTMAXES})
        return self._listening[name, cls]

    def _softmax(self, name: str, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def listen(*args: Any, **kwargs: Any) -> Tensor:
            assert self._catch is not None, "a layer listens only while its tap is open"
            return self._catch.softmax(name, plain, *args, **kwargs)

        return listen


class _Tapped:
    """The mark of a layer whose tap is open."""


def _attends(layer: nn.Module) -> bool:
    return isinstance(layer, MessagePassing | AttentionPoint) and bool(_owners(type(layer)))


def _owners(cls: type) -> dict[type, dict[str, FunctionType]]:
    """The classes along the inheritance of `cls` that define attention methods, with those methods."""
    methods = {owner: {name: f for name, f in vars(owner).items() if _calls_softmax(f)} for owner in cls.__mro__}
    return {owner: found for owner, found in methods.items() if found}


def _calls_softmax(function: Any) -> bool:
    return isinstance(function, FunctionType) and any(
        function.__globals__.get(name) is plain for name in function.__code__.co_names for plain in _SOFTMAXES
    )


def _listening(cls: type, replaced: Mapping[Any, Any]) -> type:
    """A subclass of `cls` in which each softmax is another, also where a method reaches it by super()."""
    shims = [
        type(owner.__name__, (owner,), {name: with_globals(f, replaced) for name, f in methods.items()})
        for owner, methods in _owners(cls).items()
    ]
    bases = shims if shims[0].__base__ is cls else [cls, *shims]
    return subclass(cls, {}, (*bases, _Tapped))


@dataclass(frozen=True)
class _NoteEdges(Hook):
    """A hook on `propagate`, or on an `AttentionPoint`, that notes the edges."""

    name: str
    catch: Recording

    def __call__(self, layer: Any, inputs: tuple[Any, ...], named: Mapping[str, Any] = MappingProxyType({})) -> None:
        if isinstance(layer, MessagePassing):
            self.catch.note_edges(self.name, inputs[0], layer.flow)
        else:
            self.catch.note_edges(self.name, named["edge_index"] if "edge_index" in named else inputs[1])


def _watch_edges(name: str, layer: nn.Module, catch: Recording) -> RemovableHandle:
    if isinstance(layer, MessagePassing):
        return layer.register_propagate_forward_pre_hook(_NoteEdges(name, catch))
    return layer.register_forward_pre_hook(_NoteEdges(name, catch), with_kwargs=True)


def _site(name: str, call: int) -> str:
    return name if call == 0 else f"{name}@{call}"


def _targets(given: Mapping[str, Any]) -> tuple[Tensor, int]:
    """The target of each edge, and how many there are."""
    if "order" in given:
        return given["order"].target, given["order"].num_targets
    index, num = given["index"], given.get("num_nodes")
    return index, int(index.max()) + 1 if num is None else int(num)


def _flat(value: Tensor) -> Tensor:
    """[E] or [E, H] or [E, H, 1] -> [E, H]."""
    return value.unsqueeze(1) if value.dim() == 1 else value.flatten(1)


def _nudged(site: str, value: Tensor, deltas: Deltas, what: str) -> Tensor:
    if site not in deltas:
        return value
    if deltas[site].numel() != value.numel() or deltas[site].size(0) != value.size(0):
        raise TapError(
            f"the perturbation of the {what} of '{site}' has shape {list(deltas[site].shape)}; "
            f"on this graph it needs {list(_flat(value).shape)}, one row per edge that the layer attends over"
        )
    return value + deltas[site].view_as(value)


def _edited(site: str, call: _Call, edit: Edit) -> _Call:
    ends = torch.stack([torch.full_like(call.index, -1), call.index])  # sources are not known at the softmax
    return replace(call, weight=edit(site, Attention(call.weight, ends, call.num_targets, call.score)))


def _empty(edge_index: Tensor) -> _Call:
    """Layers skip their softmax where there is no edge."""
    nothing = torch.empty(0, 1, device=edge_index.device)
    return _Call(nothing, nothing, edge_index[1], 0)


def _same_edges(calls: list[_Call], edges: list[Tensor]) -> bool:
    return len(calls) == len(edges) and all(
        _equal(call.index, edge_index[1]) for call, edge_index in zip(calls, edges, strict=True)
    )


def _entries(adjacency: Any) -> Tensor:
    """The places of the entries; PyG's own function marks a COO tensor in place, which gradients do not survive."""
    coo = isinstance(adjacency, Tensor) and adjacency.layout == torch.sparse_coo
    return adjacency._indices() if coo else to_edge_index(adjacency)[0]


def _equal(index: Tensor, other: Tensor) -> bool:
    """The same values; two views of the same memory need not be compared, for which a GPU would be waited for."""
    same = index.shape == other.shape and index.stride() == other.stride() and index.dtype == other.dtype
    return (same and index.data_ptr() == other.data_ptr()) or torch.equal(index, other)
