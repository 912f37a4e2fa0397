"""An attacker of votes written anew, on torch and PyG alone: its own hash, votes, graphs and attack.

A link changes the graph of one group, so the attacker looks at each group alone: which classes can the vote of a node
become if one link is added or deleted? New neighbours have the features of a real node of each class, enlarged or not;
every link of the node in the group is deleted once. Then it spends its links on the groups that help one class most.
Used by `attacked_certificates.py`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.utils import k_hop_subgraph

HOPS, SCALES = 2, (1.0, 100.0)
WORD = 2**64 - 1


def group_of(one: int, other: int, groups: int, key: int) -> int:
    """The group of a link, by splitmix64 on Python integers."""

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) & WORD
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
        return x ^ (x >> 31)

    low, high = min(one, other), max(one, other)
    return (mix((mix((mix(key) + low) & WORD) + high) & WORD) & (WORD >> 1)) % groups


@dataclass(frozen=True)
class Found:
    """The clean votes of each attacked node in each group, and the classes that one link can turn each vote into."""

    votes: Tensor  # [B, T]
    reached: Tensor  # [B, T, C]

    @property
    def prediction(self) -> Tensor:
        """The class with most votes; of tied ones, the lowest; [B]."""
        return self.counts.argmax(1)

    @property
    def counts(self) -> Tensor:
        """The votes for each class; [B, C]."""
        return nn.functional.one_hot(self.votes, self.reached.size(2)).sum(1)

    def falls(self, links: int) -> Tensor:
        """Whether `links` changed links, one in a group, change the prediction; [B]."""
        own, counts = self.prediction, self.counts
        mine = self.votes == own[:, None]  # groups that vote for the prediction
        at, fell = torch.arange(len(own)), torch.zeros(len(own), dtype=torch.bool)
        away = (self.reached.sum(2) > self.reached[at, :, own].long()) & mine  # the vote can leave the prediction
        for rival in range(counts.size(1)):
            can = self.reached[:, :, rival] & (self.votes != rival)
            both = (can & mine).sum(1).clamp(max=links)  # one vote less for the prediction, one more for the rival
            gains = torch.minimum((can & ~mine).sum(1), links - both)
            losses = torch.minimum((away & ~can).sum(1), links - both - gains)
            theirs, ours = counts[:, rival] + both + gains, counts[at, own] - both - losses
            fell |= (rival != own) & ((theirs > ours) | ((theirs == ours) & (rival < own)))
        return fell


@torch.no_grad()
def attack(model: nn.Module, x: Tensor, edge_index: Tensor, nodes: Tensor, groups: int, key: int) -> Found:
    """Attack the votes of some nodes; x is dense and the graph undirected."""
    links: list[list[int]] = edge_index.t().tolist()
    hashed = torch.tensor([group_of(a, b, groups, key) for a, b in links])
    none = torch.zeros(2, 0, dtype=torch.long)
    alone = model(x, none)
    rows = torch.cat([scale * x[alone[:, c].argmax()][None] for c in range(alone.size(1)) for scale in SCALES])
    votes, reached = [], torch.zeros(len(nodes), groups, alone.size(1), dtype=torch.bool)
    for group in range(groups):
        edges = edge_index[:, hashed == group]
        now = model(x, edges).argmax(1)[nodes]
        votes.append(now)
        reached[torch.arange(len(nodes)), group, now] = True
        beside: dict[int, list[int]] = defaultdict(list)
        for source, target in edges.t().tolist():
            beside[target].append(source)
        grown, cut = [], []
        for place, node in enumerate(nodes.tolist()):
            near, inside, at, _ = k_hop_subgraph(node, HOPS, edges, True, len(x))
            grown.append(with_new(x[near], inside, at, place))
            for other in {*beside[node]} - {node}:
                remaining = ((edges == node).any(0) & (edges == other).any(0)).logical_not()
                near, inside, at, _ = k_hop_subgraph(node, HOPS, edges[:, remaining], True, len(x))
                cut.append(Data(x=x[near], edge_index=inside, at=at, place=place))
        note(model, cut, x[:1], reached[:, group])
        note(model, grown, rows, reached[:, group])
    return Found(torch.stack(votes, 1), reached)


def with_new(x: Tensor, edges: Tensor, at: Tensor, place: int) -> Data:
    """The graph with one new node, its last, linked to the node `at` in both directions."""
    new = torch.tensor([len(x)])
    links = torch.stack([torch.cat([new, at]), torch.cat([at, new])])
    grown = torch.cat([x, torch.full_like(x[:1], torch.nan)])
    return Data(x=grown, edge_index=torch.cat([edges, links], 1), at=at, place=place)


def note(model: nn.Module, graphs: list[Data], rows: Tensor, reached: Tensor) -> None:
    """Mark the classes that the graphs reach, with each of the rows as the features of new nodes; [B, C]."""
    if not graphs:
        return
    batch: Any = Batch.from_data_list([*graphs])
    at, new = batch.at + batch.ptr[:-1], batch.x[:, 0].isnan()
    for row in rows:
        batch.x[new] = row
        reached[batch.place, model(batch.x, batch.edge_index)[at].argmax(1)] = True
