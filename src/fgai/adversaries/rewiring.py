"""Rewiring: links added and dropped between the nodes there are, at random or where the gradient says."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Best, Gain, gradients
from fgai.adversaries.perturbation import AttackResult, Perturbation, pairs_of, undirected
from fgai.attention import Attention
from fgai.errors import SettingError
from fgai.graph import add_edges, locate, require
from fgai.reading import Reader
from fgai.settings import check_seed, check_whole

SILENT = -30.0  # added to a score, it leaves no weight but a gradient


@ADVERSARIES.register("edge-rewiring")
@dataclass(frozen=True)
class EdgeRewiring:
    """At most `added` new links and `dropped` old ones, each in both directions.

    Greedy: links are chosen in `rounds`, each time those whose first-order effect on the gain is largest,
    d gain / d w_e times the weight that the edge would get (or has, with the sign turned), summed over layers, heads
    and directions. New links come from `pool` random pairs per round, read all at once with scores too low to act.
    Not greedy: random links, the floor.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attacked = EdgeRewiring(added=4, dropped=4, rounds=2)(read, data, gains.kl(read(data).detach()))
    >>> attacked.graph.num_edges - data.num_edges
    0
    """

    added: int = 100
    dropped: int = 100
    greedy: bool = True
    rounds: int = 5
    pool: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(0, added=self.added, dropped=self.dropped)
        check_whole(1, rounds=self.rounds, pool=self.pool)
        check_seed(self.seed)

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The worst reading found."""
        links = pairs_of(require(graph, "edge_index"))
        if self.dropped > links.size(1):
            raise SettingError(f"{self}, and the graph has {links.size(1)} links; drop no more than that")
        best, change = Best(read, graph, gain), Perturbation()
        generator = torch.Generator().manual_seed(self.seed)
        if not self.greedy:
            new = self._candidates(links, int(graph.num_nodes or 0), generator)[:, : self.added]
            old = links[:, torch.randperm(links.size(1), generator=generator)[: self.dropped]]
            best.try_on(Perturbation(added=undirected(new), dropped=undirected(old)))
            return best.reading()
        for number in range(self.rounds):
            plus, minus = (
                n * (number + 1) // self.rounds - n * number // self.rounds for n in (self.added, self.dropped)
            )
            change = self._further(read, graph, gain, change, plus, minus, generator)
            best.try_on(change)
        return best.reading()

    def _candidates(self, taken: Tensor, nodes: int, generator: torch.Generator) -> Tensor:
        """Random pairs that are not taken; [2, <= max(pool, added)]."""
        pairs = pairs_of(
            torch.randint(nodes, (2, 2 * max(self.pool, self.added)), generator=generator).to(taken.device)
        )
        pairs = pairs[:, locate(pairs, taken) < 0]
        return pairs[:, torch.randperm(pairs.size(1), generator=generator)[: max(self.pool, self.added)]]

    def _further(
        self, read: Reader, graph: Data, gain: Gain, change: Perturbation, plus: int, minus: int, draw: torch.Generator
    ) -> Perturbation:
        """The change, with `plus` more links added and `minus` more dropped: those that promise most now."""
        now = change.apply(graph)
        links = pairs_of(require(now, "edge_index"))
        new = self._candidates(torch.cat([links, change.dropped.to(links)], 1), int(now.num_nodes or 0), draw)
        worth_new, worth_old = _worth(read, now, gain, new, links)
        own = locate(links, change.added.to(links)) >= 0  # what was added is not dropped again
        more = new[:, _best(worth_new, plus)]
        less = links[:, _best(worth_old.masked_fill(own, -torch.inf), minus)]
        return replace(
            change,
            added=torch.cat([change.added.to(more), undirected(more)], 1),
            dropped=torch.cat([change.dropped.to(less), undirected(less)], 1),
        )


def _worth(read: Reader, graph: Data, gain: Gain, new: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
    """The first-order effect on the gain of adding each new pair, and of dropping each link; [P], [L]."""
    wide = add_edges(graph, undirected(new))
    with torch.no_grad():
        seen = read(wide).attention
    silent = {site: SILENT * (locate(a.edge_index, undirected(new)) >= 0).to(a.weight) for site, a in seen.items()}
    silent = {site: score[:, None].expand_as(seen[site].weight) for site, score in silent.items()}
    nudge = {site: torch.zeros_like(a.weight).requires_grad_() for site, a in seen.items()}
    reading = read(wide, weight_delta=nudge, score_delta=silent)
    slopes = gradients(gain(reading), list(nudge.values()))
    add, drop = (torch.zeros(some.size(1), device=some.device) for some in (new, links))
    for a, slope in zip(reading.attention.values(), slopes, strict=True):
        odds = a.weight.detach() * math.exp(-SILENT)  # of a new edge, were it heard
        add += _along(a, slope * odds / (1 + odds), new)
        drop -= _along(a, slope * a.weight.detach(), links)
    return add, drop


def _best(worth: Tensor, count: int) -> Tensor:
    """The `count` places of most worth, only where it is positive."""
    found = worth.topk(min(count, len(worth)))
    return found.indices[found.values > 0]


def _along(attention: Attention, effect: Tensor, pairs: Tensor) -> Tensor:
    """The effect of both directions of each pair, summed over heads; [E, H] -> [P]."""
    return replace(attention, weight=effect).weights_at(undirected(pairs), default=0.0).sum(1).view(2, -1).sum(0)
