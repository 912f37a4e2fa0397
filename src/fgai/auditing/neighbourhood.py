"""Where one node looks, before and after an attack, with the links among its neighbours: few enough to be looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fgai.attention import Attention
from fgai.metrics.explanation import TOP
from fgai.topk import topk_mask

SHOWN = 24  # neighbours of a node
AMONG = 60  # links among those
Link = tuple[int, int, float | None, float | None]  # source, target, weight before and after; None: not there


@dataclass(frozen=True)
class Neighbourhood:
    """A node, its neighbours that matter most, and the attention on the links between them, under one seed's attack.

    Numbers from the count of the graph's own nodes on are injected nodes.
    """

    node: int
    seed: int
    neighbours: tuple[int, ...]  # the most attended first, before or after
    links: tuple[Link, ...]  # those into `node` first
    top_before: tuple[int, ...]  # the neighbours it attended to most
    top_after: tuple[int, ...]
    unseen: int  # neighbours that are not shown

    def status(self, source: int) -> str:
        """What became of a neighbour: `kept` in the top, `lost` from it, `new` in it, or an `other` one."""
        was, now = source in self.top_before, source in self.top_after
        return ("kept" if now else "lost") if was else ("new" if now else "other")


class AttentionIndex:
    """The attention of one reading, heads averaged, looked up by node.

    >>> looks = AttentionIndex(Attention(torch.tensor([[0.7], [0.3], [1.0]]), torch.tensor([[0, 1, 2], [2, 2, 0]]), 3))
    >>> looks.into(2), looks.topk(2)
    ({0: 0.7, 1: 0.3}, (0, 1))
    """

    def __init__(self, explanation: Attention) -> None:
        once = explanation.mean_heads().coalesce()
        self._source, target = once.edge_index.cpu()
        self._weight = once.weight[:, 0].cpu()
        self._top = topk_mask(self._weight, target, once.num_targets, TOP)
        self._start = torch.searchsorted(target, torch.arange(once.num_targets + 1)).tolist()

    def into(self, node: int) -> dict[int, float]:
        """What a node looks at, and how much; nothing where it is not there."""
        part = self._part(node)
        return dict(zip(self._source[part].tolist(), map(_short, self._weight[part].tolist()), strict=True))

    def topk(self, node: int) -> tuple[int, ...]:
        """The neighbours that it attends to most."""
        part = self._part(node)
        return tuple(self._source[part][self._top[part]].tolist())

    def among(self, nodes: Sequence[int]) -> dict[tuple[int, int], float]:
        """The links between these nodes."""
        wanted = torch.tensor(nodes)
        found = {}
        for node in nodes:
            part = self._part(node)
            here = torch.isin(self._source[part], wanted)
            sources, weights = self._source[part][here].tolist(), self._weight[part][here].tolist()
            found |= {(source, node): _short(w) for source, w in zip(sources, weights, strict=True) if source != node}
        return found

    def _part(self, node: int) -> slice:
        return slice(*self._start[node : node + 2]) if node + 1 < len(self._start) else slice(0, 0)


def neighbourhood(
    node: int, seed: int, before: AttentionIndex, after: AttentionIndex, asked: Sequence[int] = ()
) -> Neighbourhood:
    """What is shown of a node: its top neighbours and those asked for, then others by weight, and links among them."""
    old, new, first, then = before.into(node), after.into(node), before.topk(node), after.topk(node)
    must = (old | new).keys() & {*first, *then, *asked}
    every = sorted(old | new, key=lambda s: (s not in must, -max(old.get(s, 0.0), new.get(s, 0.0)), s))
    shown = every[: max(SHOWN, len(must))]
    own = [(source, node, old.get(source), new.get(source)) for source in shown]
    return Neighbourhood(
        node,
        seed,
        tuple(source for source in shown if source != node),
        (*own, *_others(node, shown, before, after)),
        first,
        then,
        len(every) - len(shown),
    )


def _others(node: int, shown: Sequence[int], before: AttentionIndex, after: AttentionIndex) -> list[Link]:
    """The links among the neighbours, the strongest first."""
    nodes = sorted({*shown} - {node})
    old, new = before.among(nodes), after.among(nodes)
    strongest = sorted(old | new, key=lambda ends: (-max(old.get(ends, 0.0), new.get(ends, 0.0)), ends))[:AMONG]
    return [(*ends, old.get(ends), new.get(ends)) for ends in strongest]


def _short(weight: float) -> float:
    """Four digits are more than an eye can tell apart."""
    return float(f"{weight:.4g}")


def neighbourhoods(
    nodes: Mapping[int, Sequence[int]], clean: Attention, attacks: Sequence[Attention], overlap: Tensor
) -> tuple[Neighbourhood, ...]:
    """The neighbourhoods of these nodes, with the neighbours asked for, each under the attack that hit it hardest.

    `overlap` [attacks, N] says what each attack left of its top neighbours.
    """
    before, after = AttentionIndex(clean), [AttentionIndex(attack) for attack in attacks]
    worst = overlap.nan_to_num(1.0).argmin(0).tolist()
    return tuple(neighbourhood(node, worst[node], before, after[worst[node]], asked) for node, asked in nodes.items())
