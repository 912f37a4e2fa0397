"""Metrics and their registry: a metric is a number of a trial, with a better direction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fgai.registry import Registry
from fgai.trial import Trial


@dataclass(frozen=True)
class Metric:
    """A function of a trial, and whether higher or lower values are better."""

    compute: Callable[[Trial], float]
    better: Literal["higher", "lower"]


METRICS: Registry[Metric] = Registry("metric")


def metric(name: str, better: Literal["higher", "lower"], about: str, compute: Callable[[Trial], float]) -> None:
    """Register a metric. Audits, result rows, the CLI and the docs then include it.

    Args:
        name: Name of the metric; it must be new.
        better: Whether `higher` or `lower` values are better.
        about: One line for listings.
        compute: Function of a trial that returns the value.
    """
    METRICS.add(name, Metric(compute, better), f"{about} ({better} is better)")


def measure(trial: Trial) -> dict[str, float]:
    """Compute all registered metrics of a trial.

    Args:
        trial: A model on a clean or attacked graph.

    Returns:
        The value of each metric, by name.
    """
    return {name: metric.compute(trial) for name, metric in METRICS.items()}
