"""Who wins a cell of a table: paired differences over seeds, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from fgai.intervals import Interval

MIN_SEEDS = 2  # with one seed nothing is known about the next
Rank = Literal["winner", "highest", "level", "behind", "not compared"]


@dataclass(frozen=True)
class Standing:
    """The place of a method among those that ran with the same seeds.

    Attributes:
        place: `winner`: every other method is behind. `highest`: the best mean, but others are level with it. `level`:
            its interval to the best mean holds 0. `behind`: it does not. `not compared`: fewer seeds than the others,
            or only one.
        ahead: How far the best mean is ahead, paired by seed. For the best, its lead over the next.
    """

    place: Rank
    ahead: Interval | None = None


def standings(scores: Mapping[str, Mapping[int, float]], *, higher: bool = True) -> dict[str, Standing]:
    """Compare methods on the seeds that they share.

    A seed fixes the split, the initial weights and the attack, so two methods are compared by their difference for each
    seed. The 99 % interval of `fgai.intervals` decides. Four methods have six pairs, so whichever is best, all
    comparisons of a cell hold together with 94 % or more (Bonferroni).

    Args:
        scores: Scores by method and seed. Methods with fewer seeds than the others are not compared.
        higher: Whether a higher score is better.

    Returns:
        A standing for each method.

    Example:
        >>> scores = {"a": {0: 0.90, 1: 0.91, 2: 0.92}, "b": {0: 0.89, 1: 0.93, 2: 0.90}, "c": {0: 0.4, 1: 0.4, 2: 0.4}}
        >>> {name: standing.place for name, standing in standings(scores).items()}
        {'a': 'highest', 'b': 'level', 'c': 'behind'}
        >>> standings({"a": scores["a"], "c": scores["c"]})["a"].place
        'winner'
    """
    most = max(map(len, scores.values()), default=0)
    compared = {name: by_seed for name, by_seed in scores.items() if len(by_seed) == most}
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in compared.values()))) if compared else []
    placed = dict.fromkeys(scores, Standing("not compared"))
    if len(compared) < 2 or len(seeds) < MIN_SEEDS:
        return placed
    sign = 1 if higher else -1
    ranked = sorted(compared, key=lambda name: -sign * mean(compared[name][seed] for seed in seeds))
    best, *others = ranked
    for name in others:
        ahead = Interval.of([sign * (compared[best][seed] - compared[name][seed]) for seed in seeds])
        placed[name] = Standing("behind" if ahead.above else "level", ahead)
    alone = all(placed[name].place == "behind" for name in others)
    placed[best] = Standing("winner" if alone else "highest", placed[others[0]].ahead)
    return placed
