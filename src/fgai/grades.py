"""Three questions about an explanation, each with its own grade and its own sentence.

Is it used? Is it faithful? Is it stable? A sentence names only what decided it. A model that has learnt nothing gets no
grade, and a number that is missing or NaN decides nothing. Every threshold stands here with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fgai.intervals import Interval

MIN_USE = 0.005  # g-TVD when attention becomes 1/degree: below it not one answer in 200 moves
MIN_NONUNIFORMITY = 0.01  # mean l1 distance from 1/degree: below it the weights of ten neighbours differ by 0.001
MAX_KEPT_AT_RANDOM = 0.95  # V_k under random parameters: above it what was learnt decides less than one place in 20
MIN_NODES = 20  # paired differences: below it a bootstrap cannot tell the tails
MIN_OVERLAP = 0.9  # V_k under attack: one of the first ten neighbours may go
MAX_LOSS = 0.02  # F1 lost under attack: the size of the difference between two seeds
MAX_SHIFT = 0.05  # g-TVD under attack: one answer in twenty
MIN_LEAD = 0.05  # F1 over naming the largest class: below it there is nothing to explain

Faithful = Literal["supported", "contradicted", "unknown"]
Answer = Literal["yes", "no", "not shown"]


@dataclass(frozen=True)
class Grade:
    """The answer to one question, and the sentence that says what decided it."""

    value: Literal["yes", "no", "supported", "contradicted", "unknown"]
    sentence: str


@dataclass(frozen=True)
class Grades:
    """The three grades, None where the model is too weak to be graded, and one line that sums them up."""

    used: Grade | None
    faithful: Grade | None
    stable: Grade | None
    answer: Answer
    line: str


def grade_used(uniform_shift: float, nonuniformity: float, kept_at_random: float) -> Grade:
    """Does the answer use the attention, and does the attention depend on what was learnt?

    >>> grade_used(uniform_shift=0.2, nonuniformity=0.3, kept_at_random=0.5).value
    'yes'
    >>> grade_used(0.001, 0.3, 0.5).sentence
    'It is not used: attention of 1/degree moves the answers by only 0.0010 (used from 0.005).'
    """
    tests = [
        (uniform_shift >= MIN_USE, uniform_shift,
         f"attention of 1/degree moves the answers by only {uniform_shift:.4f} (used from {MIN_USE})"),
        (nonuniformity >= MIN_NONUNIFORMITY, nonuniformity,
         f"its mean distance from 1/degree is only {nonuniformity:.4f} (used from {MIN_NONUNIFORMITY})"),
        (kept_at_random <= MAX_KEPT_AT_RANDOM, kept_at_random,
         f"with random parameters {kept_at_random:.0%} of the top neighbours stay (at most {MAX_KEPT_AT_RANDOM:.0%})"),
    ]  # fmt: skip
    if failed := [reason for passed, value, reason in tests if not passed and not math.isnan(value)]:
        return Grade("no", f"It is not used: {'; '.join(failed)}.")
    if any(math.isnan(value) for _, value, _ in tests):
        return Grade("unknown", "Whether it is used is not known: a figure is missing.")
    return Grade("yes", f"It is used: attention of 1/degree moves the answers by {uniform_shift:.3f}.")


def grade_faithful(necessity: Interval, against_least: Interval, explanation: str = "the explanation") -> Grade:
    """Does losing what is attended most hurt more than losing random edges, and than losing the least attended?

    Supported if both differences lie above 0, contradicted if one lies below 0, unknown otherwise. Of three events that
    would be a wrong grade of an explanation that says nothing, each has a chance of at most 0.5 % in 99 % intervals.
    """
    tested = min(necessity.count, against_least.count)
    if tested < MIN_NODES:
        told = f"only {tested} nodes can be tested, and fewer than {MIN_NODES} decide nothing"
        return Grade("unknown", f"Not enough evidence: {told}.")
    if math.isnan(necessity.mean + against_least.mean):
        return Grade("unknown", "Not enough evidence: a figure is missing.")
    each = {"random ones": necessity, "the least attended": against_least}
    if opposed := [f"than losing {what}: {one}" for what, one in each.items() if one.below]:
        return Grade(
            "contradicted", f"Losing the edges named first by {explanation} hurts less {', and '.join(opposed)}."
        )
    if all(one.above for one in each.values()):
        told = " and ".join(f"than losing {what}: {one}" for what, one in each.items())
        return Grade("supported", f"Losing the edges named first by {explanation} hurts more {told}.")
    open_ = [f"than losing {what}: {one}" for what, one in each.items() if not one.above]
    return Grade("unknown", f"Not enough evidence that losing the edges named first by {explanation} hurts more "
                            f"{' or '.join(open_)}; {_needed(necessity, against_least)}.")  # fmt: skip


def grade_stable(attack: str, overlap: float, loss: float, shift: float) -> Grade:
    """Do explanation and answers survive the named attack? Overlap is V_k, loss is F1 clean - attacked, shift is g-TVD.

    >>> grade_stable("node injection", overlap=0.95, loss=0.01, shift=0.2).sentence
    'Under node injection it is not stable: the predicted probabilities move by 0.200 (at most 0.05).'
    """
    tests = [
        (overlap >= MIN_OVERLAP, overlap, f"{overlap:.0%} of the top neighbours survive (at least {MIN_OVERLAP:.0%})"),
        (loss <= MAX_LOSS, loss, f"F1 falls by {loss:.3f} (at most {MAX_LOSS})"),
        (shift <= MAX_SHIFT, shift, f"the predicted probabilities move by {shift:.3f} (at most {MAX_SHIFT})"),
    ]
    if failed := [reason for passed, value, reason in tests if not passed and not math.isnan(value)]:
        return Grade("no", f"Under {attack} it is not stable: {'; '.join(failed)}.")
    if any(math.isnan(value) for _, value, _ in tests):
        return Grade("unknown", f"Whether it is stable under {attack} is not known: a figure is missing.")
    return Grade("yes", f"Under {attack} it is stable: {overlap:.0%} of the top neighbours survive.")


def sum_up(used: Grade, faithful: Grade, stable: Grade, f1: Mapping[str, float]) -> Grades:
    """One line: yes if all three are shown, no if one fails, not shown otherwise; no grade for a weak model.

    `f1` holds the model's own (`model`) and that of always naming the largest class (`largest_class`).

    >>> good = Grade("yes", "It is used.")
    >>> said = sum_up(good, Grade("unknown", "Not enough evidence."), good, {"model": 0.9, "largest_class": 0.3})
    >>> said.line
    'Can it be trusted? Not shown. Not enough evidence.'
    """
    if not f1["model"] > f1["largest_class"] + MIN_LEAD:
        line = (
            f"Can it be trusted? Not shown. The model is too weak to be graded: F1 {f1['model']:.3f}, and naming the "
            f"largest class gives {f1['largest_class']:.3f}."
        )
        return Grades(None, None, None, "not shown", line)
    each = (used, faithful, stable)
    failed = [grade.sentence for grade in each if grade.value in ("no", "contradicted")]
    unknown = [grade.sentence for grade in each if grade.value == "unknown"]
    answer: Answer = "no" if failed else "not shown" if unknown else "yes"
    deciding = failed or unknown or [grade.sentence for grade in each]
    return Grades(*each, answer, " ".join([f"Can it be trusted? {answer.capitalize()}.", *deciding]))


def _needed(*intervals: Interval) -> str:
    """About how many nodes would decide."""
    negative = [one for one in intervals if one.mean < 0]
    counts = [one.nodes_needed() for one in negative or intervals]
    needed = min(counts) if negative else max(counts)
    if not math.isfinite(needed):
        return "no number of nodes would show a difference of this size"
    return (
        f"about {needed:,.0f} nodes would decide if the difference is what it seems, {intervals[0].count:,} were tested"
    )
