"""The result of a test of faithfulness."""

from __future__ import annotations

from dataclasses import dataclass

from fgai.grades import Grade
from fgai.intervals import Interval
from fgai.printing import short_repr


@dataclass(frozen=True)
class HopResult:
    """The differences if edges of one hop are deleted."""

    hop: int
    necessity: Interval
    against_least: Interval
    sufficiency: Interval

    __repr__ = short_repr


@dataclass(frozen=True)
class Faithfulness:
    """Mean differences of drops in the log-probability of the predicted class of each node, summed over hops.

    For graph classification, of each graph; its edges are one group, and 'nodes' below are graphs.

    `necessity` is the drop without the most attended edges minus the drop without random edges of the same hop.
    `against_least` is the drop without the most attended edges minus the drop without the least attended ones.
    `sufficiency` is the drop with only random edges of a hop minus the drop with only the most attended ones.
    """

    explanation: str
    share: float  # share of the edges of a hop that is deleted
    nodes: int  # number of tested nodes
    tied: int  # sampled nodes that are not tested, because all their edges have equal weights
    necessity: Interval
    against_least: Interval
    sufficiency: Interval
    hops: tuple[HopResult, ...]
    grade: Grade
    nodes_needed: float  # approximate number of nodes for a decision, if the differences are as measured
    notes: tuple[str, ...] = ()
    items: str = "nodes"  # what was tested: nodes or graphs

    def __repr__(self) -> str:
        difference = f"most - random {self.necessity}, {self.nodes} {self.items}"
        return f"Faithfulness({self.explanation!r}: {self.grade.value}, {difference})"

    def __str__(self) -> str:
        rows = [("most - random", self.necessity), ("most - least", self.against_least), ("keep", self.sufficiency)]
        tested = f"{self.nodes} {self.items}, {self.share:.0%} of the edges of each hop"
        head = f"{self.explanation}: {self.grade.value} ({tested})"
        return "\n".join([head, *(f"  {name:<14}{value}" for name, value in rows), f"  {self.grade.sentence}"])
