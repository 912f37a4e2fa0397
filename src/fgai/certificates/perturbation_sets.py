"""Perturbation sets: what an attacker may change, and how much of it.

| set | what the attacker may do | budget |
| --- | --- | --- |
| `Links(e)` | add, remove or alter `e` links anywhere; add any number of nodes with any features | links |
| `Deletions(q)` | remove `q` links of the node itself | links |
| `Injection(m, box, neighbours)` | add `m` nodes, features in a box, at the node and at few neighbours | nodes |
| `Features(radius)` | change each feature of each node by at most `radius` | a distance |
| `AttentionBall(radius, norm)` | change the attention itself; the graph does not change | a distance |

The model, its groups and its key are fixed before the attack: these are attacks on a trained model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fgai.adversaries import AttentionBall
from fgai.errors import SettingError
from fgai.settings import check_box, check_numbers, check_whole

MAX_LINKS = 10**12
MAX_NODES = 1_000  # injected nodes: each number up to theirs is tried


@dataclass(frozen=True)
class Links:
    """At most `links` links added, removed or altered, anywhere in the graph.

    A link is an unordered pair of nodes with all its directions, copies and edge features. The attacker may also add
    any number of nodes with any features. Links with an old node at one end count, links between new nodes do not.

    Args:
        links: Number of links.
    """

    links: int = 1

    def __post_init__(self) -> None:
        check_whole(0, MAX_LINKS, links=self.links)


@dataclass(frozen=True)
class Deletions:
    """At most `links` links of the certified node removed, in both directions. Its self-loop is not removed.

    Args:
        links: Number of links.
    """

    links: int = 1

    def __post_init__(self) -> None:
        check_whole(1, MAX_LINKS, links=self.links)


@dataclass(frozen=True)
class Injection:
    """At most `nodes` new nodes with features in `box`, linked to the certified node and at most `neighbours` others.

    Links between new nodes, and from new nodes to nodes that are not neighbours of the certified node, do not count. A
    new node has at most one link to each node in each direction: parallel links would count as several new nodes.

    Args:
        nodes: Number of new nodes.
        box: Lowest and highest value of all features.
        neighbours: Number of neighbours of the certified node that new nodes are linked to.
        ones: Largest sum of a new row, in units of the box: with the box (0, 1), the number of its ones. With the
            largest number of a row of the data, new nodes look like real ones. None for no limit.
    """

    nodes: int = 1
    box: tuple[float, float] = (-1.0, 1.0)
    neighbours: int = 0
    ones: int | None = None

    def __post_init__(self) -> None:
        check_whole(1, MAX_NODES, nodes=self.nodes)
        check_whole(0, neighbours=self.neighbours)
        if self.ones is not None:
            check_whole(1, ones=self.ones)
        check_box(self.box)
        if self.box is None:
            raise SettingError("box=None; a proof needs two finite numbers, the lower one first")


@dataclass(frozen=True)
class Features:
    """Each feature of each node changed by at most `radius`.

    Args:
        radius: Largest change of a feature.
    """

    radius: float = 0.01

    def __post_init__(self) -> None:
        check_numbers(0, radius=self.radius)


PerturbationSet = Links | Deletions | Injection | Features | AttentionBall
PERTURBATION_SETS: dict[str, type[PerturbationSet]] = {
    "links": Links,
    "deletions": Deletions,
    "injection": Injection,
    "features": Features,
    "attention": AttentionBall,
}


def phrase(against: PerturbationSet) -> str:
    """Return what the attacker does, as the subject of a sentence.

    >>> phrase(Links(3)), phrase(Injection(1, (0.0, 1.0), neighbours=2))
    ('3 changed links', '1 injected node (features in [0, 1], at 2 neighbours, too)')
    """
    match against:
        case Links(count):
            return _count(count, "changed link")
        case Deletions(count):
            return f"{_count(count, 'deleted link')} of the item"
        case Injection(count, (low, high), neighbours, ones):
            few = "" if ones is None else f", at most {_count(ones, 'one')}"
            also = f", at {_count(neighbours, 'neighbour')}, too" if neighbours else ""
            return f"{_count(count, 'injected node')} (features in [{low:g}, {high:g}]{few}{also})"
        case Features(radius):
            return f"change of each feature by at most {radius:g}"
        case AttentionBall(radius, norm):
            return f"change of the attention by at most {radius:g} ({norm})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def size_of(against: PerturbationSet) -> float:
    """Return the budget of a perturbation set in its unit.

    >>> size_of(Links(3))
    3
    """
    return getattr(against, _unit(against))


def with_size(against: PerturbationSet, size: float) -> PerturbationSet:
    """Return the perturbation set with another budget.

    >>> with_size(Links(3), 1)
    Links(links=1)
    """
    return replace(against, **{_unit(against): size})


def _unit(against: PerturbationSet) -> str:
    """Return the name of the field that is the budget."""
    return {Links: "links", Deletions: "links", Injection: "nodes"}.get(type(against), "radius")
