"""Runs PyG's attention layers on the kernels. Besides this module, the tap and `fgai.patching` use PyG's internals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch_geometric.nn import GATConv, GATv2Conv, Linear, MessagePassing, TransformerConv
from torch_geometric.nn.aggr import SumAggregation

from fgai.cache import TensorCache
from fgai.kernels.csr import EdgeOrder
from fgai.kernels.incremental import Rows, incremental, rows_of
from fgai.kernels.loops import self_loops
from fgai.kernels.ops import dot_scores, fast_dropout, gat_scores, gatv2_scores, sparse_linear
from fgai.kernels.subset import EdgeSubset, Order, scored, segmented_softmax, weighted_sum
from fgai.kernels.trim import Trim
from fgai.patching import is_patched, message_passing_layers, subclass, swapped_class, with_globals
from fgai.rows import split_rows

MIN_EDGES = 5_000  # with fewer edges, PyG is as fast


@contextmanager
def accelerated(model: nn.Module, *, exact: bool = True, frozen: bool = False) -> Iterator[Trim]:
    """Run GATConv, GATv2Conv and TransformerConv of `model` as sparse products inside a `with` block.

    Use it in your own training loop; fgai's audits, attacks and methods use it already. Outputs and gradients equal
    PyG's up to rounding. A layer is replaced only if it does not override the replaced methods. PyG's code still runs
    for edge features in TransformerConv, other aggregations, sparse adjacencies, small graphs, GPUs and layers with
    hooks. Linear layers multiply only the stored entries of sparse features. When the block ends, the model is as it
    was before; copies and pickles made inside the block have PyG's classes.

    Args:
        model: Any module. Layers that an outer block has replaced are not replaced again.
        exact: If True, edges keep their order and dropout samples torch's masks, so a run is the same with and without
            the block. If False, GATConv and GATv2Conv sort the edges to which they add self-loops, unless
            they return the attention weights, and attention dropout samples cheaper masks of the same distribution.
        frozen: Whether no parameter changes inside the block. The products of features with a linear layer are then
            computed once per graph.

    Yields:
        Trim: takes the counts of sampled batches of which only the seed nodes are read (`exact=False` only).

    >>> conv = GATConv(3, 2)
    >>> with accelerated(conv):
    ...     y = conv(torch.ones(2, 3), torch.tensor([[0], [1]]))
    >>> type(conv) is GATConv
    True
    """
    kernels, layers = _Kernels(exact, frozen), list(message_passing_layers(model).values())
    with ExitStack() as undo:
        undo.callback(kernels.cache.clear)  # the generated classes refer to it until they are garbage-collected
        for layer in model.modules():
            layers_left = len(layers) - layers.index(layer) if layer in layers and not exact else 0
            if not is_patched(layer) and (faster := _accelerated_class(type(layer), kernels, layers_left)) is not None:
                undo.enter_context(swapped_class(layer, faster))
        undo.enter_context(incremental())
        yield kernels.trim


@dataclass(frozen=True)
class _Kernels:
    """State that the layers of one block share."""

    exact: bool
    frozen: bool
    cache: TensorCache = field(default_factory=TensorCache)
    trim: Trim = field(default_factory=Trim)

    def dropout(self, layer: Any, weight: Tensor) -> Tensor:
        """Apply dropout to attention weights."""
        return (dropout if self.exact else fast_dropout)(weight, layer.dropout, layer.training)

    def order(self, layer: Any, edge_index: Tensor, sizes: tuple[int, int], ends: Sequence[Tensor]) -> Order:
        """Return the order of the edges; of the reached ones only, if the layer's inputs changed in a few rows only."""
        rows = [rows_of(end) for end in ends]
        copied = lambda: EdgeOrder.of(edge_index.clone(), *sizes)  # noqa: E731, a result must not share its key's memory
        full = self.cache.get(("order", sizes), [edge_index], copied)
        first, trains = rows[0], torch.is_grad_enabled() and any(p.requires_grad for p in layer.parameters())
        if first is None or trains or any(other is None or other.at is not first.at for other in rows):
            return full
        reached = partial(EdgeSubset.of, full, first.at)
        return self.cache.get(("reached", sizes), [edge_index, first.at], reached) or full

    def scored(self, scores: Callable[..., Tensor], layer: Any, order: Order, source: Tensor, target: Tensor) -> Tensor:
        """Return the attention scores of a layer."""
        return scored(partial(scores, layer), source, target, order, layer, list(layer.parameters()))

    def linear(self, layer: Any, x: Tensor) -> Tensor:
        """Return x W^T + b for features that are sparse, or end with injected rows."""
        parts = split_rows(x)
        if parts is None:
            return _add_bias(layer, self._multiply(layer, x))
        above, below = parts[0], _add_bias(layer, parts[1] @ layer.weight.t())
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (above, *layer.parameters())):
            return torch.cat([_add_bias(layer, self._multiply(layer, above)), below])
        ends = len(above), len(above) + len(below)
        base = lambda: torch.cat([_add_bias(layer, self._multiply(layer, above)), torch.zeros_like(below)])  # noqa: E731
        at = self.cache.get(("below", ends), [above], lambda: torch.arange(*ends))
        known = self.cache.get(("linear", layer, ends), [above, *layer.parameters()], base)
        return Rows(self.cache, known, at, below).tensor()

    def _multiply(self, layer: Any, x: Tensor) -> Tensor:
        if not x.is_sparse:
            return x @ layer.weight.t()
        x = x.coalesce()
        at, values, (rows, columns) = x.indices(), x.values(), x.shape
        order = self.cache.get(("entries", x.shape), [at], lambda: EdgeOrder.of(at.flip(0), columns, rows))
        transpose = lambda: values.index_select(0, order.transposed)  # noqa: E731
        transposed = lambda: self.cache.get("transposed", [at, values], transpose)  # noqa: E731
        constant = not layer.training and not values.requires_grad  # without dropout, the next pass has the same values
        return sparse_linear(x, layer.weight, order, transposed if constant else None)


def _add_bias(layer: Any, out: Tensor) -> Tensor:
    return out if layer.bias is None else out + layer.bias


def _accelerated_class(cls: Any, kernels: _Kernels, layers_left: int) -> type | None:
    """Return a subclass of `cls` that uses the kernels, or None if `cls` overrides what it would replace."""
    for base, methods_of in KINDS:
        if issubclass(cls, base) and _has_pyg_methods(cls, base):
            methods = {**methods_of(cls, kernels), "normalise": _normalise}
            if cls.forward is base.forward:
                methods["forward"] = _forward(base, kernels, layers_left)
            return subclass(cls, methods)
    for base in (nn.Linear, Linear):
        if issubclass(cls, base) and cls.forward is base.forward:
            return subclass(cls, {"forward": _linear_forward(cls, kernels)})
    return None


def _forward(base: Any, kernels: _Kernels, layers_left: int) -> Callable[..., Any]:
    """Return `base.forward` with self-loops that are added once per graph; sorted if nobody sees the order of edges."""
    in_order = with_globals(base.forward, self_loops(kernels.cache, kernels.trim, layers_left))
    as_given = with_globals(base.forward, self_loops(kernels.cache))
    names = list(signature(base.forward).parameters)[3:]

    @wraps(base.forward)
    def forward(self: Any, x: Any, edge_index: Any, *args: Any, **kwargs: Any) -> Any:
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        free = not kernels.exact or (not args and _order_is_free(self, edge_index))
        hidden = free and named.get("return_attention_weights") is None
        return (in_order if hidden else as_given)(self, x, edge_index, *args, **kwargs)

    return forward


def _order_is_free(layer: Any, edge_index: Any) -> bool:
    """Return whether a layer's output does not depend on the order of the edges, and no hook or tap sees it."""
    hooks = (*INNER_HOOKS, "_propagate_forward_pre_hooks")
    return (
        isinstance(edge_index, Tensor)
        and edge_index.layout == torch.strided
        and edge_index.size(1) >= MIN_EDGES
        and not (layer.training and layer.dropout > 0)
        and not any(vars(layer)[name] for name in hooks)
    )


def _has_pyg_methods(cls: Any, base: type) -> bool:
    names = ("message", "aggregate", "update", "message_and_aggregate", "edge_update")
    return all(_is_generated(cls, name) for name in ("propagate", "edge_updater")) and all(
        getattr(cls, name) is getattr(base, name) for name in names
    )


def _is_generated(cls: type, name: str) -> bool:
    """Return whether PyG generated the method, in a module that it names after the class."""
    owners = [owner for owner in cls.__mro__ if name in vars(owner) and owner is not MessagePassing]
    prefix = "{0.__module__}_{0.__name__}".format
    return all(vars(owner)[name].__module__.startswith(prefix(owner)) for owner in owners)


def _gat(layer: Any, source: Tensor, target: Tensor, order: EdgeOrder) -> Tensor:
    return gat_scores(source, target, layer.negative_slope, order)


def _gatv2(layer: Any, source: Tensor, target: Tensor, order: EdgeOrder) -> Tensor:
    return gatv2_scores(source, target, layer.att[0], layer.negative_slope, order)


def _transformer(layer: Any, source: Tensor, target: Tensor, order: EdgeOrder) -> Tensor:
    """Return <q_i, k_j> / sqrt(C)."""
    return dot_scores(target, source, order) / math.sqrt(layer.out_channels)


def _gat_methods(scores: Callable[..., Tensor], cls: Any, kernels: _Kernels) -> dict[str, Any]:
    """GATConv, GATv2Conv: `edge_updater` computes scores, softmax and dropout; `propagate` sums alpha_ij x_j."""

    def attend(layer: Any, order: Order, inputs: Mapping[str, Any]) -> Tensor:
        weight = layer.normalise(kernels.scored(scores, layer, order, *_ends(inputs)), order)
        return kernels.dropout(layer, weight)

    def total(layer: Any, order: Order, inputs: Mapping[str, Any]) -> Tensor:
        return weighted_sum(inputs["alpha"], inputs["x"][0], order)

    return {
        "edge_updater": _method(cls, "edge_updater", kernels, attend),
        "propagate": _method(cls, "propagate", kernels, total),
    }


def _transformer_methods(cls: Any, kernels: _Kernels) -> dict[str, Any]:
    """TransformerConv: `propagate` computes scores, softmax and dropout, and sums alpha_ij v_j."""

    def attend(layer: Any, order: Order, inputs: Mapping[str, Any]) -> Tensor:
        score = kernels.scored(_transformer, layer, order, inputs["key"], inputs["query"])
        layer._alpha = layer.normalise(score, order)
        return weighted_sum(kernels.dropout(layer, layer._alpha), inputs["value"], order)

    return {"propagate": _method(cls, "propagate", kernels, attend)}


def _method(cls: Any, name: str, kernels: _Kernels, fast: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a method of `cls` that calls `fast` where supported, and PyG's method elsewhere."""

    def method(self: Any, edge_index: Any, size: Any = None, **inputs: Any) -> Tensor:
        if (sizes := _sizes(inputs)) is None or not _is_supported(self, edge_index, inputs):
            return getattr(cls, name)(self, edge_index, size=size, **inputs)
        for hook in (
            self._propagate_forward_pre_hooks.values() if name == "propagate" else ()
        ):  # a tap records the edges
            if (changed := hook(self, (edge_index, size, inputs))) is not None:
                edge_index, size, inputs = changed
        return fast(self, kernels.order(self, edge_index, sizes, _ends(inputs)), inputs)

    return method


def _normalise(layer: Any, score: Tensor, order: Order) -> Tensor:
    """Apply the softmax, in a separate method so that a tap finds it."""
    return segmented_softmax(score, order)


def _linear_forward(cls: Any, kernels: _Kernels) -> Callable[..., Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        if not _has_kernels(x) or x.dim() != 2 or rows_of(x) is not None:
            return cls.forward(self, x)
        if x.is_sparse or split_rows(x) is not None:
            return kernels.linear(self, x)
        if not kernels.frozen:
            return cls.forward(self, x)
        known = kernels.cache.get(("linear", self), [x, *self.parameters()], lambda: cls.forward(self, x))
        return known if known.requires_grad else known.clone()  # a model may change it in place

    return forward


def _ends(inputs: Mapping[str, Any]) -> Sequence[Tensor]:
    """Return the inputs of sources and targets that the layer attends over."""
    if "query" in inputs:
        return inputs["key"], inputs["query"], inputs["value"]
    return inputs["alpha"] if isinstance(inputs.get("alpha"), tuple) else inputs["x"]


def _sizes(inputs: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the numbers of sources and targets, or None if one is unknown."""
    pairs = (inputs[name] for name in ("x", "alpha") if isinstance(inputs.get(name), tuple))
    source, target = (inputs["key"], inputs["query"]) if "query" in inputs else next(pairs, (None, None))
    return None if source is None or target is None else (source.size(0), target.size(0))


def _is_supported(layer: Any, edge_index: Any, inputs: dict[str, Any]) -> bool:
    """Return whether this is a plain sum over enough plain edges, on a device with kernels, without hooks inside."""
    return (
        isinstance(edge_index, Tensor)
        and edge_index.layout == torch.strided
        and edge_index.size(1) >= MIN_EDGES
        and all(map(_has_kernels, _ends(inputs)))
        and layer.flow == "source_to_target"
        and not layer.explain
        and type(layer.aggr_module) is SumAggregation
        and inputs.get("edge_attr") is None
        and not any(vars(layer)[hooks] for hooks in INNER_HOOKS)
    )


def _has_kernels(x: Tensor) -> bool:
    """Return whether the kernels support the tensor: on the CPU, single or double precision, no autocast."""
    return x.device.type == "cpu" and x.dtype in (torch.float, torch.double) and not torch.is_autocast_enabled("cpu")


KINDS: tuple[tuple[Any, Callable[..., dict[str, Any]]], ...] = (
    (GATConv, partial(_gat_methods, _gat)),
    (GATv2Conv, partial(_gat_methods, _gatv2)),
    (TransformerConv, _transformer_methods),
)
INNER_HOOKS = tuple(
    f"_{place}_forward_{when}"
    for place, when in (
        ("propagate", "hooks"),
        ("message", "pre_hooks"),
        ("message", "hooks"),
        ("aggregate", "pre_hooks"),
        ("aggregate", "hooks"),
        ("edge_update", "pre_hooks"),
        ("edge_update", "hooks"),
    )
)
