"""The neighbourhood of one node before and after an attack, small enough to be drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fgai.attention import Attention
from fgai.metrics.explanation import TOP
from fgai.topk import topk_mask

MAX_NEIGHBOURS = 24  # neighbours of a node in a view
MAX_LINKS = 60  # links among these neighbours
Link = tuple[int, int, float | None, float | None]  # source, target, weight before and after; None if there is no edge


@dataclass(frozen=True)
class Neighbourhood:
    """A node, its most attended neighbours, and the attention on the links between them, before and after one attack.

    Nodes with a number of at least the graph's number of nodes are injected.
    """

    node: int
    seed: int
    neighbours: tuple[int, ...]  # by the larger of both weights, descending
    links: tuple[Link, ...]  # those into `node` first
    top_before: tuple[int, ...]  # the top k neighbours on the clean graph
    top_after: tuple[int, ...]
    unseen: int  # number of neighbours left out

    def status(self, source: int) -> str:
        """The status of a neighbour: `kept` in the top k, `lost` from it, `new` in it, or `other`."""
        was, now = source in self.top_before, source in self.top_after
        return ("kept" if now else "lost") if was else ("new" if now else "other")


class AttentionIndex:
    """Attention weights of one layer, averaged over heads, indexed by target node.

    >>> index = AttentionIndex(Attention(torch.tensor([[0.7], [0.3], [1.0]]), torch.tensor([[0, 1, 2], [2, 2, 0]]), 3))
    >>> index.into(2), index.topk(2)
    ({0: 0.7, 1: 0.3}, (0, 1))
    """

    def __init__(self, explanation: Attention) -> None:
        merged = explanation.mean_heads().coalesce()
        self._source, target = merged.edge_index.cpu()
        self._weight = merged.weight[:, 0].cpu()
        self._top = topk_mask(self._weight, target, merged.num_targets, TOP)
        self._start = torch.searchsorted(target, torch.arange(merged.num_targets + 1)).tolist()

    def into(self, node: int) -> dict[int, float]:
        """The weight of each neighbour of a node; empty if the graph does not have the node."""
        part = self._part(node)
        return dict(zip(self._source[part].tolist(), map(_round, self._weight[part].tolist()), strict=True))

    def topk(self, node: int) -> tuple[int, ...]:
        """The top k neighbours of a node."""
        part = self._part(node)
        return tuple(self._source[part][self._top[part]].tolist())

    def among(self, nodes: Sequence[int]) -> dict[tuple[int, int], float]:
        """The weights of the edges between these nodes, without self-loops, by (source, target)."""
        sources_of_interest = torch.tensor(nodes)
        links = {}
        for node in nodes:
            part = self._part(node)
            mask = torch.isin(self._source[part], sources_of_interest)
            sources, weights = self._source[part][mask].tolist(), self._weight[part][mask].tolist()
            links |= {(source, node): _round(w) for source, w in zip(sources, weights, strict=True) if source != node}
        return links

    def _part(self, node: int) -> slice:
        return slice(*self._start[node : node + 2]) if node + 1 < len(self._start) else slice(0, 0)


def neighbourhood(
    node: int, seed: int, before: AttentionIndex, after: AttentionIndex, requested: Sequence[int] = ()
) -> Neighbourhood:
    """The view of a node: its top and requested neighbours, then others by weight, and the links among them."""
    old, new, first, then = before.into(node), after.into(node), before.topk(node), after.topk(node)
    required = (old | new).keys() & {*first, *then, *requested}
    ranked = sorted(old | new, key=lambda s: (s not in required, -max(old.get(s, 0.0), new.get(s, 0.0)), s))
    selected = ranked[: max(MAX_NEIGHBOURS, len(required))]
    own = [(source, node, old.get(source), new.get(source)) for source in selected]
    return Neighbourhood(
        node,
        seed,
        tuple(source for source in selected if source != node),
        (*own, *_links_among(node, selected, before, after)),
        first,
        then,
        len(ranked) - len(selected),
    )


def _links_among(node: int, selected: Sequence[int], before: AttentionIndex, after: AttentionIndex) -> list[Link]:
    """The links among the neighbours, the strongest first."""
    nodes = sorted({*selected} - {node})
    old, new = before.among(nodes), after.among(nodes)
    strongest = sorted(old | new, key=lambda ends: (-max(old.get(ends, 0.0), new.get(ends, 0.0)), ends))[:MAX_LINKS]
    return [(*ends, old.get(ends), new.get(ends)) for ends in strongest]


def _round(weight: float) -> float:
    """Round to four digits, which is enough for a picture."""
    return float(f"{weight:.4g}")


def neighbourhoods(
    nodes: Mapping[int, Sequence[int]], clean: Attention, attacks: Sequence[Attention], overlap: Tensor
) -> tuple[Neighbourhood, ...]:
    """The views of nodes, each under the attack that left the least of its top k.

    `nodes` maps a node to the neighbours that its view must contain. `overlap` [attacks, N] is V_k of each attack.
    """
    before, after = AttentionIndex(clean), [AttentionIndex(attack) for attack in attacks]
    worst = overlap.nan_to_num(1.0).argmin(0).tolist()
    return tuple(
        neighbourhood(node, worst[node], before, after[worst[node]], required) for node, required in nodes.items()
    )
