"""In a `with` block PyG's attention layers run on sparse products. Like the tap, this module knows PyG's inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch_geometric.nn import GATConv, GATv2Conv, Linear, MessagePassing, TransformerConv
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.utils import add_self_loops, remove_self_loops

from fgai.graph import edge_keys, parts, version
from fgai.kernels import (
    EdgeOrder,
    Narrow,
    RowByRow,
    Rows,
    Stay,
    aggregate,
    dot_scores,
    product,
    rows_of,
    segmented_softmax,
    summed_scores,
    thinned,
    weighed_scores,
)
from fgai.tap import layers_that_exchange, rebound, seen_as

PAYS_FROM = 5_000  # edges; below, PyG's own path is as fast


class _Memory:
    """Results of functions of tensors, by the tensors themselves; those last used are kept while the block lasts."""

    def __init__(self, size: int = 16) -> None:
        self._size = size
        self._kept: dict[tuple[Any, ...], tuple[Any, Any]] = {}
        self.stay = Stay(torch.empty(0))  # what is made of rows that stay, first by a linear layer

    def forget(self) -> None:
        """The graphs met so far do not come again."""
        self._kept.clear()
        self.stay.after.clear()

    def of(self, *tensors: Tensor, what: Any, make: Callable[[], Any]) -> Any:
        """What `make` gave when it was last asked of these very tensors, unchanged."""
        key = (what, *_marks(tensors))
        _, found = self._kept.pop(key, None) or (tensors, make())
        self._kept[key] = (tensors, found)  # holding the tensors keeps their memory from being used again
        if len(self._kept) > self._size:
            self._kept.pop(next(iter(self._kept)))
        return found

    def order(self, edge_index: Tensor, sizes: tuple[int, int]) -> EdgeOrder:
        """The order of these edges."""
        return self.of(edge_index, what=sizes, make=lambda: EdgeOrder.of(edge_index, *sizes))

    def narrow(self, layer: Any, full: EdgeOrder, ends: Sequence[Tensor]) -> Order:
        """Only what is reached, if all that a layer attends over is as it was but for a few rows."""
        moved = [rows_of(end) for end in ends]
        first, asked = moved[0], torch.is_grad_enabled() and any(p.requires_grad for p in layer.parameters())
        if first is None or asked or any(rows is None or rows.at is not first.at for rows in moved):
            return full
        make = lambda: Narrow.of(full, first.at)  # noqa: E731
        return self.of(full.source, full.target, first.at, what="reached", make=make) or full

    def entries(self, x: Tensor) -> EdgeOrder:
        """The order of a sparse matrix's entries, shared by all with the same pattern: rows are what is summed to."""
        at, (rows, columns) = x.indices(), x.shape
        return self.of(at, what=(columns, rows), make=lambda: EdgeOrder.of(at.flip(0), columns, rows))


def _marks(tensors: Iterable[Tensor]) -> Iterator[Any]:
    """By which a tensor that has not changed is known."""
    return ((t.data_ptr(), version(t), t.shape, t.stride(), t.dtype) for t in tensors)


@contextmanager
def accelerated(model: nn.Module, *, as_pyg: bool = True, hops: Hops = lambda: None) -> Iterator[Callable[[], None]]:
    """GATConv, GATv2Conv and TransformerConv of `model` run on sparse products; every other layer as it was.

    The results are PyG's up to rounding, and so are the gradients. A layer is taken only where the methods that are
    replaced are PyG's own; edge features in TransformerConv, other aggregations, sparse adjacencies, small graphs,
    GPUs and layers with hooks go PyG's way. Linear layers multiply sparse features by their stored entries.
    A run is the same with and without: edges keep their order, dropout draws torch's own masks. With `as_pyg=False`
    GATConv and GATv2Conv sort the edges to which they add self-loops, so attention comes in another order, and
    attention dropout draws cheaper masks of the same distribution. Nothing is left on the model afterwards.

    In a batch, `hops` says how many nodes each hop from the seeds has reached. The l-th of L layers then leaves out the
    edges to nodes more than L - l hops away, which no seed hears of (`as_pyg=False` only); its output there is void.
    The block yields a function that forgets what was remembered of a graph, for batches that do not come again.

    >>> conv = GATConv(3, 2)
    >>> with accelerated(conv):
    ...     y = conv(torch.ones(2, 3), torch.tensor([[0], [1]]))
    >>> type(conv) is GATConv
    True
    """
    memory = _Memory()
    drop = dropout if as_pyg else thinned
    loops = {change: _remembered(change, memory) for change in (remove_self_loops, add_self_loops)}
    exchange = list(layers_that_exchange(model).values())
    with ExitStack() as undo:
        for layer in model.modules():
            if not as_pyg:
                later = len(exchange) - exchange.index(layer) if layer in exchange else 0
                loops[add_self_loops] = _remembered(_sorted_with_loops, memory, partial(_heard, hops, later))
            if (faster := _faster(type(layer), memory, drop, loops)) is not None:
                undo.enter_context(seen_as(layer, faster))
        undo.enter_context(RowByRow())
        yield memory.forget


Hops = Callable[[], Sequence[int] | None]
Near = tuple[int, int]
Drop = Callable[[Tensor, float, bool], Tensor]
Order = EdgeOrder | Narrow
Scores = Callable[[Any, EdgeOrder, Tensor, Tensor], Tensor]  # of a layer, from its sources and its targets


def _heard(hops: Hops, layers: int) -> Near | None:
    """The targets that seeds hear of if so many layers are left: those near, and what was injected after the last."""
    counts = hops()
    return None if counts is None or layers == 0 else (sum(counts[:layers]), sum(counts))


def _sorted_with_loops(
    edge_index: Tensor, edge_attr: Tensor | None = None, *, near: Near | None = None, **settings: Any
) -> Any:
    """`add_self_loops`, then sorted by target and source: most gathers along the edges are then in order."""
    more, attributes = add_self_loops(edge_index, edge_attr, **settings)
    if attributes is not None or more.layout != torch.strided:
        return more, attributes
    if near is not None:
        more = more[:, (more[1] < near[0]) | (more[1] >= near[1])]
    return more[:, edge_keys(more, int(settings["num_nodes"])).argsort()].contiguous(), None


def _faster(cls: Any, memory: _Memory, drop: Drop, loops: Mapping[Any, Any]) -> type | None:
    """A subclass of `cls` that computes by sparse products, if what it replaces is PyG's own."""
    for base, parts_of in KINDS:
        if issubclass(cls, base) and _is_pygs_own(cls, base):
            methods = {**parts_of(cls, memory, drop), "normalise": _normalise}
            if cls.forward is base.forward:
                methods["forward"] = rebound(base.forward, loops)
            return type(cls.__name__, (cls,), methods)
    for base in (nn.Linear, Linear):
        if issubclass(cls, base) and cls.forward is base.forward:
            return type(cls.__name__, (cls,), {"forward": _linear(cls, memory)})
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


def _remembered(
    change: Callable[..., Any], memory: _Memory, near: Callable[[], Near | None] = lambda: None
) -> Callable[..., Any]:
    """Self-loops are taken out and put in once per graph, not once per pass."""

    def remembered(edge_index: Tensor, edge_attr: Tensor | None = None, **settings: Any) -> Any:
        if edge_attr is not None or edge_index.layout != torch.strided:
            return change(edge_index, edge_attr, **settings)
        some = {} if (found := near()) is None else {"near": found}
        make = lambda: change(edge_index, **settings, **some)  # noqa: E731
        return memory.of(edge_index, what=(change, settings.get("num_nodes"), found), make=make)

    return remembered


def _gat_scores(layer: Any, order: EdgeOrder, source: Tensor, target: Tensor) -> Tensor:
    """GATConv: leaky(s_j + t_i)."""
    return summed_scores(source, target, layer.negative_slope, order)


def _gatv2_scores(layer: Any, order: EdgeOrder, source: Tensor, target: Tensor) -> Tensor:
    """GATv2Conv: <a, leaky(s_j + t_i)>."""
    return weighed_scores(source, target, layer.att[0], layer.negative_slope, order)


def _transformer_scores(layer: Any, order: EdgeOrder, source: Tensor, target: Tensor) -> Tensor:
    """TransformerConv: <q_i, k_j> / sqrt(C)."""
    return dot_scores(target, source, order) / math.sqrt(layer.out_channels)


def _additive(scores: Scores, cls: Any, memory: _Memory, drop: Drop) -> dict[str, Any]:
    """These scores, softmax, dropout; then sum_j alpha_ij x_j."""
    return {"propagate": _propagate(cls, _weighted, memory), "edge_updater": _edge_updater(cls, scores, memory, drop)}


def _transformer(cls: Any, memory: _Memory, drop: Drop) -> dict[str, Any]:
    """Scores of queries and keys, softmax, dropout, sum_j alpha_ij v_j."""

    def attend(layer: Any, order: Order, query: Tensor, key: Tensor, value: Tensor, edge_attr: None) -> Tensor:
        layer._alpha = layer.normalise(_scored(_transformer_scores, layer, order, key, query), order)
        return _summed(drop(layer._alpha, layer.dropout, layer.training), value, order)

    return {"propagate": _propagate(cls, attend, memory)}


def _weighted(layer: Any, order: Order, x: tuple[Tensor, Tensor], alpha: Tensor) -> Tensor:
    return _summed(alpha, x[0], order)


def _scored(scores: Scores, layer: Any, order: Order, source: Tensor, target: Tensor) -> Tensor:
    if not isinstance(order, Narrow):
        return scores(layer, order, source, target)
    sources, targets = (some.stay for end in (source, target) if (some := rows_of(end)) is not None)
    others = [targets.value, *layer.parameters(), order.full.source, order.full.target]
    make = lambda: Stay(scores(layer, order.full, sources.value, targets.value))  # noqa: E731
    new = scores(layer, order.part, source, target.index_select(0, order.targets))
    return Rows(sources.then(("score", layer), others, make), order.edges, new).whole()


def _summed(weight: Tensor, value: Tensor, order: Order) -> Tensor:
    if not isinstance(order, Narrow):
        return aggregate(weight, value, order)
    weights, values = rows_of(weight), rows_of(value)
    if values is None or weights is None or weights.at is not order.edges:  # a tap has put others in their place
        return aggregate(weight, value, order.full)
    make = lambda: Stay(aggregate(weights.stay.value, values.stay.value, order.full))  # noqa: E731
    stay = values.stay.then("sum", [weights.stay.value, order.full.source, order.full.target], make)
    return Rows(stay, order.targets, aggregate(weights.new, value, order.part)).whole()


def _normalise(layer: Any, score: Tensor, order: Order) -> Tensor:
    """A method of its own, so that a tap finds the softmax."""
    return segmented_softmax(score, order)


def _propagate(cls: Any, attend: Callable[..., Tensor], memory: _Memory) -> Callable[..., Tensor]:
    def propagate(self: Any, edge_index: Any, size: Any = None, **inputs: Any) -> Tensor:
        sizes = _sizes(inputs)
        if sizes is None or not _pays(self, edge_index, inputs):
            return cls.propagate(self, edge_index, size=size, **inputs)
        for hook in self._propagate_forward_pre_hooks.values():  # a tap notes the edges
            if (changed := hook(self, (edge_index, size, inputs))) is not None:
                edge_index, size, inputs = changed
        return attend(self, memory.narrow(self, memory.order(edge_index, sizes), _ends(inputs)), **inputs)

    return propagate


def _edge_updater(cls: Any, scores: Scores, memory: _Memory, drop: Drop) -> Callable[..., Tensor]:
    def edge_updater(self: Any, edge_index: Any, size: Any = None, **inputs: Any) -> Tensor:
        sizes = _sizes(inputs)
        if sizes is None or not _pays(self, edge_index, inputs):
            return cls.edge_updater(self, edge_index, size=size, **inputs)
        ends = _ends(inputs)
        order = memory.narrow(self, memory.order(edge_index, sizes), ends)
        return drop(self.normalise(_scored(scores, self, order, *ends), order), self.dropout, self.training)

    return edge_updater


def _linear(cls: Any, memory: _Memory) -> Callable[..., Tensor]:
    """The product x W^T + b: rows that stay are multiplied once while W stays, sparse ones by their entries."""

    def forward(self: Any, x: Tensor) -> Tensor:
        both = parts(x)
        if not _has_kernels(x) or x.dim() != 2 or not (x.is_sparse or both):
            return cls.forward(self, x)
        if both is None:
            return with_bias(self, times(x, self.weight, self.training))
        above, below = both[0], with_bias(self, both[1] @ self.weight.t())
        if torch.is_grad_enabled() and any(some.requires_grad for some in (above, *self.parameters())):
            return torch.cat([with_bias(self, times(above, self.weight, self.training)), below])
        return kept(self, above, below)

    def kept(layer: Any, above: Tensor, below: Tensor) -> Tensor:
        ends = above.size(0), above.size(0) + below.size(0)
        at = memory.stay.then(ends, [], lambda: torch.arange(*ends))
        others = [*([above.indices(), above.values()] if above.is_sparse else [above]), *layer.parameters(), at]
        empty = torch.zeros_like(below)
        make = lambda: torch.cat([with_bias(layer, times(above, layer.weight, layer.training)), empty])  # noqa: E731
        return Rows(memory.stay.then(layer, others, lambda: Stay(make())), at, below).whole()

    def with_bias(layer: Any, out: Tensor) -> Tensor:
        return out if layer.bias is None else out + layer.bias

    def times(x: Tensor, weight: Tensor, training: bool) -> Tensor:
        if not x.is_sparse:
            return x @ weight.t()
        x = x.coalesce()
        order, values = memory.entries(x), x.values()
        stays = not training and not values.requires_grad  # no mask is drawn, so these very values come again
        turn = partial(values.index_select, 0, order.turned)
        return product(x, weight, order, memory.of(values, what="turned", make=turn) if stays else None)

    return forward


def _ends(inputs: Mapping[str, Any]) -> Sequence[Tensor]:
    """All that is attended over."""
    if "query" in inputs:
        return inputs["key"], inputs["query"], inputs["value"]
    return inputs["alpha"] if isinstance(inputs.get("alpha"), tuple) else inputs["x"]


def _sizes(inputs: dict[str, Any]) -> tuple[int, int] | None:
    """How many sources and targets there are, where both are known."""
    pairs = (inputs[name] for name in ("x", "alpha") if isinstance(inputs.get(name), tuple))
    source, target = (inputs["key"], inputs["query"]) if "query" in inputs else next(pairs, (None, None))
    return None if source is None or target is None else (source.size(0), target.size(0))


def _pays(layer: Any, edge_index: Any, inputs: dict[str, Any]) -> bool:
    """Only a plain sum along plain edges, on a CPU, large enough, with nobody listening in between."""
    return (
        isinstance(edge_index, Tensor)
        and edge_index.layout == torch.strided
        and edge_index.size(1) >= PAYS_FROM
        and all(map(_has_kernels, _ends(inputs)))
        and layer.flow == "source_to_target"
        and not layer.explain
        and type(layer.aggr_module) is SumAggregation
        and inputs.get("edge_attr") is None
        and not any(vars(layer)[hooks] for hooks in LISTENERS)
    )


def _has_kernels(x: Tensor) -> bool:
    """Sparse products are there on the CPU in single and double precision, and not where autocast would change it."""
    plain = x.device.type == "cpu" and x.dtype in (torch.float, torch.double)
    return plain and not torch.is_autocast_enabled("cpu")


KINDS: tuple[tuple[Any, Callable[..., dict[str, Any]]], ...] = (
    (GATConv, partial(_additive, _gat_scores)),
    (GATv2Conv, partial(_additive, _gatv2_scores)),
    (TransformerConv, _transformer),
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
