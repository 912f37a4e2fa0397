"""PyG's attention layers on our kernels. Here, in `fgai.tap` and in `fgai.patching` PyG's inside is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch_geometric.nn import GATConv, GATv2Conv, Linear, MessagePassing, TransformerConv
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.utils import add_self_loops, remove_self_loops

from fgai.cache import TensorCache
from fgai.graph import edge_keys, split_rows
from fgai.kernels.csr import EdgeOrder
from fgai.kernels.incremental import Rows, incremental, rows_of
from fgai.kernels.ops import dot_scores, fast_dropout, gat_scores, gatv2_scores, sparse_linear
from fgai.kernels.subset import EdgeSubset, Order, scored, segmented_softmax, weighted_sum
from fgai.kernels.trim import Near, Trim, trim_edges
from fgai.patching import is_patched, message_passing_layers, subclass, swapped_class, with_globals

MIN_EDGES = 5_000  # below, PyG's own path is as fast


@contextmanager
def accelerated(model: nn.Module, *, exact: bool = True) -> Iterator[Trim]:
    """GATConv, GATv2Conv and TransformerConv of `model` run on sparse products; every other layer as it was.

    For your own training loop; fgai's audits, attacks and methods use it by themselves. The results are PyG's up to
    rounding, and so are the gradients. A layer is taken only where the methods that are replaced are PyG's own; edge
    features in TransformerConv, other aggregations, sparse adjacencies, small graphs, GPUs and layers with hooks go
    PyG's way. Linear layers multiply sparse features by their stored entries. Nothing is left on the model afterwards,
    and copies and pickles made inside the block are of PyG's own classes.

    Args:
        model: Any module; a layer that is in such a block already stays in that one.
        exact: A run is the same with and without the block: edges keep their order, dropout draws torch's masks. With
            False, GATConv and GATv2Conv sort the edges to which they add self-loops, so attention comes in another
            order, and attention dropout draws cheaper masks of the same distribution.

    Yields:
        Trim: to be told of sampled batches, of which only the seeds are asked (`exact=False` only).

    >>> conv = GATConv(3, 2)
    >>> with accelerated(conv):
    ...     y = conv(torch.ones(2, 3), torch.tensor([[0], [1]]))
    >>> type(conv) is GATConv
    True
    """
    kernels, layers = _Kernels(exact), list(message_passing_layers(model).values())
    with ExitStack() as undo:
        undo.callback(kernels.cache.clear)  # generated classes, which refer to it, go only when Python looks for cycles
        for layer in model.modules():
            layers_left = len(layers) - layers.index(layer) if layer in layers and not exact else 0
            if not is_patched(layer) and (faster := _faster(type(layer), kernels, layers_left)) is not None:
                undo.enter_context(swapped_class(layer, faster))
        undo.enter_context(incremental())
        yield kernels.trim


@dataclass(frozen=True)
class _Kernels:
    """What the layers of one block share."""

    exact: bool
    cache: TensorCache = field(default_factory=TensorCache)
    trim: Trim = field(default_factory=Trim)

    def dropout(self, layer: Any, weight: Tensor) -> Tensor:
        """Of attention weights."""
        return (dropout if self.exact else fast_dropout)(weight, layer.dropout, layer.training)

    def order(self, layer: Any, edge_index: Tensor, sizes: tuple[int, int], ends: Sequence[Tensor]) -> Order:
        """Of these edges; of those that are reached, if all that a layer attends over changed in a few rows only."""
        rows = [rows_of(end) for end in ends]
        copied = lambda: EdgeOrder.of(edge_index.clone(), *sizes)  # noqa: E731, the cache must not hold the edges
        full = self.cache.get(("order", sizes), [edge_index], copied)
        first, learns = rows[0], torch.is_grad_enabled() and any(p.requires_grad for p in layer.parameters())
        if first is None or learns or any(other is None or other.at is not first.at for other in rows):
            return full
        reached = partial(EdgeSubset.of, full, first.at)
        return self.cache.get(("reached", sizes), [edge_index, first.at], reached) or full

    def scored(self, scores: Callable[..., Tensor], layer: Any, order: Order, source: Tensor, target: Tensor) -> Tensor:
        """The scores of a layer."""
        return scored(partial(scores, layer), source, target, order, layer, list(layer.parameters()))

    def linear(self, layer: Any, x: Tensor) -> Tensor:
        """The product x W^T + b of features that are sparse, or have injected rows below."""
        parts = split_rows(x)
        if parts is None:
            return _plus_bias(layer, self._times(layer, x))
        above, below = parts[0], _plus_bias(layer, parts[1] @ layer.weight.t())
        if torch.is_grad_enabled() and any(some.requires_grad for some in (above, *layer.parameters())):
            return torch.cat([_plus_bias(layer, self._times(layer, above)), below])
        ends = len(above), len(above) + len(below)
        base = lambda: torch.cat([_plus_bias(layer, self._times(layer, above)), torch.zeros_like(below)])  # noqa: E731
        at = self.cache.get(("below", ends), [above], lambda: torch.arange(*ends))
        known = self.cache.get(("linear", layer, ends), [above, *layer.parameters()], base)
        return Rows(self.cache, known, at, below).tensor()

    def _times(self, layer: Any, x: Tensor) -> Tensor:
        if not x.is_sparse:
            return x @ layer.weight.t()
        x = x.coalesce()
        at, values, (rows, columns) = x.indices(), x.values(), x.shape
        order = self.cache.get(("entries", x.shape), [at], lambda: EdgeOrder.of(at.flip(0), columns, rows))
        transpose = lambda: values.index_select(0, order.transposed)  # noqa: E731
        transposed = lambda: self.cache.get("transposed", [at, values], transpose)  # noqa: E731
        again = not layer.training and not values.requires_grad  # no mask is drawn, so these values come again
        return sparse_linear(x, layer.weight, order, transposed if again else None)


def _plus_bias(layer: Any, out: Tensor) -> Tensor:
    return out if layer.bias is None else out + layer.bias


def _faster(cls: Any, kernels: _Kernels, layers_left: int) -> type | None:
    """A subclass of `cls` that computes by sparse products, if what it replaces is PyG's own."""
    for base, methods_of in KINDS:
        if issubclass(cls, base) and _is_pygs_own(cls, base):
            methods = {**methods_of(cls, kernels), "normalise": _normalise}
            if cls.forward is base.forward:
                methods["forward"] = with_globals(base.forward, _self_loops(kernels, layers_left))
            return subclass(cls, methods)
    for base in (nn.Linear, Linear):
        if issubclass(cls, base) and cls.forward is base.forward:
            return subclass(cls, {"forward": _linear_forward(cls, kernels)})
    return None


def _is_pygs_own(cls: Any, base: type) -> bool:
    names = ("message", "aggregate", "update", "message_and_aggregate", "edge_update")
    return all(_is_generated(cls, name) for name in ("propagate", "edge_updater")) and all(
        getattr(cls, name) is getattr(base, name) for name in names
    )


def _is_generated(cls: type, name: str) -> bool:
    """The method is the one that PyG writes for each class, in a module that it names after it."""
    written = [owner for owner in cls.__mro__ if name in vars(owner) and owner is not MessagePassing]
    prefix = "{0.__module__}_{0.__name__}".format
    return all(vars(owner)[name].__module__.startswith(prefix(owner)) for owner in written)


def _self_loops(kernels: _Kernels, layers_left: int) -> dict[Any, Any]:
    """PyG's functions that take self-loops out and put them in, done once per graph and not once per pass."""

    def cached(change: Callable[..., Any], layers_left: int = 0) -> Callable[..., Any]:
        def changed(edge_index: Tensor, edge_attr: Tensor | None = None, **settings: Any) -> Any:
            if edge_attr is not None or edge_index.layout != torch.strided:
                return change(edge_index, edge_attr, **settings)
            near = kernels.trim.near(layers_left)
            name = (change, settings.get("num_nodes"), near)
            more = {"near": near} if layers_left else {}
            return kernels.cache.get(name, [edge_index], lambda: change(edge_index, **settings, **more))

        return changed

    add = cached(add_self_loops) if kernels.exact else cached(_add_self_loops_sorted, layers_left)
    return {remove_self_loops: cached(remove_self_loops), add_self_loops: add}


def _add_self_loops_sorted(
    edge_index: Tensor, edge_attr: Tensor | None = None, *, near: Near | None = None, **settings: Any
) -> Any:
    """`add_self_loops`, then sorted by target and source: most gathers along the edges are then in order."""
    more, attributes = add_self_loops(edge_index, edge_attr, **settings)
    if attributes is not None or more.layout != torch.strided:
        return more, attributes
    more = more if near is None else trim_edges(more, near)
    return more[:, edge_keys(more, int(settings["num_nodes"])).argsort()].contiguous(), None


def _gat(layer: Any, source: Tensor, target: Tensor, order: EdgeOrder) -> Tensor:
    return gat_scores(source, target, layer.negative_slope, order)


def _gatv2(layer: Any, source: Tensor, target: Tensor, order: EdgeOrder) -> Tensor:
    return gatv2_scores(source, target, layer.att[0], layer.negative_slope, order)


def _transformer(layer: Any, source: Tensor, target: Tensor, order: EdgeOrder) -> Tensor:
    """<q_i, k_j> / sqrt(C)."""
    return dot_scores(target, source, order) / math.sqrt(layer.out_channels)


def _gat_methods(scores: Callable[..., Tensor], cls: Any, kernels: _Kernels) -> dict[str, Any]:
    """GATConv, GATv2Conv: `edge_updater` makes scores, softmax and dropout; `propagate` sums alpha_ij x_j."""

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
    """TransformerConv: `propagate` makes scores, softmax, dropout, and sums alpha_ij v_j."""

    def attend(layer: Any, order: Order, inputs: Mapping[str, Any]) -> Tensor:
        score = kernels.scored(_transformer, layer, order, inputs["key"], inputs["query"])
        layer._alpha = layer.normalise(score, order)
        return weighted_sum(kernels.dropout(layer, layer._alpha), inputs["value"], order)

    return {"propagate": _method(cls, "propagate", kernels, attend)}


def _method(cls: Any, name: str, kernels: _Kernels, fast: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A method of `cls` that computes by `fast` where it can, and PyG's way elsewhere."""

    def method(self: Any, edge_index: Any, size: Any = None, **inputs: Any) -> Tensor:
        if (sizes := _sizes(inputs)) is None or not _pays(self, edge_index, inputs):
            return getattr(cls, name)(self, edge_index, size=size, **inputs)
        for hook in self._propagate_forward_pre_hooks.values() if name == "propagate" else ():  # a tap notes the edges
            if (changed := hook(self, (edge_index, size, inputs))) is not None:
                edge_index, size, inputs = changed
        return fast(self, kernels.order(self, edge_index, sizes, _ends(inputs)), inputs)

    return method


def _normalise(layer: Any, score: Tensor, order: Order) -> Tensor:
    """A method of its own, so that a tap finds the softmax."""
    return segmented_softmax(score, order)


def _linear_forward(cls: Any, kernels: _Kernels) -> Callable[..., Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        ours = _has_kernels(x) and x.dim() == 2 and (x.is_sparse or split_rows(x) is not None)
        return kernels.linear(self, x) if ours else cls.forward(self, x)

    return forward


def _ends(inputs: Mapping[str, Any]) -> Sequence[Tensor]:
    """All that is attended over."""
    if "query" in inputs:
        return inputs["key"], inputs["query"], inputs["value"]
    return inputs["alpha"] if isinstance(inputs.get("alpha"), tuple) else inputs["x"]


def _sizes(inputs: Mapping[str, Any]) -> tuple[int, int] | None:
    """How many sources and targets there are, where both are known."""
    pairs = (inputs[name] for name in ("x", "alpha") if isinstance(inputs.get(name), tuple))
    source, target = (inputs["key"], inputs["query"]) if "query" in inputs else next(pairs, (None, None))
    return None if source is None or target is None else (source.size(0), target.size(0))


def _pays(layer: Any, edge_index: Any, inputs: dict[str, Any]) -> bool:
    """Only a plain sum along plain edges, large enough, where kernels are, and without hooks in between."""
    return (
        isinstance(edge_index, Tensor)
        and edge_index.layout == torch.strided
        and edge_index.size(1) >= MIN_EDGES
        and all(map(_has_kernels, _ends(inputs)))
        and layer.flow == "source_to_target"
        and not layer.explain
        and type(layer.aggr_module) is SumAggregation
        and inputs.get("edge_attr") is None
        and not any(vars(layer)[hooks] for hooks in LISTENERS)
    )


def _has_kernels(x: Tensor) -> bool:
    """Torch has sparse products on the CPU in single and double precision; autocast would change the precision."""
    return x.device.type == "cpu" and x.dtype in (torch.float, torch.double) and not torch.is_autocast_enabled("cpu")


KINDS: tuple[tuple[Any, Callable[..., dict[str, Any]]], ...] = (
    (GATConv, partial(_gat_methods, _gat)),
    (GATv2Conv, partial(_gat_methods, _gatv2)),
    (TransformerConv, _transformer_methods),
)
LISTENERS = tuple(
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
