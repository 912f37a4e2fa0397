import math

import pytest

from fgai.grades import MIN_NODES, Grade, grade_faithful, grade_stable, grade_used, sum_up
from fgai.intervals import Interval

NAN = math.nan
GOOD = {"model": 0.9, "largest_class": 0.3}


def interval(low, high, count=200):
    """The 99 % interval; the printed one lies inside."""
    mean, width = (low + high) / 2, (high - low) / 2
    return Interval(mean, 1.0, count, mean - width / 2, mean + width / 2, low, high)


UP, DOWN, OPEN = interval(0.1, 0.3), interval(-0.3, -0.1), interval(-0.05, 0.15)


@pytest.mark.parametrize(
    ("necessity", "least", "value"),
    [
        (UP, UP, "supported"),
        (UP, OPEN, "unknown"),
        (OPEN, UP, "unknown"),
        (OPEN, OPEN, "unknown"),
        (DOWN, UP, "contradicted"),
        (UP, DOWN, "contradicted"),
        (OPEN, DOWN, "contradicted"),
        (interval(0.1, 0.3, MIN_NODES - 1), UP, "unknown"),
        (interval(NAN, NAN), interval(NAN, NAN), "unknown"),
        (UP, interval(NAN, NAN), "unknown"),
    ],
)
def test_faithful_is_supported_contradicted_or_unknown(necessity, least, value):
    assert grade_faithful(necessity, least).value == value


def test_a_sentence_names_only_what_decided_and_its_interval():
    opposed = grade_faithful(OPEN, DOWN, "'last'").sentence
    assert str(DOWN) in opposed and str(OPEN) not in opposed and "random" not in opposed
    open_ = grade_faithful(UP, OPEN, "'last'").sentence
    assert str(OPEN) in open_ and str(UP) not in open_ and "nodes would decide" in open_
    both = grade_faithful(UP, UP).sentence
    assert both.count(str(UP)) == 2
    assert "only 3 nodes" in grade_faithful(interval(0.1, 0.3, 3), UP).sentence


def test_nan_is_not_printed():
    assert "nan" not in grade_faithful(UP, interval(NAN, NAN)).sentence


def test_the_printed_interval_is_not_the_one_that_decides():
    """A 95 % interval above 0 whose 99 % interval is not decides nothing."""
    close = Interval(0.1, 1.0, 200, 0.01, 0.19, -0.01, 0.21)
    assert grade_faithful(close, UP).value == "unknown"


@pytest.mark.parametrize(
    ("figures", "value", "named", "silent"),
    [
        ((0.2, 0.3, 0.5), "yes", "0.200", "random parameters"),
        ((0.0, 0.3, 0.5), "no", "0.0000", "random parameters"),
        ((0.2, 0.0, 0.5), "no", "distance to 1/degree", "changes predictions"),
        ((0.2, 0.3, 0.99), "no", "99%", "changes predictions"),
        ((NAN, 0.3, 0.5), "unknown", "missing", "nan"),
        ((0.2, 0.3, NAN), "unknown", "missing", "nan"),
        ((0.0, 0.3, NAN), "no", "changes predictions", "nan"),
    ],
)
def test_used_says_what_failed(figures, value, named, silent):
    grade = grade_used(*figures)
    assert grade.value == value and named in grade.sentence and silent not in grade.sentence


@pytest.mark.parametrize(
    ("figures", "value", "named", "silent"),
    [
        ((0.95, 0.0, 0.01), "yes", "95%", "F1"),
        ((0.5, 0.0, 0.01), "no", "50%", "F1"),
        ((0.95, 0.3, 0.01), "no", "0.300", "survive"),
        ((0.95, 0.0, 0.3), "no", "probabilities", "survive"),
        ((NAN, 0.0, 0.01), "unknown", "missing", "nan"),
        ((NAN, 0.3, 0.01), "no", "0.300", "nan"),
    ],
)
def test_stable_names_the_attack_and_what_failed(figures, value, named, silent):
    grade = grade_stable("node injection", *figures)
    assert grade.value == value and named in grade.sentence and silent not in grade.sentence
    assert "node injection" in grade.sentence


def test_a_number_exactly_at_its_threshold_holds():
    for low in range(981):  # of 1,000 test nodes, 20 are lost
        assert grade_stable("a", 0.9, (low + 20) / 1000 - low / 1000, 0.05).value == "yes"
    assert grade_stable("a", 0.9, 0.0201, 0.05).value == "no"
    yes = Grade("yes", "Y.")
    assert sum_up(yes, Grade("supported", "S."), yes, {"model": 0.35, "largest_class": 0.3}).answer == "yes"


def test_one_line_sums_up():
    yes, no, unknown = Grade("yes", "Y."), Grade("no", "N."), Grade("unknown", "U.")
    supported, contradicted = Grade("supported", "S."), Grade("contradicted", "C.")
    assert sum_up(yes, supported, yes, GOOD).line == "Can it be trusted? Yes. Y. S. Y."
    assert sum_up(yes, unknown, yes, GOOD).line == "Can it be trusted? Not shown. U."
    assert sum_up(no, unknown, yes, GOOD).line == "Can it be trusted? No. N."
    assert sum_up(yes, contradicted, unknown, GOOD).answer == "no"


@pytest.mark.parametrize("weak", [{"model": 0.32, "largest_class": 0.3}, {"model": NAN, "largest_class": 0.3}])
def test_a_weak_model_gets_no_grade(weak):
    grades = sum_up(Grade("yes", ""), Grade("supported", ""), Grade("yes", ""), weak)
    assert (grades.used, grades.faithful, grades.stable, grades.answer) == (None, None, None, "not shown")
    assert "too weak" in grades.line
