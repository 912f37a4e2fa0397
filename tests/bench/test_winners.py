"""Who wins a cell: against SciPy's paired t interval, and where there is nothing to find."""

import numpy as np
import pytest
from scipy import stats

from fgai.bench.winners import standings


def by_seed(values):
    return dict(enumerate(values))


def test_a_difference_that_is_far_from_zero_decides_and_one_that_is_not_does_not():
    noise = np.array([0.01, -0.02, 0.0, 0.015, -0.005])
    scores = {"a": by_seed(0.9 + noise), "b": by_seed(0.8 + noise[::-1]), "c": by_seed(0.895 - noise)}
    found = standings(scores)
    assert {name: standing.place for name, standing in found.items()} == {"a": "highest", "b": "behind", "c": "level"}
    for name in ("b", "c"):
        values = [scores["a"][seed] - scores[name][seed] for seed in range(5)]
        low, high = stats.t.interval(0.99, 4, np.mean(values), stats.sem(values))
        ahead = found[name].ahead
        assert (low > 0) == (found[name].place == "behind")
        assert (ahead.outer_low, ahead.outer_high) == pytest.approx((low, high), abs=0.4 * (high - low))


def test_pairs_decide_what_means_and_deviations_cannot():
    splits = np.array([0.5, 0.9, 0.7, 0.6, 0.8])  # a seed with a hard split is hard for both
    noise = np.array([0.001, -0.001, 0, 0.001, 0])
    found = standings({"a": by_seed(splits + 0.02), "b": by_seed(splits + noise)})
    assert found["a"].place == "winner" and found["b"].place == "behind"


def test_lower_is_better_where_it_is_said():
    scores = {"a": by_seed([1.0, 1.1, 1.0]), "b": by_seed([0.1, 0.2, 0.1])}
    assert standings(scores, higher=False)["b"].place == "winner" == standings(scores)["a"].place


def test_one_seed_or_fewer_than_the_others_is_not_compared():
    assert standings({"a": {0: 0.9}, "b": {0: 0.1}})["a"].place == "not compared"
    found = standings({"a": by_seed([0.9, 0.9]), "b": by_seed([0.1, 0.11]), "c": {0: 0.99}})
    assert found["c"].place == "not compared" and found["a"].place == "winner"
    assert standings({"a": by_seed([0.9, 0.8])})["a"].place == "not compared" and standings({}) == {}


def test_equal_methods_are_rarely_told_apart():
    rng, trials = np.random.default_rng(0), 150
    wrong = 0
    for _ in range(trials):
        found = standings({name: by_seed(rng.normal(size=5)) for name in "abc"})
        wrong += any(standing.place == "behind" for standing in found.values())
    assert wrong / trials <= 0.1  # about 3 of 100: the best of three is compared with two
