"""In a `with` block PyG's attention layers run on sparse products. Like the tap, this module knows PyG's inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch_geometric.nn import GATConv, GATv2Conv, MessagePassing, TransformerConv
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.utils import add_self_loops, remove_self_loops, softmax

from fgai.kernels import EdgeOrder, aggregate, dot_scores
from fgai.tap import rebound, seen_as

PAYS_FROM = 5_000  # edges; below, PyG's own path is as fast


class _Memory:
    """Results of functions of edge tensors, by the tensor itself; the last few are kept while the block lasts."""

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self._kept: dict[tuple[Any, ...], tuple[Tensor, Any]] = {}

    def of(self, edge_index: Tensor, *what: Any, make: Callable[[], Any]) -> Any:
        """What `make` gave when it was last asked of this very tensor, unchanged."""
        key = (id(edge_index), edge_index._version, *what)
        if key not in self._kept:
            if len(self._kept) >= self._size:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = (edge_index, make())  # holding the tensor keeps its id
        return self._kept[key][1]


@contextmanager
def accelerated(model: nn.Module) -> Iterator[None]:
    """GATConv, GATv2Conv and TransformerConv of `model` run on sparse products; every other layer as it was.

    The results are PyG's up to rounding, and so are the gradients. A layer is taken only where the methods that are
    replaced are PyG's own; edge features in TransformerConv, other aggregations, sparse adjacencies, small graphs,
    GPUs and layers with hooks go PyG's way. Nothing is left on the model afterwards.

    >>> conv = GATConv(3, 2)
    >>> with accelerated(conv):
    ...     y = conv(torch.ones(2, 3), torch.tensor([[0], [1]]))
    >>> type(conv) is GATConv
    True
    """
    memory = _Memory()
    with ExitStack() as undo:
        for layer in model.modules():
            if (faster := _faster(type(layer), memory)) is not None:
                undo.enter_context(seen_as(layer, faster))
        yield


def _faster(cls: type, memory: _Memory) -> type | None:
    """A subclass of `cls` that propagates by sparse products, if what it replaces is PyG's own."""
    for base, attend in ((GATConv, _weighted), (GATv2Conv, _weighted), (TransformerConv, _dot_product)):
        if issubclass(cls, base) and _is_pygs_own(cls, base):
            methods = {"propagate": _propagate(cls, attend, memory), "normalise": _normalise}
            if cls.forward is base.forward:
                loops = (remove_self_loops, add_self_loops)
                methods["forward"] = rebound(base.forward, {change: _remembered(change, memory) for change in loops})
            return type(cls.__name__, (cls,), methods)
    return None


def _is_pygs_own(cls: Any, base: type) -> bool:
    names = ("message", "aggregate", "update", "message_and_aggregate", "edge_update")
    written = [owner for owner in cls.__mro__ if "propagate" in vars(owner) and owner is not MessagePassing]
    prefix = "{0.__module__}_{0.__name__}".format  # of the modules that PyG generates
    generated = all(vars(owner)["propagate"].__module__.startswith(prefix(owner)) for owner in written)
    return generated and all(getattr(cls, name) is getattr(base, name) for name in names)


def _remembered(change: Callable[..., Any], memory: _Memory) -> Callable[..., Any]:
    """Self-loops are taken out and put in once per graph, not once per pass."""

    def remembered(edge_index: Tensor, edge_attr: Tensor | None = None, **settings: Any) -> Any:
        if edge_attr is not None:
            return change(edge_index, edge_attr, **settings)
        make = lambda: change(edge_index, **settings)  # noqa: E731
        return memory.of(edge_index, change, settings.get("num_nodes"), make=make)

    return remembered


def _propagate(cls: Any, attend: Callable[..., Tensor], memory: _Memory) -> Callable[..., Tensor]:
    def propagate(self: Any, edge_index: Any, size: Any = None, **inputs: Any) -> Tensor:
        sizes = _sizes(inputs)
        if sizes is None or not _pays(self, edge_index, inputs):
            return cls.propagate(self, edge_index, size=size, **inputs)
        for hook in self._propagate_forward_pre_hooks.values():  # a tap notes the edges
            hook(self, (edge_index, size, inputs))
        order = memory.of(edge_index, *sizes, make=lambda: EdgeOrder.of(edge_index, *sizes))
        return attend(self, edge_index, order, **inputs)

    return propagate


def _sizes(inputs: dict[str, Any]) -> tuple[int, int] | None:
    """How many sources and targets there are, where both are known."""
    source, target = inputs["x"] if "x" in inputs else (inputs["key"], inputs["query"])
    return None if target is None else (source.size(0), target.size(0))


def _pays(layer: Any, edge_index: Any, inputs: dict[str, Any]) -> bool:
    """Only a plain sum along plain edges, on a CPU, large enough, with nobody listening in between."""
    return (
        isinstance(edge_index, Tensor)
        and edge_index.layout == torch.strided
        and edge_index.device.type == "cpu"
        and edge_index.size(1) >= PAYS_FROM
        and layer.flow == "source_to_target"
        and not layer.explain
        and type(layer.aggr_module) is SumAggregation
        and inputs.get("edge_attr") is None
        and not any(vars(layer)[hooks] for hooks in LISTENERS)
    )


LISTENERS = tuple(
    f"_{place}_forward_{when}"
    for place, when in (
        ("propagate", "hooks"),
        ("message", "pre_hooks"),
        ("message", "hooks"),
        ("aggregate", "pre_hooks"),
        ("aggregate", "hooks"),
    )
)


def _weighted(layer: Any, edge_index: Tensor, order: EdgeOrder, x: tuple[Tensor, Tensor], alpha: Tensor) -> Tensor:
    """GATConv and GATv2Conv: sum_j alpha_ij x_j."""
    return aggregate(alpha, x[0], order)


def _dot_product(
    layer: Any, edge_index: Tensor, order: EdgeOrder, query: Tensor, key: Tensor, value: Tensor, edge_attr: None
) -> Tensor:
    """TransformerConv: scores <q_i, k_j> / sqrt(C), softmax, dropout, sum_j alpha_ij v_j."""
    score = dot_scores(query, key, order) / math.sqrt(layer.out_channels)
    layer._alpha = layer.normalise(score, edge_index[1], order.num_targets)
    return aggregate(dropout(layer._alpha, layer.dropout, layer.training), value, order)


def _normalise(layer: Any, score: Tensor, index: Tensor, num_targets: int) -> Tensor:
    """A method of its own, so that a tap finds the softmax."""
    return softmax(score, index, num_nodes=num_targets)
