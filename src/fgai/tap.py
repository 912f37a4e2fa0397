"""Reads and perturbs attention inside a user's own PyG model by intercepting PyG's softmax.

Every sparse attention layer of PyG normalises its scores with one function, `torch_geometric.utils.softmax`. Inside a
`with` block such a layer has a generated subclass whose attention methods call a recording softmax instead. Weights are
read and perturbed after the softmax, before the attention dropout and before the aggregation. No global is patched, no
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
Edit = Callable[[str, Attention], Tensor]  # (site, attention) -> the weights to use instead
NOTHING: Deltas = MappingProxyType({})
_SOFTMAXES = (softmax, segmented_softmax)  # PyG's, and the one that accelerated layers call


class AttentionPoint(nn.Module):
    """Marks the attention of a layer that normalises without PyG's softmax, so that fgai can read it.

    Call it in the layer in place of the layer's own softmax. It has no parameters, so the `state_dict` of the model
    keeps its keys.

    >>> point = AttentionPoint()
    >>> point(torch.zeros(2, 1), torch.tensor([[0, 1], [2, 2]]), num_targets=3).flatten()
    tensor([0.5000, 0.5000])
    """

    def forward(self, score: Tensor, edge_index: Tensor, num_targets: int) -> Tensor:
        """Return the softmax of the scores over the edges of each target.

        Args:
            score: Attention scores, [E, H].
            edge_index: The edges source -> target, [2, E].
            num_targets: The number of target nodes.

        Returns:
            The attention weights, [E, H].
        """
        return softmax(score, edge_index[1], num_nodes=num_targets)


@dataclass(frozen=True)
class _Call:
    """Inputs and output of one call of the softmax."""

    score: Tensor  # [E, H]
    weight: Tensor  # [E, H]
    index: Tensor  # [E]
    num_targets: int


@dataclass
class Recording:
    """What an open tap records, by site: `conv1` for the first call of a layer, `conv1@1`, ... for further calls."""

    weight_delta: Deltas
    score_delta: Deltas
    edit: Edit | None
    calls: dict[str, list[_Call]] = field(default_factory=lambda: defaultdict(list))
    edges: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    sites: list[str] = field(default_factory=list)  # in the order of execution

    @property
    def attention(self) -> dict[str, Attention]:
        """The recorded attention by site, in the order of execution."""
        by_site: dict[str, Attention] = {}
        for name, edges in self.edges.items():
            calls = self.calls[name] or [_empty(edge_index) for edge_index in edges if edge_index.size(1) == 0]
            if not _same_edges(calls, edges):
                raise TapError(
                    f"layer '{name}' normalises over parts of its edges, so it has no attention per edge to read; "
                    "use its variant that normalises over all edges of a target"
                )
            for number, (call, edge_index) in enumerate(zip(calls, edges, strict=True)):
                by_site[_site(name, number)] = Attention(call.weight, edge_index, call.num_targets, call.score)
        unknown = sorted((self.weight_delta.keys() | self.score_delta.keys()) - by_site.keys())
        if unknown:
            raise TapError(f"no attention is called {unknown}; in this model there is {sorted(by_site)}")
        return {site: by_site[site] for site in self.sites}

    def softmax(self, name: str, plain: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Call the softmax `plain` with the perturbations of this site, and record its scores and weights."""
        inputs = inspect.signature(plain).bind(*args, **kwargs).arguments
        site = _site(name, len(self.calls[name]))
        score = inputs["src"] = _add_delta(site, inputs["src"], self.score_delta, "scores")
        weight = _add_delta(site, plain(**inputs), self.weight_delta, "weights")
        call = _Call(_flat(score), _flat(weight), *_targets(inputs))
        self.calls[name].append(call if self.edit is None else _edit_weight(site, call, self.edit))
        return self.calls[name][-1].weight.view_as(weight)

    def note_edges(self, name: str, edge_index: Tensor, flow: str = "source_to_target") -> None:
        """Record the edges, source -> target, that a layer is about to attend over."""
        if is_sparse(edge_index):  # sparse adjacencies are stored transposed
            edge_index = _entries(edge_index).flip(0)
        self.sites.append(_site(name, len(self.edges[name])))
        self.edges[name].append(edge_index.flip(0) if flow == "target_to_source" else edge_index)


class Tap:
    """Finds the attention layers of a model. While the tap is open, it records and perturbs their attention.

    Args:
        model: A model with at least one layer that calls PyG's softmax or an `AttentionPoint`.

    Raises:
        TapError: The model has no such layer, or another tap on it is open.

    >>> from torch_geometric.nn import GATConv
    >>> conv = GATConv(3, 2, heads=4)
    >>> with Tap(conv).open() as recording:
    ...     y = conv(torch.ones(2, 3), torch.tensor([[0], [1]]))
    >>> recording.attention[""].weight.shape  # one edge, two self-loops
    torch.Size([3, 4])
    """

    def __init__(self, model: nn.Module) -> None:
        self.layers = {name: layer for name, layer in model.named_modules() if _attends(layer)}
        if not self.layers:
            raise TapError(
                f"{type(model).__name__} has no attention layer: none of its layers calls PyG's softmax. "
                "Mark the attention of a custom layer with fgai.AttentionPoint, or use a model with attention layers "
                "(GATConv, GATv2Conv, TransformerConv, ...)"
            )
        self._refuse_nesting()
        self._recording: Recording | None = None
        self._classes: dict[tuple[str, type], type] = {}  # built once: an attack opens a tap many times

    @contextmanager
    def open(
        self, weight_delta: Deltas = NOTHING, score_delta: Deltas = NOTHING, edit: Edit | None = None
    ) -> Iterator[Recording]:
        """Record, and optionally perturb, the attention of the calls inside a `with` block.

        Args:
            weight_delta: What to add to the weights, by site, shaped like them.
            score_delta: What to add to the scores, by site, shaped like them.
            edit: A function `edit(site, attention)` that returns the weights to use instead. The sources of
                `attention` are not known at the softmax and are set to -1.

        Yields:
            Recording: its `attention` holds what was read.
        """
        self._refuse_nesting()
        recording = self._recording = Recording(weight_delta, score_delta, edit)
        with ExitStack() as undo:
            undo.callback(setattr, self, "_recording", None)
            undo.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code would bypass the tap
            for name, layer in self.layers.items():
                undo.enter_context(swapped_class(layer, self._tapped_class(name, type(layer))))
                undo.callback(_watch_edges(name, layer, recording).remove)
            yield recording

    def _refuse_nesting(self) -> None:
        if any(isinstance(layer, _Tapped) for layer in self.layers.values()):
            raise TapError("the model is tapped already; leave the first `with` block before opening another")

    def _tapped_class(self, name: str, cls: type) -> type:
        if (name, cls) not in self._classes:
            softmaxes = {plain: self._softmax(name, plain) for plain in _SOFTMAXES}
            self._classes[name, cls] = _with_softmax(cls, softmaxes)
        return self._classes[name, cls]

    def _softmax(self, name: str, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def record(*args: Any, **kwargs: Any) -> Tensor:
            assert self._recording is not None, "the class of a layer is replaced only while its tap is open"
            return self._recording.softmax(name, plain, *args, **kwargs)

        return record


class _Tapped:
    """Base class of the generated classes: marks a layer whose tap is open."""


def _attends(layer: nn.Module) -> bool:
    return isinstance(layer, MessagePassing | AttentionPoint) and bool(_owners(type(layer)))


def _owners(cls: type) -> dict[type, dict[str, FunctionType]]:
    """Return the base classes of `cls` that define methods with a softmax, with those methods."""
    methods = {owner: {name: f for name, f in vars(owner).items() if _calls_softmax(f)} for owner in cls.__mro__}
    return {owner: functions for owner, functions in methods.items() if functions}


def _calls_softmax(function: Any) -> bool:
    return isinstance(function, FunctionType) and any(
        function.__globals__.get(name) is plain for name in function.__code__.co_names for plain in _SOFTMAXES
    )


def _with_softmax(cls: type, softmaxes: Mapping[Any, Any]) -> type:
    """Return a subclass of `cls` that calls the given softmaxes, also in methods reached through super()."""
    shims = [
        type(owner.__name__, (owner,), {name: with_globals(f, softmaxes) for name, f in methods.items()})
        for owner, methods in _owners(cls).items()
    ]
    bases = shims if shims[0].__base__ is cls else [cls, *shims]
    return subclass(cls, {}, (*bases, _Tapped))


@dataclass(frozen=True)
class _NoteEdges(Hook):
    """Hook on `propagate`, or on an `AttentionPoint`, that records the edges."""

    name: str
    recording: Recording

    def __call__(self, layer: Any, inputs: tuple[Any, ...], named: Mapping[str, Any] = MappingProxyType({})) -> None:
        if isinstance(layer, MessagePassing):
            self.recording.note_edges(self.name, inputs[0], layer.flow)
        else:
            self.recording.note_edges(self.name, named["edge_index"] if "edge_index" in named else inputs[1])


def _watch_edges(name: str, layer: nn.Module, recording: Recording) -> RemovableHandle:
    if isinstance(layer, MessagePassing):
        return layer.register_propagate_forward_pre_hook(_NoteEdges(name, recording))
    return layer.register_forward_pre_hook(_NoteEdges(name, recording), with_kwargs=True)


def _site(name: str, call: int) -> str:
    return name if call == 0 else f"{name}@{call}"


def _targets(inputs: Mapping[str, Any]) -> tuple[Tensor, int]:
    """Return the target of each edge, and the number of targets."""
    if "order" in inputs:
        return inputs["order"].target, inputs["order"].num_targets
    index, num = inputs["index"], inputs.get("num_nodes")
    return index, int(index.max()) + 1 if num is None else int(num)


def _flat(value: Tensor) -> Tensor:
    """Reshape [E] or [E, H] or [E, H, 1] -> [E, H]."""
    return value.unsqueeze(1) if value.dim() == 1 else value.flatten(1)


def _add_delta(site: str, value: Tensor, deltas: Deltas, what: str) -> Tensor:
    if site not in deltas:
        return value
    if deltas[site].numel() != value.numel() or deltas[site].size(0) != value.size(0):
        raise TapError(
            f"the perturbation of the {what} of '{site}' has shape {list(deltas[site].shape)}; "
            f"on this graph it needs {list(_flat(value).shape)}, one row per edge that the layer attends over"
        )
    return value + deltas[site].view_as(value)


def _edit_weight(site: str, call: _Call, edit: Edit) -> _Call:
    ends = torch.stack([torch.full_like(call.index, -1), call.index])  # sources are not known at the softmax
    return replace(call, weight=edit(site, Attention(call.weight, ends, call.num_targets, call.score)))


def _empty(edge_index: Tensor) -> _Call:
    """Return the call of a layer on a graph without edges, where PyG skips the softmax."""
    empty = torch.empty(0, 1, device=edge_index.device)
    return _Call(empty, empty, edge_index[1], 0)


def _same_edges(calls: list[_Call], edges: list[Tensor]) -> bool:
    return len(calls) == len(edges) and all(
        _equal(call.index, edge_index[1]) for call, edge_index in zip(calls, edges, strict=True)
    )


def _entries(adjacency: Any) -> Tensor:
    """Return the indices of the entries. PyG's `to_edge_index` changes a COO tensor in place, which breaks autograd."""
    coo = isinstance(adjacency, Tensor) and adjacency.layout == torch.sparse_coo
    return adjacency._indices() if coo else to_edge_index(adjacency)[0]


def _equal(index: Tensor, other: Tensor) -> bool:
    """Return whether the values are equal. Two views of the same memory are not compared, to avoid a GPU sync."""
    same = index.shape == other.shape and index.stride() == other.stride() and index.dtype == other.dtype
    return (same and index.data_ptr() == other.data_ptr()) or torch.equal(index, other)


def attention_not_read(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the modules whose attention the tap does not see.

    These are torch's `MultiheadAttention`, PyG's global attention (as in `GPSConv`), and modules whose `forward` calls
    torch's `scaled_dot_product_attention`. Modules inside a listed one are not listed again.

    >>> attention_not_read(nn.TransformerEncoderLayer(4, 2))
    ('self_attn',)
    """
    names: list[str] = []
    for name, module in model.named_modules():
        if _has_dense_attention(module) and not any(name.startswith(f"{outer}.") for outer in names):
            names.append(name)
    return tuple(names)


def _has_dense_attention(module: nn.Module) -> bool:
    code = getattr(type(module).forward, "__code__", None)
    return (
        isinstance(module, nn.MultiheadAttention)
        or type(module).__module__.startswith("torch_geometric.nn.attention")
        or (code is not None and "scaled_dot_product_attention" in code.co_names)
    )
