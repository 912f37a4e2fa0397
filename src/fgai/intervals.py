"""The mean of a difference over nodes, and how far chance may have moved it: a bootstrap, by a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

DRAWS = 4_000  # resamples; the outermost 0.5 % are then 20 of them
SHOWN, DECIDES = 0.95, 0.99  # the interval that is printed, and the one that a grade needs
POWER = 0.8  # the chance of a decision that `nodes_needed` aims at


@dataclass(frozen=True)
class Interval:
    """A mean over nodes with two intervals: 95 % to print, 99 % to decide by.

    >>> one = Interval.of([0.1, 0.2, 0.3, 0.2] * 10)
    >>> one.above, one.below, f"{one.mean:.2f}"
    (True, False, '0.20')
    """

    mean: float
    deviation: float  # of the nodes
    count: int
    low: float  # 95 %
    high: float
    outer_low: float  # 99 %
    outer_high: float

    @property
    def above(self) -> bool:
        """All of the 99 % interval is greater than 0; never with NaN."""
        return self.outer_low > 0

    @property
    def below(self) -> bool:
        """All of the 99 % interval is less than 0; never with NaN."""
        return self.outer_high < 0

    def nodes_needed(self) -> float:
        """About how many nodes would decide, four times in five, if the mean is what it seems; inf if it is 0."""
        if not abs(self.mean) > 0:
            return math.inf
        reach = stats.norm.ppf((1 + DECIDES) / 2) + stats.norm.ppf(POWER)
        return math.ceil((float(reach) * self.deviation / self.mean) ** 2)

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray, seed: int = 0) -> Interval:
        """The mean and its percentile bootstrap, widened as Student's t is wider than the normal; NaN below 2."""
        return cls.of_rows(np.asarray(values, dtype=float)[None], seed)[0]

    @classmethod
    def of_rows(cls, rows: np.ndarray, seed: int = 0) -> list[Interval]:
        """The same for several differences of the same nodes, resampled together; [R, n]."""
        count, nothing = rows.shape[1], float("nan")
        if count < 2 or not np.isfinite(rows).all():
            return [cls(nothing, nothing, count, *[nothing] * 4) for _ in rows]
        resampled = _resampled(rows, np.random.default_rng(seed))
        return [cls._of(row, means) for row, means in zip(rows, resampled, strict=True)]

    @classmethod
    def _of(cls, values: np.ndarray, means: np.ndarray) -> Interval:
        count, mean, ends = len(values), float(values.mean()), []
        for level in (SHOWN, DECIDES):
            wider = stats.t.ppf((1 + level) / 2, count - 1) / stats.norm.ppf((1 + level) / 2)
            wider *= math.sqrt(count / (count - 1))
            low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
            ends += [mean + wider * (low - mean), mean + wider * (high - mean)]
        return cls(mean, float(values.std(ddof=1)), count, *map(float, ends))


def _resampled(rows: np.ndarray, generator: np.random.Generator, at_once: int = 1_000_000) -> np.ndarray:
    """The means of DRAWS resamples of the columns, a part at a time; [R, n] -> [R, DRAWS]."""
    count = rows.shape[1]
    step = max(1, at_once // count)
    parts = []
    for done in range(0, DRAWS, step):
        chosen = generator.integers(count, size=(min(step, DRAWS - done), count), dtype=np.int32)
        parts.append(np.stack([row[chosen].mean(1) for row in rows]))
    return np.concatenate(parts, axis=1)
