"""Who attacks, and how much they may change: one vocabulary for every certificate.

| threat | what the attacker may do | budget |
| --- | --- | --- |
| `Links(e)` | add, remove or alter `e` links anywhere; add any number of nodes with any features | links |
| `Deletions(q)` | remove `q` links of the node itself | links |
| `Injection(m, box, neighbours)` | add `m` nodes, features in a box, at the node and some neighbours | nodes |
| `Features(radius)` | move every feature of every node by at most `radius` | a distance |
| `AttentionBall(radius, norm)` | move the attention itself; the graph stays | a distance |

The model, and any choice made with it (groups, key), is fixed before the attack: these are attacks on a trained model.
"""

from __future__ import annotations

from dataclasses import dataclass

from fgai.adversaries import AttentionBall
from fgai.errors import SettingError


@dataclass(frozen=True)
class Links:
    """At most `links` links added, removed or altered, anywhere in the graph.

    A link is an unordered pair of nodes with all its directions, copies and edge features. The attacker may also add
    any number of nodes with any features; a link with an old node at one end counts, links between new nodes are free.
    """

    links: int = 1

    def __post_init__(self) -> None:
        _at_least(self, 0, links=self.links)


@dataclass(frozen=True)
class Deletions:
    """At most `links` links of the node in question removed, in both directions. Its self-loop stays."""

    links: int = 1

    def __post_init__(self) -> None:
        _at_least(self, 1, links=self.links)


@dataclass(frozen=True)
class Injection:
    """At most `nodes` new nodes with features in `box`, linked to the node and at most `neighbours` neighbours.

    `neighbours` counts the neighbours that any new node is linked to. Links between new nodes, and from new nodes to
    nodes that are no neighbours, are free. `box` is (low, high), the same for every feature.
    """

    nodes: int = 1
    box: tuple[float, float] = (-1.0, 1.0)
    neighbours: int = 0

    def __post_init__(self) -> None:
        _at_least(self, 1, nodes=self.nodes)
        _at_least(self, 0, neighbours=self.neighbours)
        if not self.box[0] <= self.box[1]:
            raise SettingError(f"{self}: the box has low {self.box[0]} above high {self.box[1]}; give (low, high)")


@dataclass(frozen=True)
class Features:
    """Every feature of every node moved by at most `radius`."""

    radius: float = 0.01

    def __post_init__(self) -> None:
        _at_least(self, 0, radius=self.radius)


Threat = Links | Deletions | Injection | Features | AttentionBall


def _at_least(threat: object, least: int, **given: float) -> None:
    for name, value in given.items():
        if not value >= least:
            raise SettingError(f"{threat}: {name} is {value}; give {least} or more")
