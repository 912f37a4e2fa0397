"""Grades of an explanation: used, faithful, stable. Each has a sentence that states the reason.

A model that predicts hardly better than the largest class gets no grade. A number that is NaN decides nothing. All
thresholds are defined in this module, with their reasons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fgai.errors import NotFiniteError
from fgai.intervals import Interval
from fgai.settings import check_choice, check_sequence

MIN_USE = 0.005  # g-TVD if attention is replaced by 1/degree: below it, fewer than 1 in 200 predictions change
MIN_NONUNIFORMITY = 0.01  # mean l1 distance to 1/degree: below it, the weights of ten neighbours differ by 0.001
MAX_OVERLAP_AT_RANDOM = 0.95  # V_k with random parameters: above it, training affects fewer than 1 in 20 top neighbours
MIN_NODES = 20  # paired differences: below it, a bootstrap does not estimate the tails
MIN_OVERLAP = 0.9  # V_k under attack: one of the top ten neighbours may change
MAX_LOSS = 0.02  # loss of F1 under attack: about the difference between two seeds
MAX_SHIFT = 0.05  # g-TVD under attack: 1 in 20 predictions
TIE = 1e-9  # a difference of two shares that is exactly at a threshold may be off by rounding
MIN_LEAD = 0.05  # F1 above that of the largest class: below it, there is nothing to explain

Answer = Literal["yes", "no", "not shown"]


@dataclass(frozen=True)
class Grade:
    """A grade, and a sentence with its reason."""

    value: Literal["yes", "no", "supported", "contradicted", "unknown"]
    sentence: str

    @property
    def holds(self) -> bool:
        """Whether the value is `yes` or `supported`."""
        return self.value in ("yes", "supported")


GRADES = ("used", "faithful", "stable")


@dataclass(frozen=True)
class Grades:
    """The three grades, None if the model is too weak to be graded, and a summary line."""

    used: Grade | None
    faithful: Grade | None
    stable: Grade | None
    answer: Answer
    line: str

    def __repr__(self) -> str:
        return (
            f"Grades({', '.join([f'trusted {self.answer}', *(f'{name} {one.value}' for name, one in self.items())])})"
        )

    def items(self) -> list[tuple[str, Grade]]:
        """The grades by name; empty if the model is too weak.

        >>> Grades(Grade("yes", "It is used."), None, None, "not shown", "").items()
        [('used', Grade(value='yes', sentence='It is used.'))]
        """
        return [(name, one) for name in GRADES if (one := getattr(self, name)) is not None]


def grade_used(uniform_shift: float, nonuniformity: float, overlap_at_random: float) -> Grade:
    """Grade whether predictions depend on the attention, and the attention on the trained parameters.

    Args:
        uniform_shift: g-TVD of the predictions if attention is replaced by 1/degree.
        nonuniformity: Mean l1 distance of the attention to 1/degree.
        overlap_at_random: V_k between the attention of the model and that of random parameters.

    Returns:
        `yes`, `no` or `unknown`.

    >>> grade_used(uniform_shift=0.2, nonuniformity=0.3, overlap_at_random=0.5).value
    'yes'
    >>> grade_used(0.001, 0.3, 0.5).sentence
    'It is not used: attention of 1/degree changes predictions by only 0.0010 (at least 0.005).'
    """
    tests = [
        (uniform_shift >= MIN_USE, uniform_shift,
         f"attention of 1/degree changes predictions by only {uniform_shift:.4f} (at least {MIN_USE})"),
        (nonuniformity >= MIN_NONUNIFORMITY, nonuniformity,
         f"its mean distance to 1/degree is only {nonuniformity:.4f} (at least {MIN_NONUNIFORMITY})"),
        (overlap_at_random <= MAX_OVERLAP_AT_RANDOM, overlap_at_random,
         f"{overlap_at_random:.0%} of the top neighbours stay with random parameters "
         f"(at most {MAX_OVERLAP_AT_RANDOM:.0%})"),
    ]  # fmt: skip
    return _grade(tests, "It is not used", "Whether it is used is unknown") or Grade(
        "yes", f"It is used: attention of 1/degree changes predictions by {uniform_shift:.3f}."
    )


def grade_faithful(
    necessity: Interval, against_least: Interval, explanation: str = "the explanation", items: str = "nodes"
) -> Grade:
    """Grade whether deleting the most attended edges hurts more than deleting random or the least attended ones.

    The grade is `supported` if both differences lie above 0, `contradicted` if one lies below 0, else `unknown`. For an
    explanation without information, three events lead to a wrong grade: both differences lie above 0, or one of the two
    lies below 0. Each has a probability of about 0.5 % with 99 % intervals.

    Args:
        necessity: Drop without the most attended edges minus drop without random ones.
        against_least: Drop without the most attended edges minus drop without the least attended ones.
        explanation: Name of the explanation, for the sentence.
        items: What was tested: nodes or graphs, for the sentence.

    >>> grade_faithful(Interval.of([0.1, 0.2] * 20), Interval.of([0.2, 0.3] * 20)).value
    'supported'
    """
    tested = min(necessity.count, against_least.count)
    if tested < MIN_NODES:
        return Grade("unknown", f"Not enough evidence: only {tested} {items} can be tested (at least {MIN_NODES}).")
    if math.isnan(necessity.mean + against_least.mean):
        return Grade("unknown", "Not enough evidence: a number is missing.")
    each = {"random ones": necessity, "the least attended": against_least}
    edges = f"the edges ranked first by {explanation}"
    if opposed := [f"than deleting {what}: {one}" for what, one in each.items() if one.below]:
        return Grade("contradicted", f"Deleting {edges} hurts less {', and '.join(opposed)}.")
    undecided = [f"than deleting {what}: {one}" for what, one in each.items() if not one.above]
    if not undecided:
        reasons = " and ".join(f"than deleting {what}: {one}" for what, one in each.items())
        return Grade("supported", f"Deleting {edges} hurts more {reasons}.")
    needed = _items_needed(items, necessity, against_least)
    return Grade("unknown", f"Not enough evidence that deleting {edges} hurts more {' or '.join(undecided)}; {needed}.")


def grade_stable(attack: str, overlap: float, loss: float, shift: float, *, doubt: str = "") -> Grade:
    """Grade whether explanation and predictions survive an attack.

    Args:
        attack: Name of the attack, for the sentence.
        overlap: V_k of the explanation, clean and attacked.
        loss: F1 on the clean graph minus F1 on the attacked graph.
        shift: g-TVD of the predictions.
        doubt: Why survival of this attack says little, as a clause; empty if nothing is known against it.

    Returns:
        `yes`, `no` or `unknown`.

    >>> grade_stable("node injection", overlap=0.95, loss=0.01, shift=0.2).sentence
    'Under node injection it is not stable: the predicted probabilities change by 0.200 (at most 0.05).'
    """
    tests = [
        (
            overlap >= MIN_OVERLAP - TIE,
            overlap,
            f"{overlap:.0%} of the top neighbours survive (at least {MIN_OVERLAP:.0%})",
        ),
        (loss <= MAX_LOSS + TIE, loss, f"F1 falls by {loss:.3f} (at most {MAX_LOSS})"),
        (shift <= MAX_SHIFT + TIE, shift, f"the predicted probabilities change by {shift:.3f} (at most {MAX_SHIFT})"),
    ]
    unknown = f"Whether it is stable under {attack} is unknown"
    if failed := _grade(tests, f"Under {attack} it is not stable", unknown):
        return failed
    if doubt:
        return Grade("unknown", f"{unknown}: {doubt}.")
    return Grade("yes", f"Under {attack} it is stable: {overlap:.0%} of the top neighbours survive.")


def grade(
    clean: Mapping[str, float],
    attacked: Mapping[str, float],
    baselines: Mapping[str, float],
    faithful: Grade | None,
    attack: str,
    *,
    doubt: str = "",
) -> Grades:
    """Grade an explanation from the numbers of an audit.

    Args:
        clean: Metrics on the clean graph.
        attacked: Mean metrics on the attacked graphs.
        baselines: `g_tvd_uniform` (attention replaced by 1/degree), `overlap_randomised` (V_k with random parameters)
            and `f1_largest_class`.
        faithful: The grade of the test of faithfulness, or None if there was none.
        attack: Name of the attack.
        doubt: Why survival of the attack says little, as a clause; empty if nothing is known against it.

    Returns:
        The three grades and a summary line.

    Raises:
        NotFiniteError: A metric that the grades need is not finite.
    """
    values = {f"clean {name}": clean[name] for name in ("f1", "nonuniformity")}
    values |= {f"attacked {name}": attacked[name] for name in ("f1", "g_tvd", "overlap")}
    values |= {name: baselines[name] for name in ("g_tvd_uniform", "f1_largest_class")}
    if wrong := sorted(name for name, value in values.items() if not math.isfinite(value)):
        raise NotFiniteError(
            f"{', '.join(wrong)} of the audit are not finite, so there are no grades; check the predictions and "
            "the attention of the model on this graph"
        )
    untested = Grade("unknown", "Not enough evidence: the test of faithfulness needs a prediction for each node.")
    return sum_up(
        grade_used(baselines["g_tvd_uniform"], clean["nonuniformity"], baselines["overlap_randomised"]),
        faithful or untested,
        grade_stable(attack, attacked["overlap"], clean["f1"] - attacked["f1"], attacked["g_tvd"], doubt=doubt),
        {"model": clean["f1"], "largest_class": baselines["f1_largest_class"]},
    )


def sum_up(used: Grade, faithful: Grade, stable: Grade, f1: Mapping[str, float]) -> Grades:
    """Summarise the three grades: `yes` if all hold, `no` if one fails, else `not shown`.

    Args:
        used: The grade of `grade_used`.
        faithful: The grade of `grade_faithful`.
        stable: The grade of `grade_stable`.
        f1: F1 of the model (`model`), and of always predicting the largest class (`largest_class`).

    Returns:
        The grades with a summary line, without grades if the model is too weak.

    >>> good = Grade("yes", "It is used.")
    >>> sum_up(good, Grade("unknown", "Not enough evidence."), good, {"model": 0.9, "largest_class": 0.3}).line
    'Can it be trusted? Not shown. Not enough evidence.'
    """
    if not f1["model"] - f1["largest_class"] >= MIN_LEAD - TIE:
        line = (
            f"Can it be trusted? Not shown. The model is too weak to be graded: F1 {f1['model']:.3f}, and predicting "
            f"the largest class gives {f1['largest_class']:.3f}."
        )
        return Grades(None, None, None, "not shown", line)
    each = (used, faithful, stable)
    failed = [one.sentence for one in each if one.value in ("no", "contradicted")]
    unknown = [one.sentence for one in each if one.value == "unknown"]
    answer: Answer = "no" if failed else "not shown" if unknown else "yes"
    deciding = failed or unknown or [one.sentence for one in each]
    return Grades(*each, answer, " ".join([f"Can it be trusted? {answer.capitalize()}.", *deciding]))


def check_required(require: Sequence[str]) -> None:
    """Raise unless `require` lists names of grades.

    >>> check_required(["stabel"])
    Traceback (most recent call last):
    fgai.errors.SettingError: require='stabel'; there is 'used', 'faithful' and 'stable'
    """
    check_sequence(require=require)
    for name in require:
        check_choice(GRADES, require=name)


def failures(grades: Grades, require: Sequence[str] = GRADES) -> list[str]:
    """Return a sentence for each required grade that does not hold; the list is empty if all hold.

    A grade holds if it is `yes` or `supported`. None holds if the model is too weak to be graded.

    Args:
        grades: The grades of an audit.
        require: Names of grades: `used`, `faithful` or `stable`.

    Raises:
        SettingError: A name is not that of a grade, or there is none.

    >>> good, open_ = Grade("yes", "It is used."), Grade("unknown", "Not enough evidence.")
    >>> failures(Grades(good, open_, good, "not shown", ""), ["used", "faithful"])
    ['faithful is unknown: Not enough evidence.']
    """
    check_required(require)
    sentences = []
    for name in require:
        one: Grade | None = getattr(grades, name)
        if one is None:
            sentences.append(f"{name} is unknown: {grades.line}")
        elif not one.holds:
            sentences.append(f"{name} is {one.value}: {one.sentence}")
    return sentences


def _grade(tests: Sequence[tuple[bool, float, str]], failed: str, unknown: str) -> Grade | None:
    """Return the grade `no` or `unknown` of tests (passed, value, reason), or None if all pass; NaN decides nothing."""
    if reasons := [reason for passed, value, reason in tests if not passed and not math.isnan(value)]:
        return Grade("no", f"{failed}: {'; '.join(reasons)}.")
    if any(math.isnan(value) for _, value, _ in tests):
        return Grade("unknown", f"{unknown}: a number is missing.")
    return None


def _items_needed(items: str, *intervals: Interval) -> str:
    """Return the approximate number of nodes or graphs for a decision, in words."""
    negative = [one for one in intervals if one.mean < 0]
    counts = [one.nodes_needed() for one in negative or intervals]
    needed = min(counts) if negative else max(counts)
    if not math.isfinite(needed):
        return f"no number of {items} would decide a difference of 0"
    return (
        f"about {needed:,.0f} {items} would decide if the difference is as measured, {intervals[0].count:,} were tested"
    )
