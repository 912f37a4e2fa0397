"""Reads and perturbs attention inside a user's own PyG model by intercepting PyG's softmax.

Every sparse attention layer of PyG normalises its scores with one function, `torch_geometric.utils.softmax`. Inside a
`with` block such a layer has a generated subclass whose attention methods call a recording softmax instead. torch's
`MultiheadAttention` runs with a recording softmax too (`fgai.multihead`). Weights are read and perturbed after the
softmax, before the attention dropout and before the aggregation. No global function is patched, no parameter is added,
and leaving the block restores the layer's class (`fgai.patching`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import ASAPooling, MessagePassing
from torch_geometric.nn.aggr import Aggregation
from torch_geometric.utils import add_remaining_self_loops

from fgai.attending import (
    SOFTMAXES,
    aggregating_layer,
    attention_layers,
    attention_not_read,
    has_inner_hooks,
    is_multihead,
    pooling_layers,
    softmax_methods,
)
from fgai.errors import TapError
from fgai.patching import Hook, subclass, swapped_class, with_globals
from fgai.recording import NOTHING, Deltas, Edit, Recording


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
        self.layers = attention_layers(model)
        if not self.layers:
            unread = attention_not_read(model)
            about = f" Attention without weights over neighbours: {', '.join(map(repr, unread))}." if unread else ""
            raise TapError(
                f"{type(model).__name__} has no attention layer: none of its layers calls PyG's softmax.{about} "
                "Mark the attention of a custom layer with fgai.AttentionPoint, or use a model with attention layers "
                "(GATConv, GATv2Conv, TransformerConv, ...)"
            )
        self._pools, modules = pooling_layers(model), dict(model.named_modules())
        owners = {name: aggregating_layer(model, name) for name in self.layers}
        self._owner = {name: outer for name, outer in owners.items() if outer is not None}  # of an aggregation
        self._owners = {outer: modules[outer] for outer in self._owner.values()}
        self._refuse_nesting()
        self._recording: Recording | None = None
        self._classes: dict[tuple[str, type], type] = {}  # built once: an attack opens a tap many times

    @contextmanager
    def open(
        self,
        weight_delta: Deltas = NOTHING,
        score_delta: Deltas = NOTHING,
        edit: Edit | None = None,
        batch: Tensor | None = None,
    ) -> Iterator[Recording]:
        """Record, and optionally perturb, the attention of the calls inside a `with` block.

        Args:
            weight_delta: What to add to the weights, by site, shaped like them.
            score_delta: What to add to the scores, by site, shaped like them.
            edit: A function `edit(site, attention)` that returns the weights to use instead. The sources of
                `attention` are not known at the softmax and are set to -1.
            batch: The graph of each node, [N]. Without it, attention over all nodes is not read.

        Yields:
            Recording: its `attention` holds what was read.
        """
        self._refuse_nesting()
        recording = self._recording = Recording(weight_delta, score_delta, edit, batch)
        with ExitStack() as undo:
            undo.callback(setattr, self, "_recording", None)
            undo.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code would bypass the tap
            if any(map(is_multihead, self.layers.values())):  # so would torch's fused kernels
                undo.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
                torch.backends.mha.set_fastpath_enabled(False)
            for name, layer in {**self._pools, **self._owners, **self.layers}.items():
                undo.enter_context(swapped_class(layer, self._tapped_class(name, type(layer))))
            for name, pool in self._pools.items():
                undo.callback(pool.register_forward_pre_hook(_NotePool(name, recording)).remove)
            for name, layer in self.layers.items():
                if has_inner_hooks(self._owners.get(self._owner.get(name, ""), layer)):
                    recording.lost[name] = (
                        "a hook or a mask on a step inside it may change the weights after its softmax; remove it"
                    )
                undo.callback(self._watch_edges(name, layer, recording))
            yield recording

    def _watch_edges(self, name: str, layer: nn.Module, recording: Recording) -> Callable[[], None]:
        """Register the hook that records the edges of a layer; return what removes it."""
        hook, outer = _NoteEdges(name, recording), self._owner.get(name)
        layer = layer if outer is None else self._owners[outer]
        if isinstance(layer, MessagePassing):
            return layer.register_propagate_forward_pre_hook(hook).remove
        return (lambda: None) if is_multihead(layer) else layer.register_forward_pre_hook(hook, with_kwargs=True).remove

    def _refuse_nesting(self) -> None:
        if any(isinstance(layer, _Tapped) for layer in self.layers.values()):
            raise TapError("the model is tapped already; leave the first `with` block before opening another")

    def _tapped_class(self, name: str, cls: type) -> type:
        if (name, cls) not in self._classes:
            softmaxes = {plain: self._softmax(name, plain) for plain in SOFTMAXES}
            self._classes[name, cls] = (
                subclass(cls, {"forward": self._multihead(name)}, (cls, _Tapped))
                if issubclass(cls, nn.MultiheadAttention)
                else _with_softmax(cls, softmaxes)
            )
        return self._classes[name, cls]

    def _softmax(self, name: str, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def record(*args: Any, **kwargs: Any) -> Tensor:
            assert self._recording is not None, "the class of a layer is replaced only while its tap is open"
            return self._recording.softmax(name, plain, *args, **kwargs)

        return record

    def _multihead(self, name: str) -> Callable[..., Any]:
        def forward(layer: Any, *args: Any, **kwargs: Any) -> Any:
            assert self._recording is not None, "the class of a layer is replaced only while its tap is open"
            inputs = inspect.signature(nn.MultiheadAttention.forward).bind(layer, *args, **kwargs).arguments
            return self._recording.multihead(name, inputs.pop("self"), inputs)

        return forward


class _Tapped:
    """Base class of the generated classes: marks a layer whose tap is open."""


def _with_softmax(cls: type, softmaxes: Mapping[Any, Any]) -> type:
    """Return a subclass of `cls` that calls the given softmaxes, also in methods reached through super()."""
    shims = [
        type(owner.__name__, (owner,), {name: with_globals(f, softmaxes) for name, f in methods.items()})
        for owner, methods in softmax_methods(cls).items()
    ]
    bases = shims if shims and shims[0].__base__ is cls else [cls, *shims]
    return subclass(cls, {}, (*bases, _Tapped))


@dataclass(frozen=True)
class _NotePool(Hook):
    """Hook on a layer that replaces the nodes by fewer ones."""

    name: str
    recording: Recording

    def __call__(self, layer: Any, inputs: tuple[Any, ...]) -> None:
        self.recording.pooled.append(self.name)


@dataclass(frozen=True)
class _NoteEdges(Hook):
    """Hook on `propagate`, or on the call of another kind of layer, that records the edges."""

    name: str
    recording: Recording

    def __call__(self, layer: Any, inputs: tuple[Any, ...], named: Mapping[str, Any] = MappingProxyType({})) -> None:
        if isinstance(layer, MessagePassing):
            self.recording.note_edges(self.name, inputs[0], layer.flow)
            return
        given = inspect.signature(layer.forward).bind(*inputs, **named).arguments
        if isinstance(layer, Aggregation):
            self.recording.note_rows(self.name, given["x"], given.get("index"), given.get("ptr"))
        elif isinstance(layer, ASAPooling):  # as its `forward` does
            edges, _ = add_remaining_self_loops(given["edge_index"], num_nodes=given["x"].size(0))
            self.recording.note_edges(self.name, edges)
        else:
            self.recording.note_edges(self.name, given["edge_index"])
