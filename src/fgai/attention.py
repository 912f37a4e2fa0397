"""The attention of one layer on one graph, and statistics of a single attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from fgai.cache import TensorCache
from fgai.devices import to_double
from fgai.graph import degree, edge_keys, locate, match, segment_max, segment_sum, stable_sort
from fgai.kernels import EdgeOrder, segmented_softmax
from fgai.printing import short_repr

Over = Literal["edges", "pairs", "graphs"]


@dataclass(frozen=True)
class Attention:
    """Attention weights of one call of one layer. Without a perturbation, the weights of each target sum to one.

    Args:
        weight: The weights that the layer used, [E, H].
        edge_index: The edges source -> target, [2, E], with the self-loops that the layer added.
        num_targets: The number of target nodes.
        score: The input of the softmax, [E, H], if it is known.
        over: What the layer attends over: the `edges` of message passing, all `pairs` of nodes of a graph, or the nodes
            of whole `graphs`, to pool them; the targets are then graphs.
        idle: A change of the weights does not change the logits.
        parallel: The weights do not depend on the attention of the layer before it.

    >>> a = Attention(torch.tensor([[0.7], [0.3], [1.0]]), torch.tensor([[0, 1, 2], [2, 2, 0]]), num_targets=3)
    >>> a.weights_at(torch.tensor([[1], [2]]))
    tensor([[0.3000]])
    """

    weight: Tensor  # [E, H]
    edge_index: Tensor  # [2, E]
    num_targets: int
    score: Tensor | None = None  # [E, H]
    over: Over = field(default="edges", repr=False)
    idle: bool = field(default=False, repr=False)
    parallel: bool = field(default=False, repr=False)

    __repr__ = short_repr

    @property
    def source(self) -> Tensor:
        """Source node of each edge, the one attended to; [E]."""
        return self.edge_index[0]

    @property
    def target(self) -> Tensor:
        """Target node of each edge, the one that attends; [E]."""
        return self.edge_index[1]

    @property
    def heads(self) -> int:
        """Number of attention heads, H."""
        return self.weight.size(1)

    @property
    def degree(self) -> Tensor:
        """Number of edges into each target; [num_targets]."""
        return degree(self.target, self.num_targets)

    def detach(self) -> Attention:
        """Return the attention detached from the autograd graph."""
        score = None if self.score is None else self.score.detach()
        return replace(self, weight=self.weight.detach(), score=score)

    def head(self, targets: int) -> Attention:
        """Return the attention of the first `targets` targets. Sources keep their ids."""
        edges = (self.target < targets).nonzero().flatten()
        score = None if self.score is None else self.score.index_select(0, edges)
        return replace(
            self,
            weight=self.weight.index_select(0, edges),
            edge_index=self.edge_index.index_select(1, edges),
            num_targets=min(targets, self.num_targets),
            score=score,
        )

    def with_ids(self, ids: Tensor) -> Attention:
        """Return the attention with other ids of the nodes, [N]; targets that are graphs keep theirs."""
        target = self.target if self.over == "graphs" else ids[self.target]
        return replace(self, edge_index=torch.stack([ids[self.source], target]))

    def mean_heads(self) -> Attention:
        """Return the mean over heads, with weights [E, 1]."""
        return replace(self, weight=self.weight.mean(1, keepdim=True), score=None)

    def double(self) -> Attention:
        """Return the attention in float64, for metrics and certificates; on the CPU if its device has no float64."""
        weight = to_double(self.weight)
        score = None if self.score is None else to_double(self.score)
        return replace(self, weight=weight, edge_index=self.edge_index.to(weight.device), score=score)

    def coalesce(self) -> Attention:
        """Merge parallel edges and sort by target, then source. The weights of parallel edges are added.

        The result has one row per (source, target) and does not depend on the order of the edges. Two attentions are
        compared in this form.
        """
        if self.edge_index.size(1) == 0:
            return replace(self, score=None)
        base = self.edge_index.max() + 1
        keys = edge_keys(self.edge_index, base)
        if keys.device.type == "cpu" and bool((keys[1:] > keys[:-1]).all()):  # on a GPU the check costs a sync
            return replace(self, score=None)
        keys, row = keys.unique(sorted=True, return_inverse=True)
        edge_index = torch.stack([keys % base, keys // base])
        return replace(self, weight=segment_sum(self.weight, row, keys.numel()), edge_index=edge_index, score=None)

    def weights_at(self, edge_index: Tensor, default: float | None = None) -> Tensor:
        """Return the weights of the given edges, in their order. The weights of parallel edges are added.

        Args:
            edge_index: The edges to look up, [2, M].
            default: The weight of an edge that the attention does not have.

        Returns:
            The weights, [M, H].

        Raises:
            MatchError: An edge is missing and `default` is None.
        """
        merged = self.coalesce()
        if default is None:
            return merged.weight[match(edge_index, merged.edge_index)]
        at = locate(edge_index, merged.edge_index)
        weight = merged.weight[at.clamp(min=0)] if len(merged.weight) else merged.weight.new_zeros(len(at), self.heads)
        return torch.where((at >= 0)[:, None], weight, default)


def explaining_sites(sites: Mapping[str, Attention]) -> tuple[str, ...]:
    """Return the layers that explain, in the order of execution: those over edges; if none, those over pairs of nodes.

    If there is neither, they are those that pool the nodes of a graph. Layers without effect on the logits are left out
    if others have one.

    >>> conv = Attention(torch.ones(1, 1), torch.tensor([[0], [1]]), 2)
    >>> explaining_sites({"conv": conv, "attn": replace(conv, over="pairs")})
    ('conv',)
    """
    sites = {site: attention for site, attention in sites.items() if not attention.idle} or sites
    for over in ("edges", "pairs"):
        if chosen := tuple(site for site, attention in sites.items() if attention.over == over):
            return chosen
    return tuple(sites)


@dataclass(frozen=True)
class _Positions:
    """Positions of the looked-up edges in one `edge_index`."""

    at: Tensor  # [M], the row of each edge, or -1
    unique: bool  # the `edge_index` has no parallel edges
    complete: bool  # no row is -1


class EdgeLookup:
    """Looks up fixed edges in many attentions. Positions are cached per `edge_index`.

    >>> lookup = EdgeLookup(torch.tensor([[1, 5], [2, 5]]))
    >>> lookup(Attention(torch.tensor([[0.7], [0.3]]), torch.tensor([[0, 1], [2, 2]]), num_targets=3)).flatten()
    tensor([0.3000, 0.0000])
    """

    def __init__(self, edge_index: Tensor) -> None:
        self.edge_index = edge_index
        self._cache = TensorCache(size=4)

    def at(self, attention: Attention) -> Tensor:
        """Return the row of each edge in `attention`, or -1; the first row of parallel edges; [M]."""
        return self._positions(attention).at

    def _positions(self, attention: Attention) -> _Positions:
        edges = attention.edge_index

        def compute() -> _Positions:
            keys, _ = stable_sort(edge_keys(edges, edges.max() + 1 if edges.numel() else 1))
            at = locate(self.edge_index, edges)
            unique, complete = torch.stack([(keys[1:] != keys[:-1]).all(), (at >= 0).all()]).tolist()
            return _Positions(at, len(keys) > 0 and unique, complete)

        return self._cache.get("rows", [edges], compute)

    def __call__(self, attention: Attention, default: float = 0.0) -> Tensor:
        """Return the weights of the edges, or `default` where `attention` does not have the edge; [M, H]."""
        positions = self._positions(attention)
        if not positions.unique:
            return attention.weights_at(self.edge_index, default)
        weight = attention.weight.index_select(0, positions.at.clamp(min=0))
        return weight if positions.complete else torch.where((positions.at >= 0)[:, None], weight, default)


def uniform(attention: Attention) -> Attention:
    """Return the uniform attention on the same edges: w_ij = 1 / d_i."""
    share = 1.0 / attention.degree.to(attention.weight.dtype)
    return replace(attention, weight=share[attention.target, None].expand_as(attention.weight), score=None)


def sharpened(attention: Attention, power: float) -> Attention:
    """Return softmax(power * score): the same ranking of neighbours, with wider margins if `power` > 1.

    >>> w = torch.tensor([[0.6], [0.4]])
    >>> a = Attention(w, torch.tensor([[0, 1], [0, 0]]), 1, w.log())
    >>> sharpened(a, 2.0).weight.flatten()
    tensor([0.6923, 0.3077])
    """
    assert attention.score is not None, "attention that was read from a model has scores"
    sources = int(attention.source.max()) + 1 if attention.edge_index.size(1) else 0
    order = EdgeOrder.of(attention.edge_index, sources, attention.num_targets)
    score = power * attention.score
    return replace(attention, score=score, weight=segmented_softmax(score, order))


def log_weight(attention: Attention) -> Tensor:
    """Return log softmax(score), finite even if a weight underflows; [E, H]. Without scores, log(weight).

    >>> scores = torch.tensor([[0.0], [-1000.0]])
    >>> log_weight(Attention(torch.tensor([[1.0], [0.0]]), torch.tensor([[0, 1], [0, 0]]), 1, scores)).flatten()
    tensor([    0., -1000.])
    """
    score, target, num = attention.score, attention.target, attention.num_targets
    if score is None:
        return attention.weight.clamp(min=torch.finfo(attention.weight.dtype).tiny).log()
    maximum = segment_max(score.detach(), target, num)
    total = segment_sum((score - maximum[target]).exp(), target, num)
    return score - (maximum + total.clamp(min=torch.finfo(total.dtype).tiny).log())[target]


def nonuniformity(attention: Attention) -> Tensor:
    """Return the l1 distance to uniform attention, sum_j |w_ij - 1/d_i|, in [0, 2); [num_targets, H].

    >>> a = Attention(torch.tensor([[0.7], [0.3]]), torch.tensor([[0, 1], [2, 2]]), num_targets=3)
    >>> nonuniformity(a).flatten()
    tensor([0.0000, 0.0000, 0.4000])
    """
    distance = (attention.weight - uniform(attention).weight).abs()
    return segment_sum(distance, attention.target, attention.num_targets)


def entropy(attention: Attention) -> Tensor:
    """Return the normalised entropy, -sum_j w_ij log w_ij / log d_i; [num_targets, H].

    It is 1 for uniform attention, 0 if one neighbour has all the weight, NaN for fewer than two neighbours.

    >>> a = Attention(torch.tensor([[0.5], [0.5]]), torch.tensor([[0, 1], [2, 2]]), num_targets=3)
    >>> entropy(a).flatten()
    tensor([nan, nan, 1.])
    """
    weight = attention.weight.clamp(min=0)
    total = -segment_sum(torch.special.xlogy(weight, weight), attention.target, attention.num_targets)
    size = attention.degree[:, None].to(total.dtype)
    return torch.where(size > 1, total / size.clamp(min=2).log(), torch.nan)
