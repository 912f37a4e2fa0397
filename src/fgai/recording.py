"""What an open tap records: the calls of the softmax and the edges of each layer, with their perturbations."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.utils import is_sparse, to_edge_index

from fgai.attention import Attention, Over
from fgai.errors import TapError
from fgai.multihead import Layout, attend, layout_of

Deltas = Mapping[str, Tensor]
Edit = Callable[[str, Attention], Tensor]  # (site, attention) -> the weights to use instead
NOTHING: Deltas = MappingProxyType({})


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
    batch: Tensor | None = None  # [N], the graph of each node; None if the nodes are of several types
    calls: dict[str, list[_Call]] = field(default_factory=lambda: defaultdict(list))
    edges: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    rows: dict[str, Tensor] = field(default_factory=dict)  # the edges of aggregations, which may attend several times
    over: dict[str, Over] = field(default_factory=dict)
    sites: list[str] = field(default_factory=list)  # in the order of execution
    lost: dict[str, str] = field(default_factory=dict)  # layers that were not read, and the reasons
    pooled: list[str] = field(default_factory=list)  # layers that have replaced the nodes by fewer ones

    @property
    def attention(self) -> dict[str, Attention]:
        """The recorded attention by site, in the order of execution."""
        by_site: dict[str, Attention] = {}
        for name in [name for name, calls in self.calls.items() if calls and name not in self.edges]:
            self.lost[name] = (
                "it calls PyG's softmax without `propagate`, so its edges are not known; call fgai.AttentionPoint "
                "in place of the softmax"
            )
        for name, edges in self.edges.items():
            calls = self.calls[name] or [_empty(edge_index) for edge_index in edges if edge_index.size(1) == 0]
            if calls and not _same_edges(calls, edges):
                raise TapError(
                    f"layer '{name}' normalises over parts of its edges, so it has no attention per edge to read; "
                    "use its variant that normalises over all edges of a target"
                )
            for number, (call, edge_index) in enumerate(zip(calls, edges, strict=bool(calls))):
                over = self.over.get(name, "edges")
                over = "graphs" if self._pools(call, edge_index) else over
                attention = Attention(call.weight, edge_index, call.num_targets, call.score, over)
                by_site[site_name(name, number)] = attention
        if self.lost and not by_site:
            raise TapError(f"no attention can be read: {'; '.join(f'{n!r}: {why}' for n, why in self.lost.items())}")
        unknown = sorted((self.weight_delta.keys() | self.score_delta.keys()) - by_site.keys())
        if unknown:
            raise TapError(f"no attention is called {unknown}; in this model there is {sorted(by_site)}")
        return {site: by_site[site] for site in self.sites if site in by_site}

    def softmax(self, name: str, plain: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Call the softmax `plain` with the perturbations of this site, and record its scores and weights."""
        inputs = inspect.signature(plain).bind(*args, **kwargs).arguments
        if self._is_lost(name):
            return plain(**inputs)
        if name in self.rows:
            self.note_edges(name, self.rows[name], over="graphs")
        site = site_name(name, len(self.calls[name]))
        score = inputs["src"] = _add_delta(site, inputs["src"], self.score_delta, "scores")
        weight = _add_delta(site, plain(**inputs), self.weight_delta, "weights")
        call = _Call(_flat(score), _flat(weight), *_targets(inputs))
        self.calls[name].append(call if self.edit is None else _edit_weight(site, call, self.edit))
        return self.calls[name][-1].weight.view_as(weight)

    def multihead(self, name: str, layer: Any, inputs: dict[str, Any]) -> Any:
        """Call torch's multi-head attention; record and perturb its weights if they belong to pairs of nodes."""
        mask = inputs.get("key_padding_mask")
        if self.batch is None:
            self.lost[name] = "it attends over all nodes, and here they are of several types"
        elif not self._is_lost(name):
            layout = layout_of(layer, inputs["query"], inputs["key"], mask, self.batch)
            if not isinstance(layout, str):
                return attend(layer, partial(self._softmax_of_pairs, name, layout, layer.num_heads), inputs)
            self.lost[name] = layout
        return nn.MultiheadAttention.forward(layer, **inputs)

    def _softmax_of_pairs(self, name: str, layout: Layout, heads: int, score: Tensor, dim: int) -> Tensor:
        """Return the softmax of scores [B H, L, S] with the perturbations of this site, and record it."""
        dense = score.view(-1, heads, *score.shape[1:])
        entries = layout.select(dense)
        masked = entries == -torch.inf  # by `attn_mask`
        if bool(masked.any()):
            allowed = ~masked.all(1)
            layout, entries = layout.where(allowed), entries[allowed].clamp(min=torch.finfo(score.dtype).min)
        self.note_edges(name, layout.edge_index, over=layout.over)
        perturbed = self.edit is not None or site_name(name, len(self.calls[name])) in self.weight_delta
        result: list[Tensor] = []

        def normalise(src: Tensor, index: Tensor, num_nodes: int) -> Tensor:
            result.append((dense if src is entries else layout.put(dense, src)).softmax(dim))
            return layout.select(result[0])

        weight = self.softmax(name, normalise, entries, layout.edge_index[1], layout.num_targets)
        return (layout.put(result[0], weight) if perturbed else result[0]).reshape_as(score)

    def note_edges(self, name: str, edge_index: Tensor, flow: str = "source_to_target", over: Over = "edges") -> None:
        """Record the edges, source -> target, that a layer is about to attend over."""
        if self._is_lost(name):
            return
        if is_sparse(edge_index):  # sparse adjacencies are stored transposed
            edge_index = _entries(edge_index).flip(0)
        self.sites.append(site_name(name, len(self.edges[name])))
        self.edges[name].append(edge_index.flip(0) if flow == "target_to_source" else edge_index)
        self.over[name] = over

    def note_rows(self, name: str, x: Tensor, index: Tensor | None, ptr: Tensor | None) -> None:
        """Record that an aggregation is about to attend over the rows of `x`, the nodes of each graph."""
        if index is None and ptr is not None:
            index = torch.arange(len(ptr) - 1, device=x.device).repeat_interleave(ptr.diff())
        if self.batch is None or index is None or len(index) != len(self.batch):
            self.lost.setdefault(name, "it attends over something else than the nodes of a graph")
        else:
            self.rows[name] = torch.stack([torch.arange(len(index), device=index.device), index])

    def _is_lost(self, name: str) -> bool:
        """Return whether a layer cannot be read, and note why if it is after a layer that pools the nodes."""
        outside = [pool for pool in self.pooled[:1] if not name.startswith(f"{pool}.") and name != pool]
        if outside or len(self.pooled) > 1:
            self.lost.setdefault(name, f"the nodes that it attends over are what '{self.pooled[0]}' made of them")
        return name in self.lost

    def _pools(self, call: _Call, edge_index: Tensor) -> bool:
        """Return whether the edges of a message-passing layer go from each node to its graph."""
        batch = self.batch
        if batch is None or edge_index.size(1) != len(batch) or call.num_targets == len(batch):
            return False
        ends = torch.stack([torch.arange(len(batch), device=batch.device), batch])
        return call.num_targets == int(batch.max()) + 1 and torch.equal(edge_index, ends)


def site_name(name: str, call: int) -> str:
    """Return the name of the attention of one call of a layer; calls count from 0.

    >>> site_name("conv", 0), site_name("conv", 1)
    ('conv', 'conv@1')
    """
    return name if call == 0 else f"{name}@{call}"


def _targets(inputs: Mapping[str, Any]) -> tuple[Tensor, int]:
    """Return the target of each edge, and the number of targets."""
    if "order" in inputs:
        return inputs["order"].target, inputs["order"].num_targets
    index, num, ptr = inputs.get("index"), inputs.get("num_nodes"), inputs.get("ptr")
    if index is None:
        assert ptr is not None, "PyG's softmax needs one of them"
        return torch.arange(len(ptr) - 1, device=ptr.device).repeat_interleave(ptr.diff()), len(ptr) - 1
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
