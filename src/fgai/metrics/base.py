"""What a metric is: a number of a trial, with the direction in which it is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from torch import Tensor
from torch_geometric.data import Data

from fgai.deletion import First, f_curve
from fgai.reading import Reader, Reading
from fgai.registry import Registry


@dataclass(frozen=True)
class Trial:
    """A model on a graph that may have been attacked, beside the same model on the clean one."""

    read: Reader
    graph: Data  # as it is now
    clean: Reading
    now: Reading
    y: Tensor  # [N], labels of the original nodes, or of the pairs that a model of links answers for
    eval_mask: Tensor  # [N], mask of those that count

    @property
    def predictions(self) -> Tensor:
        """The distributions predicted now, on the judged nodes; [J, C]."""
        return self.now.probs[: len(self.y)][self.eval_mask]

    @property
    def labels(self) -> Tensor:
        """The labels of the judged nodes; [J]."""
        return self.y[self.eval_mask]

    @property
    def correct(self) -> Tensor:
        """The judged nodes that were right on the clean graph; [N]."""
        return self.eval_mask & (self.clean.probs.argmax(-1) == self.y)

    @cached_property
    def curves(self) -> dict[First, list[float]]:
        """F(r) of the explanation now, deleting the most (F+) or the least (F-) attended edges first."""
        firsts: tuple[First, ...] = ("most", "least")
        return {f: f_curve(self.read, self.graph, self.now.explanation, self.y, self.correct, f) for f in firsts}


@dataclass(frozen=True)
class Metric:
    """A function of a trial, and whether more or less of it is better."""

    compute: Callable[[Trial], float]
    better: Literal["higher", "lower"]


METRICS: Registry[Metric] = Registry("metric")


def metric(name: str, better: Literal["higher", "lower"], about: str, compute: Callable[[Trial], float]) -> None:
    """Register a metric: it is then in `audit`, the rows, the CLI, the docs and the laws."""
    METRICS.add(name, Metric(compute, better), f"{about} ({better} is better)")
