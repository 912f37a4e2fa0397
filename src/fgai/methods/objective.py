"""The loss terms of FGAI, each a mean over nodes.

    closeness     D(y(w), y(v))                      predictions stay close to vanilla's
    similarity    S(w, v)                            explanations stay close to vanilla's
    prediction    D(y, y(v under attack))            predictions are stable under attack
    explanation   S(v, v under attack)               explanations are stable under attack
    labels        CE(y(v)) + CE(y(v under attack))   labels of the training nodes, off by default

w is the attention of the vanilla model and v that of the trained one, D is a divergence of predictions and S a
divergence of explanations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fgai.adversaries import gains
from fgai.attention import Attention, EdgeLookup, log_weight
from fgai.certificates import eviction_costs
from fgai.devices import to_double
from fgai.divergence import jsd_terms, tvd
from fgai.errors import SettingError
from fgai.graph import degree, require, segment_max, segment_sum
from fgai.reading import Reading
from fgai.registry import Registry
from fgai.topk import topk_loss, topk_mask
from fgai.training.data import Batch

Divergence = Callable[[Reading, Reading], Tensor]
DIVERGENCES: Registry[Divergence] = Registry("divergence of predictions")
MASK = "train_mask"
FLOOR = -20.0  # log weight of an edge that was removed


def label_loss(reading: Reading, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of the labels of the training nodes of a batch.

    >>> from torch_geometric.data import Data
    >>> graph = Data(y=torch.tensor([1, 0]), train_mask=torch.tensor([True, False]), num_nodes=2)
    >>> float(label_loss(Reading(torch.tensor([[0.0, 2.0], [5.0, 0.0]]), {}), Batch(graph, 2)))
    0.127
    """
    nodes = batch.seed_nodes_in(MASK)
    return cross_entropy(gains.binary_logits(reading)[nodes], require(batch.graph, "y")[nodes])


@DIVERGENCES.register("kl")
def kl(before: Reading, now: Reading) -> Tensor:
    """KL(before | now), unbounded where a prediction is confidently wrong, so its gradient does not vanish there.

    >>> before, now = Reading(torch.tensor([[0.0, 2.0]]), {}), Reading(torch.tensor([[1.0, 0.0]]), {})
    >>> float(kl(before, now))
    0.829
    """
    return gains.kl(before)(now)


@DIVERGENCES.register("tvd")
def total_variation(before: Reading, now: Reading) -> Tensor:
    """Total variation, as in the paper; its gradient vanishes where a prediction is confidently wrong.

    >>> before, now = Reading(torch.tensor([[0.0, 2.0]]), {}), Reading(torch.tensor([[1.0, 0.0]]), {})
    >>> float(total_variation(before, now))
    0.612
    """
    return tvd(before.probs, now.probs[: len(before.probs)]).mean()


@DIVERGENCES.register("l1")
def l1_of_logits(before: Reading, now: Reading) -> Tensor:
    """Half the l1 distance of the logits, which the released code calls TVD.

    >>> before, now = Reading(torch.tensor([[0.0, 2.0]]), {}), Reading(torch.tensor([[1.0, 0.0]]), {})
    >>> float(l1_of_logits(before, now))
    1.5
    """
    return 0.5 * (before.logits - now.logits[: len(before.logits)]).abs().sum(-1).mean()


def lookup_of(attention: Attention) -> EdgeLookup:
    """Return the lookup of the neighbours of an attention: of its edges, parallel ones once.

    >>> lookup_of(Attention(torch.ones(2, 1) / 2, torch.tensor([[1, 1], [0, 0]]), 2)).edge_index.tolist()
    [[1], [0]]
    """
    edges, once = attention.edge_index, attention.coalesce().edge_index
    return EdgeLookup(once if once.size(1) < edges.size(1) else edges)


def _merged(lookup: EdgeLookup, clean: Attention, now: Attention) -> tuple[Attention, Attention]:
    """Return both attentions with the weights of parallel edges added, and their logarithms as scores."""
    if clean.edge_index.size(1) == lookup.edge_index.size(1):
        return clean, now
    first, second = (replace(one, score=log_weight(one)) for one in (clean.coalesce(), now.coalesce()))
    return first, second


class Distance:
    """S: the divergence of attention from a first reading, on the edges of that reading.

    Parallel edges count as one neighbour, with the sum of their weights. `kind` is one of

    - `kl`: KL(before | now) over each node's neighbours, from the scores, with a gradient also where a weight is 0;
    - `jsd`: Jensen-Shannon divergence over each node's neighbours;
    - `l1`: |before - now|_1 over each node's neighbours;
    - `top-k`: the paper's L_k over each node's neighbours;
    - `top-k of the graph`: L_k with one top k over all edges, as in the paper.
    """

    KINDS = ("kl", "jsd", "l1", "top-k", "top-k of the graph")

    def __init__(self, kind: str, k: int | float, lookup: Mapping[str, EdgeLookup]) -> None:
        if kind not in self.KINDS:
            raise SettingError(
                f"there is no similarity metric of explanations {kind!r}; there is {', '.join(self.KINDS)}"
            )
        self.kind, self.k, self._lookup = kind, k, lookup

    def __call__(self, before: Mapping[str, Attention], now: Reading, *, scored: bool = True) -> Tensor:
        """Return the mean over nodes, heads and sites; `scored`: the weights of `now` are the softmax of its scores."""
        parts = [self._at_site(site, before[site], now.attention[site], scored) for site in self._lookup]
        return torch.stack(parts).mean()

    def _at_site(self, site: str, before: Attention, now: Attention, scored: bool) -> Tensor:
        """Return the divergence at one attention site."""
        lookup, nodes = self._lookup[site], before.num_targets
        before, now = _merged(lookup, before, now)
        if self.kind == "kl":
            new = lookup(replace(now, weight=log_weight(now if scored else replace(now, score=None))), default=FLOOR)
            return (before.weight * (log_weight(before) - new)).sum() / (nodes * before.heads)
        new = lookup(now)
        if self.kind == "jsd":
            return jsd_terms(before.weight, new).sum() / (nodes * before.heads)
        if self.kind == "l1":
            return (before.weight - new).abs().sum() / (nodes * before.heads)
        if self.kind == "top-k":
            return topk_loss(before.weight, new, before.target, nodes, self.k).mean()
        return topk_loss(before.weight, new, torch.zeros_like(before.target), 1, self.k).mean()


def attacked_margin(clean: Attention, attacked: Attention, lookup: EdgeLookup, k: int | float, gap: float) -> Tensor:
    """Return by how much the clean top k of a node fails, under attack, to stay `gap` above all other neighbours.

    The mean over nodes of relu(gap - (least score of the top k - largest score of the others) / spread). The scores are
    those under attack, with injected neighbours; the spread is the standard deviation of the clean scores around the
    mean of their node. The value does not depend on the scale of the scores: to reduce it, the model must rank
    neighbours by what an attacker cannot change. Nodes with at most k neighbours count as 0. Heads are averaged.
    """
    clean, attacked = _merged(lookup, clean, attacked)
    assert clean.score is not None and attacked.score is not None, "attention from a reader has scores"
    score, now, nodes = clean.score.mean(1), attacked.score.mean(1), clean.num_targets
    inside = topk_mask(clean.weight.detach().mean(1), clean.target, nodes, k)
    at = lookup.at(attacked)
    remaining = (inside & (at >= 0)).nonzero().flatten()  # indices, not masks: each mask synchronises with the GPU
    member = at[remaining]
    low = -segment_max(-now[member], clean.target[remaining], nodes)
    others = (attacked.target < nodes).index_fill(0, member, False).nonzero().flatten()
    high = segment_max(now[others], attacked.target[others], nodes)
    contested = (degree(attacked.target[others], nodes) > 0).nonzero().flatten()
    centred = score - (segment_sum(score, clean.target, nodes) / clean.degree.clamp(min=1))[clean.target]
    spread = (
        centred.square().mean().clamp(min=torch.finfo(score.dtype).tiny).sqrt()
    )  # the clamp keeps the gradient finite at 0
    return (gap - (low - high)[contested] / spread).clamp(min=0).sum() / nodes


def certified_margin(attention: Attention, k: int | float, gap: float) -> Tensor:
    """Return the share of `gap` that the certified margin of a node's top k lacks, mean over nodes.

    The margin is the l1 cost of evicting one member, from the exact certificate, in units of 1/degree.
    """
    costs = eviction_costs(attention, k)
    first = costs.members == 1
    unit = to_double(attention.degree)[costs.node[first]]
    lacking = (gap - costs.cost[first] * unit).clamp(min=0) / gap
    return segment_sum(lacking, costs.node[first], attention.num_targets).mean().to(attention.weight)
