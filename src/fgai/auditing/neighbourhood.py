"""The neighbourhood of one node before and after an attack, small enough to be drawn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fgai.explanations import Attribution
from fgai.graph import count_ends, degree
from fgai.metrics.explanation import TOP
from fgai.printing import short_repr
from fgai.topk import topk_mask

MAX_NEIGHBOURS = 24  # neighbours of a node in a view
MAX_LINKS = 60  # links among these neighbours
Link = tuple[int, int, float | None, float | None]  # source, target, weight before and after; None if there is no edge


@dataclass(frozen=True)
class Neighbourhood:
    """A node, its most attended neighbours, and the weights of the links between them, before and after one attack.

    If the explanation has edges further away, the ends of its top k edges are shown too. Nodes with a number of at
    least the graph's number of nodes are injected.
    """

    node: int
    seed: int
    neighbours: tuple[int, ...]  # by the larger of both weights, descending
    links: tuple[Link, ...]  # those into `node` first
    top_before: tuple[int, ...]  # the sources of the top k edges on the clean graph
    top_after: tuple[int, ...]
    unseen: int  # number of neighbours left out

    __repr__ = short_repr

    def status(self, source: int) -> str:
        """The status of a neighbour: `kept` in the top k, `lost` from it, `new` in it, or `other`."""
        was, now = source in self.top_before, source in self.top_after
        return ("kept" if now else "lost") if was else ("new" if now else "other")

    def mentioned_nodes(self) -> tuple[int, ...]:
        """All nodes that the view names besides its own; some may be named more than once."""
        ends = (end for link in self.links for end in link[:2])
        return (*self.neighbours, *self.top_before, *self.top_after, *ends)


@dataclass(frozen=True)
class NodeWeights:
    """The weights of edges for one node."""

    node: int
    into: Mapping[int, float]  # by source, of the edges into the node
    top: tuple[int, ...]  # the sources of the top k edges
    required: frozenset[int]  # the ends of the top k edges
    ends: Tensor  # [2, K]
    weight: Tensor  # [K]

    def among(self, nodes: set[int]) -> dict[tuple[int, int], float]:
        """The weights of the edges between these nodes that are not into the node, without self-loops."""
        known = torch.zeros(max(count_ends(self.ends), *nodes, 0) + 1, dtype=torch.bool)
        known[sorted(nodes)] = True
        inside = known[self.ends].all(0)
        inside &= (self.ends[0] != self.ends[1]) & (self.ends[1] != self.node)
        pairs = zip(*self.ends[:, inside].tolist(), strict=True)
        return dict(zip(pairs, map(round_weight, self.weight[inside].tolist()), strict=True))


def node_weights(attribution: Attribution, nodes: Iterable[int]) -> dict[int, NodeWeights]:
    """Return the weights of edges for each of these nodes; empty ones for a node that the graph does not have.

    >>> from fgai.attention import Attention
    >>> from fgai.explanations import attribution
    >>> edges = torch.tensor([[0, 1, 2], [2, 2, 0]])
    >>> attention = Attention(torch.tensor([[0.7], [0.3], [1.0]]), edges, 3)
    >>> of_node = node_weights(attribution("last", {"conv": attention}), [2])[2]
    >>> of_node.into, of_node.top, of_node.among({0, 2})
    ({0: 0.7, 1: 0.3}, (0, 1), {(2, 0): 1.0})
    """
    nodes = [*nodes]
    nothing = torch.zeros(2, 0, dtype=torch.long), torch.zeros(0)
    made = {node: NodeWeights(node, {}, (), frozenset(), *nothing) for node in nodes}
    # With one layer, the view also shows edges that have no weight for the node.
    layer = (attribution.edge_index.cpu(), attribution.total().cpu()) if len(attribution.layers) == 1 else None
    for rows in attribution.chunks(torch.tensor([node for node in nodes if node < attribution.num_nodes])):
        row, ends, weight = rows.row.cpu(), rows.edge_index[:, rows.edge].cpu(), rows.weight.cpu()
        top = topk_mask(weight, row, len(rows.nodes), TOP)
        sizes = degree(row, len(rows.nodes)).tolist()
        parts = zip(rows.nodes.tolist(), ends.split(sizes, 1), weight.split(sizes), top.split(sizes), strict=True)
        for node, own_ends, own_weight, own_top in parts:
            into = own_ends[1] == node
            sources = dict(zip(own_ends[0, into].tolist(), map(round_weight, own_weight[into].tolist()), strict=True))
            first, second = own_ends[:, own_top].tolist()
            required = frozenset((*first, *second))
            made[node] = NodeWeights(
                node, sources, tuple(dict.fromkeys(first)), required, *(layer or (own_ends, own_weight))
            )
    return made


def neighbourhood(
    node: int, seed: int, before: NodeWeights, after: NodeWeights, requested: Sequence[int] = ()
) -> Neighbourhood:
    """The view of a node: the ends of its top edges, the requested neighbours, then others by weight."""
    old, new = before.into, after.into
    required = before.required | after.required | ({*old, *new} & {*requested})
    ranked = sorted(
        {*old, *new, *required}, key=lambda s: (s not in required, -max(old.get(s, 0.0), new.get(s, 0.0)), s)
    )
    selected = ranked[: max(MAX_NEIGHBOURS, len(required))]
    own = [(source, node, old.get(source), new.get(source)) for source in selected if source in old or source in new]
    return Neighbourhood(
        node,
        seed,
        tuple(source for source in selected if source != node),
        (*own, *_links_among({*selected} - {node}, before, after)),
        before.top,
        after.top,
        len(ranked) - len(selected),
    )


def _links_among(nodes: set[int], before: NodeWeights, after: NodeWeights) -> list[Link]:
    """The links among the neighbours, the strongest first."""
    old, new = before.among(nodes), after.among(nodes)
    strongest = sorted({**old, **new}, key=lambda ends: (-max(old.get(ends, 0.0), new.get(ends, 0.0)), ends))
    return [(*ends, old.get(ends), new.get(ends)) for ends in strongest[:MAX_LINKS]]


def round_weight(weight: float) -> float:
    """Round to four digits, which is enough for a picture."""
    return float(f"{weight:.4g}")


def neighbourhoods(
    nodes: Mapping[int, Sequence[int]], clean: Attribution, attacks: Sequence[Attribution], worst: Mapping[int, int]
) -> tuple[Neighbourhood, ...]:
    """The views of nodes. `nodes` maps a node to the neighbours that its view must contain.

    `worst` maps a node to the attack that its view shows; by default, the first.
    """
    shown = {node: worst.get(node, 0) for node in nodes}
    before = node_weights(clean, nodes)
    after = [
        node_weights(attack, [node for node in nodes if shown[node] == number]) for number, attack in enumerate(attacks)
    ]
    return tuple(
        neighbourhood(node, shown[node], before[node], after[shown[node]][node], required)
        for node, required in nodes.items()
    )
