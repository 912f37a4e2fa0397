"""What a test of faithfulness found."""

from __future__ import annotations

from dataclasses import dataclass

from fgai.grades import Grade
from fgai.intervals import Interval


@dataclass(frozen=True)
class HopResult:
    """The differences when edges of one hop are deleted."""

    hop: int
    necessity: Interval
    against_least: Interval
    sufficiency: Interval


@dataclass(frozen=True)
class Faithfulness:
    """Mean differences in the log-probability of each node's own answer, over nodes, summed over hops.

    `necessity`: the drop when the most attended edges go, less that when random ones of the same hop go.
    `against_least`: the same, less the drop when the least attended go.
    `sufficiency`: the drop when all but random edges of a hop go, less that when all but the most attended go.
    """

    explanation: str
    share: float  # of each node's edges of a hop
    nodes: int  # that were tested
    tied: int  # that were drawn, and left out since the explanation prefers none of their edges
    necessity: Interval
    against_least: Interval
    sufficiency: Interval
    hops: tuple[HopResult, ...]
    grade: Grade
    nodes_needed: float  # about as many would decide if the differences are what they seem
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [("most - random", self.necessity), ("most - least", self.against_least), ("keep", self.sufficiency)]
        head = f"{self.explanation}: {self.grade.value} ({self.nodes} nodes, {self.share:.0%} of the edges of each hop)"
        return "\n".join([head, *(f"  {name:<14}{value}" for name, value in rows), f"  {self.grade.sentence}"])
