"""What a metric is: a number of a trial, with the direction in which it is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fgai.registry import Registry
from fgai.trial import Trial


@dataclass(frozen=True)
class Metric:
    """A function of a trial, and whether more or less of it is better."""

    compute: Callable[[Trial], float]
    better: Literal["higher", "lower"]


METRICS: Registry[Metric] = Registry("metric")


def metric(name: str, better: Literal["higher", "lower"], about: str, compute: Callable[[Trial], float]) -> None:
    """Register a metric: it is then in `audit`, the rows, the CLI, the docs and the laws."""
    METRICS.add(name, Metric(compute, better), f"{about} ({better} is better)")


def measure(trial: Trial) -> dict[str, float]:
    """Every registered metric of a trial, by name."""
    return {name: metric.compute(trial) for name, metric in METRICS.items()}
