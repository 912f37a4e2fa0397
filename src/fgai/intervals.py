"""The mean of a difference over nodes, with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

DRAWS = 4_000  # bootstrap samples; 20 of them lie beyond each end of a 99 % interval
SHOWN, DECIDES = 0.95, 0.99  # levels of the printed interval and of the interval that decides a grade
NORMAL = NormalDist()
POWER = 0.8  # probability of a decision with `nodes_needed` nodes


@dataclass(frozen=True)
class Interval:
    """A mean over nodes with two intervals: 95 % for printing, 99 % for decisions.

    >>> one = Interval.of([0.1, 0.2, 0.3, 0.2] * 10)
    >>> one.above, one.below, f"{one.mean:.2f}"
    (True, False, '0.20')
    """

    mean: float
    deviation: float  # standard deviation over nodes
    count: int
    low: float  # 95 %
    high: float
    outer_low: float  # 99 %
    outer_high: float

    @property
    def above(self) -> bool:
        """Whether the 99 % interval lies above 0; False if it is NaN."""
        return self.outer_low > 0

    @property
    def below(self) -> bool:
        """Whether the 99 % interval lies below 0; False if it is NaN."""
        return self.outer_high < 0

    def nodes_needed(self) -> float:
        """Return the approximate number of nodes that decide with probability 0.8, if mean and deviation are exact."""
        if not abs(self.mean) > 0:
            return math.inf
        reach = NORMAL.inv_cdf((1 + DECIDES) / 2) + NORMAL.inv_cdf(POWER)
        return float(math.ceil((reach * self.deviation / self.mean) ** 2))

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"

    def __repr__(self) -> str:
        return f"Interval({self}, {self.count} nodes)"

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray, seed: int = 0) -> Interval:
        """Return the mean and its percentile bootstrap, scaled by the ratio of Student's t to the normal quantile.

        All numbers are NaN if there are fewer than 2 values.
        """
        return cls.of_rows(np.asarray(values, dtype=float)[None], seed)[0]

    @classmethod
    def of_rows(cls, rows: np.ndarray, seed: int = 0) -> list[Interval]:
        """Return the intervals of several differences of the same nodes, with the same bootstrap samples; [R, n]."""
        count, nothing = rows.shape[1], float("nan")
        if count < 2 or not np.isfinite(rows).all():
            return [cls(nothing, nothing, count, *[nothing] * 4) for _ in rows]
        resampled = _resample(rows, np.random.default_rng(seed))
        return [cls._of(row, means) for row, means in zip(rows, resampled, strict=True)]

    @classmethod
    def _of(cls, values: np.ndarray, means: np.ndarray) -> Interval:
        from scipy.special import stdtrit  # slow to import; the quantile of Student's t

        count, mean, ends = len(values), float(values.mean()), []
        for level in (SHOWN, DECIDES):
            wider = stdtrit(count - 1, (1 + level) / 2) / NORMAL.inv_cdf((1 + level) / 2)
            wider *= math.sqrt(count / (count - 1))
            low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
            ends += [mean + wider * (low - mean), mean + wider * (high - mean)]
        return cls(mean, float(values.std(ddof=1)), count, *map(float, ends))


def _resample(rows: np.ndarray, generator: np.random.Generator, at_once: int = 1_000_000) -> np.ndarray:
    """Return the means of DRAWS bootstrap samples of the columns; [R, n] -> [R, DRAWS]."""
    count = rows.shape[1]
    step = max(1, at_once // count)
    parts = []
    for done in range(0, DRAWS, step):
        chosen = generator.integers(count, size=(min(step, DRAWS - done), count), dtype=np.int32)
        parts.append(np.stack([row[chosen].mean(1) for row in rows]))
    return np.concatenate(parts, axis=1)
