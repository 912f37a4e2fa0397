"""Rewiring: links added and dropped between existing nodes, at random or by gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Best, Gain, gradients
from fgai.adversaries.other_layers import DRAWS, random_pairs, sizes, uses_links_elsewhere
from fgai.adversaries.perturbation import AttackResult, Perturbation, pairs_of, undirected
from fgai.attention import Attention
from fgai.errors import SettingError
from fgai.graph import add_edges, locate, require
from fgai.items import refuse_graphs
from fgai.reading import Reader
from fgai.settings import SEEDS, check_seed, check_whole

MASKED = -30.0  # added to the score of an edge: its weight vanishes, its gradient does not


@ADVERSARIES.register("edge-rewiring")
@dataclass(frozen=True)
class EdgeRewiring:
    """At most `added` new links and `dropped` old ones, each in both directions.

    The greedy attack selects, in each round, the links whose first-order effect on the gain is largest: d gain / d w_e
    times the weight that a new edge would get, or minus the weight of an old edge, summed over layers, heads and
    directions. All candidates of a round are read at once, with scores so low that they have no effect in attention.

    Layers without attention see the candidates all the same, and thousands of them spoil the search. Two forward passes
    find out whether a model has such layers. If so, the search runs up to four times, with fewer and fewer candidates,
    ten random draws are evaluated as well, and the largest gain counts.

    Args:
        added: Largest number of new links.
        dropped: Largest number of removed links.
        greedy: Select links by gradients; otherwise at random, which is a baseline.
        rounds: Rounds of the greedy attack.
        pool: Random pairs that are candidates for new links, per round.
        seed: Seed of the random pairs.

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
        """Return the reading with the largest gain; see `Adversary`."""
        refuse_graphs(graph, "Rewiring", "attack with fgai.GraphInjection()", most=1)
        links = pairs_of(require(graph, "edge_index"))
        if self.dropped > links.size(1):
            raise SettingError(f"{self}, but the graph has {links.size(1)} links; drop no more than that")
        with torch.no_grad():
            clean = read(graph).detach()
        best = Best(read, graph, gain, clean)
        if not self.greedy:
            self._draw(graph, links, best)
        elif not uses_links_elsewhere(read, graph, clean, self.seed):
            self._climb(read, graph, gain, best)
        else:
            for pool in sizes(self.pool, self.added):
                replace(self, pool=pool)._climb(read, graph, gain, best)
            for number in range(DRAWS):
                replace(self, seed=(self.seed + number) % SEEDS)._draw(graph, links, best)
        return best.reading()

    def _draw(self, graph: Data, links: Tensor, best: Best) -> None:
        """Evaluate random links."""
        generator = torch.Generator().manual_seed(self.seed)
        new = self._candidates(links, int(graph.num_nodes or 0), generator)[:, : self.added]
        old = links[:, torch.randperm(links.size(1), generator=generator)[: self.dropped]]
        best.evaluate(Perturbation(added=undirected(new), dropped=undirected(old)))

    def _climb(self, read: Reader, graph: Data, gain: Gain, best: Best) -> None:
        """Select links by gradients, and evaluate them after each round."""
        change, generator = Perturbation(), torch.Generator().manual_seed(self.seed)
        for number in range(self.rounds):
            add, drop = (
                n * (number + 1) // self.rounds - n * number // self.rounds for n in (self.added, self.dropped)
            )
            change = self._extend(read, graph, gain, change, add, drop, generator)
            best.evaluate(change)

    def _candidates(self, taken: Tensor, nodes: int, generator: torch.Generator) -> Tensor:
        """Return random pairs that are not in `taken`; [2, <= max(pool, added)]."""
        return random_pairs(taken, nodes, max(self.pool, self.added), generator)

    def _extend(
        self, read: Reader, graph: Data, gain: Gain, change: Perturbation, add: int, drop: int, draw: torch.Generator
    ) -> Perturbation:
        """Add `add` links to the change and drop `drop` more: those with the largest effect after the change."""
        now = change.apply(graph)
        links = pairs_of(require(now, "edge_index"))
        candidates = self._candidates(torch.cat([links, change.dropped.to(links)], 1), int(now.num_nodes or 0), draw)
        add_effect, drop_effect = _link_effects(read, now, gain, candidates, links)
        own = locate(links, change.added.to(links)) >= 0  # an added link is not dropped again
        new = candidates[:, _top_positive(add_effect, add)]
        old = links[:, _top_positive(drop_effect.masked_fill(own, -torch.inf), drop)]
        return replace(
            change,
            added=torch.cat([change.added.to(new), undirected(new)], 1),
            dropped=torch.cat([change.dropped.to(old), undirected(old)], 1),
        )


def _link_effects(read: Reader, graph: Data, gain: Gain, new: Tensor, links: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first-order effect on the gain of adding each new pair, and of dropping each link; [P], [L]."""
    augmented = add_edges(graph, undirected(new))
    with torch.no_grad():
        attention = read(augmented).attention
    masked = {site: MASKED * (locate(a.edge_index, undirected(new)) >= 0).to(a.weight) for site, a in attention.items()}
    masked = {site: score[:, None].expand_as(attention[site].weight) for site, score in masked.items()}
    delta = {site: torch.zeros_like(a.weight).requires_grad_() for site, a in attention.items()}
    reading = read(augmented, weight_delta=delta, score_delta=masked)
    slopes = gradients(gain(reading), list(delta.values()))
    add, drop = (torch.zeros(pairs.size(1), device=pairs.device) for pairs in (new, links))
    for a, slope in zip(reading.attention.values(), slopes, strict=True):
        odds = a.weight.detach() * math.exp(-MASKED)  # of a new edge without the mask
        add += _sum_directions(a, slope * odds / (1 + odds), new)
        drop -= _sum_directions(a, slope * a.weight.detach(), links)
    return add, drop


def _top_positive(effect: Tensor, count: int) -> Tensor:
    """Return the positions of the `count` largest effects, without those that are not positive.

    If all effects are 0, the gain is stationary, as a KL divergence is on the clean graph: the first positions.
    """
    top = effect.topk(min(count, len(effect)))
    return top.indices[top.values > 0] if effect.any() else torch.arange(len(top.values), device=effect.device)


def _sum_directions(attention: Attention, effect: Tensor, pairs: Tensor) -> Tensor:
    """Sum the effect over heads and both directions of each pair; [E, H] -> [P]."""
    return replace(attention, weight=effect).weights_at(undirected(pairs), default=0.0).sum(1).view(2, -1).sum(0)
