"""The attention of one layer on one graph, and what can be said of it alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fgai.cache import TensorCache
from fgai.devices import to_double
from fgai.graph import degree, edge_keys, locate, match, segment_max, segment_sum, stable_sort
from fgai.kernels import EdgeOrder, segmented_softmax


@dataclass(frozen=True)
class Attention:
    """The weights that acted in one call of one layer; unperturbed, they sum to one over the edges of a target.

    >>> a = Attention(torch.tensor([[0.7], [0.3], [1.0]]), torch.tensor([[0, 1, 2], [2, 2, 0]]), num_targets=3)
    >>> a.weights_at(torch.tensor([[1], [2]]))
    tensor([[0.3000]])
    """

    weight: Tensor  # [E, H]
    edge_index: Tensor  # [2, E], source -> target, with the self-loops that the layer added
    num_targets: int
    score: Tensor | None = None  # [E, H], what the softmax was given

    @property
    def source(self) -> Tensor:
        """The node looked at, per edge; [E]."""
        return self.edge_index[0]

    @property
    def target(self) -> Tensor:
        """The node that looks, per edge; [E]."""
        return self.edge_index[1]

    @property
    def heads(self) -> int:
        """How many attention heads act side by side."""
        return self.weight.size(1)

    @property
    def degree(self) -> Tensor:
        """How many edges each target attends over; [num_targets]."""
        return degree(self.target, self.num_targets)

    def detach(self) -> Attention:
        """The same attention without its history of gradients."""
        score = None if self.score is None else self.score.detach()
        return replace(self, weight=self.weight.detach(), score=score)

    def head(self, targets: int) -> Attention:
        """The attention of the first targets alone; sources keep their numbers."""
        here = (self.target < targets).nonzero().flatten()
        score = None if self.score is None else self.score.index_select(0, here)
        return Attention(
            self.weight.index_select(0, here),
            self.edge_index.index_select(1, here),
            min(targets, self.num_targets),
            score,
        )

    def mean_heads(self) -> Attention:
        """The mean over heads, [E, 1]: one explanation where there were several."""
        return replace(self, weight=self.weight.mean(1, keepdim=True), score=None)

    def double(self) -> Attention:
        """The same attention in float64: what is proved and measured. It is on the CPU if its device has no float64."""
        weight = to_double(self.weight)
        score = None if self.score is None else to_double(self.score)
        return replace(self, weight=weight, edge_index=self.edge_index.to(weight.device), score=score)

    def coalesce(self) -> Attention:
        """One row per (source, target), sorted by target, then source; parallel edges add up.

        This is the form in which attention is compared: it does not depend on the order of the edges.
        """
        if self.edge_index.size(1) == 0:
            return replace(self, score=None)
        base = self.edge_index.max() + 1
        keys, row = edge_keys(self.edge_index, base).unique(sorted=True, return_inverse=True)
        edge_index = torch.stack([keys % base, keys // base])
        return replace(self, weight=segment_sum(self.weight, row, keys.numel()), edge_index=edge_index, score=None)

    def weights_at(self, edge_index: Tensor, default: float | None = None) -> Tensor:
        """The weights of these edges, in this order; [2, M] -> [M, H]. Parallel edges add up.

        An edge that is not here gets the weight `absent`; without it, that is an error.
        """
        once = self.coalesce()
        if default is None:
            return once.weight[match(edge_index, once.edge_index)]
        at = locate(edge_index, once.edge_index)
        here = (at >= 0)[:, None]
        found = once.weight[at.clamp(min=0)] if len(once.weight) else once.weight.new_zeros(len(at), self.heads)
        return torch.where(here, found, default)


@dataclass(frozen=True)
class _Found:
    """Where some edges lie among others."""

    at: Tensor  # [M], rows among them, or -1
    alone: bool  # none of the others comes twice
    all_here: bool  # no row is -1


class EdgeLookup:
    """Edges whose weights are asked of one attention after another; on the same edges they are found only once.

    >>> lookup = EdgeLookup(torch.tensor([[1, 5], [2, 5]]))
    >>> lookup(Attention(torch.tensor([[0.7], [0.3]]), torch.tensor([[0, 1], [2, 2]]), num_targets=3)).flatten()
    tensor([0.3000, 0.0000])
    """

    def __init__(self, edge_index: Tensor) -> None:
        self.edge_index = edge_index
        self._cache = TensorCache(size=4)

    def at(self, attention: Attention) -> Tensor:
        """The rows of these edges, or -1; of repeated ones the first; [M]."""
        return self._found(attention).at

    def _found(self, attention: Attention) -> _Found:
        edges = attention.edge_index

        def find() -> _Found:
            keys, _ = stable_sort(edge_keys(edges, edges.max() + 1 if edges.numel() else 1))
            at = locate(self.edge_index, edges)
            alone, all_here = torch.stack([(keys[1:] != keys[:-1]).all(), (at >= 0).all()]).tolist()
            return _Found(at, len(keys) > 0 and alone, all_here)

        return self._cache.get("rows", [edges], find)

    def __call__(self, attention: Attention, default: float = 0.0) -> Tensor:
        """The weights of these edges, or `absent` where one is not there; [M, H]."""
        known = self._found(attention)
        if not known.alone:
            return attention.weights_at(self.edge_index, default)
        found = attention.weight.index_select(0, known.at.clamp(min=0))
        return found if known.all_here else torch.where((known.at >= 0)[:, None], found, default)


def uniform(attention: Attention) -> Attention:
    """1 / degree on the same edges: the attention that explains nothing."""
    share = 1.0 / attention.degree.to(attention.weight.dtype)
    return replace(attention, weight=share[attention.target, None].expand_as(attention.weight), score=None)


def sharpened(attention: Attention, power: float) -> Attention:
    """The attention whose scores are `power` times as large: the same order of neighbours, with wider margins.

    >>> w = torch.tensor([[0.6], [0.4]])
    >>> a = Attention(w, torch.tensor([[0, 1], [0, 0]]), 1, w.log())
    >>> sharpened(a, 2.0).weight.flatten()
    tensor([0.6923, 0.3077])
    """
    assert attention.score is not None, "attention that was read has scores"
    sources = int(attention.source.max()) + 1 if attention.edge_index.size(1) else 0
    order = EdgeOrder.of(attention.edge_index, sources, attention.num_targets)
    score = power * attention.score
    return replace(attention, score=score, weight=segmented_softmax(score, order))


def log_weight(attention: Attention) -> Tensor:
    """The logarithm of softmax(score), finite also where a weight has underflown; [E, H].

    >>> scores = torch.tensor([[0.0], [-1000.0]])
    >>> log_weight(Attention(torch.tensor([[1.0], [0.0]]), torch.tensor([[0, 1], [0, 0]]), 1, scores)).flatten()
    tensor([    0., -1000.])
    """
    score, target, num = attention.score, attention.target, attention.num_targets
    if score is None:
        return attention.weight.clamp(min=torch.finfo(attention.weight.dtype).tiny).log()
    most = segment_max(score.detach(), target, num)
    total = segment_sum((score - most[target]).exp(), target, num)
    return score - (most + total.clamp(min=torch.finfo(total.dtype).tiny).log())[target]


def nonuniformity(attention: Attention) -> Tensor:
    """The l1 distance between the attention and 1/degree, sum_j |w_ij - 1/d_i|; [num_targets, H], in [0, 2).

    >>> a = Attention(torch.tensor([[0.7], [0.3]]), torch.tensor([[0, 1], [2, 2]]), num_targets=3)
    >>> nonuniformity(a).flatten()
    tensor([0.0000, 0.0000, 0.4000])
    """
    distance = (attention.weight - uniform(attention).weight).abs()
    return segment_sum(distance, attention.target, attention.num_targets)


def entropy(attention: Attention) -> Tensor:
    """-sum_j w_ij log w_ij / log d_i: 1 is uniform, 0 one neighbour alone; NaN below two neighbours.

    >>> a = Attention(torch.tensor([[0.5], [0.5]]), torch.tensor([[0, 1], [2, 2]]), num_targets=3)
    >>> entropy(a).flatten()
    tensor([nan, nan, 1.])
    """
    weight = attention.weight.clamp(min=0)
    total = -segment_sum(torch.special.xlogy(weight, weight), attention.target, attention.num_targets)
    size = attention.degree[:, None].to(total.dtype)
    return torch.where(size > 1, total / size.clamp(min=2).log(), torch.nan)
