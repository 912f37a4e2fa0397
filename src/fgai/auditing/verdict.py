"""The verdict of an audit, and its thresholds. Each reason states its number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fgai.errors import NotFiniteError

UNIFORM = 0.01  # below this mean l1 distance from 1/degree, attention is uniform
UNUSED = 0.005  # below this g-TVD under uniform attention, the predictions do not use it
UNLEARNT = 0.95  # above this overlap with random parameters, attention does not depend on what was learnt
OVERLAP = 0.9  # below this overlap under attack, attention is unstable
LOSS = 0.02  # largest acceptable loss of F1
MOVED = 0.05  # largest acceptable g-TVD

Word = Literal["stable", "unstable", "degenerate", "unfaithful"]


@dataclass(frozen=True)
class Verdict:
    """One word, and the reasons for it."""

    word: Word
    reasons: tuple[str, ...]


def judge(
    clean: Mapping[str, float],
    attacked: Mapping[str, float],
    baselines: Mapping[str, float],
    unread: Sequence[str] = (),
) -> Verdict:
    """Decide whether attention is `degenerate`, `unfaithful`, `unstable` or `stable`.

    The word is the first that applies, in this order. The reasons are all that apply. Slopes may be NaN if no scored
    node is predicted correctly, and `overlap_randomised` if no node has more than k neighbours; the verdict then says
    that this was not tested.

    Args:
        clean: Metrics on the clean graph.
        attacked: Mean metrics on the attacked graphs.
        baselines: The slopes of F on the clean graph when each node loses its most attended, least attended or random
            edges (`f_slope_most`, `f_slope_least`, `f_slope_random` and its deviation), `overlap_randomised` (V_k with
            random parameters), `g_tvd_uniform` (attention replaced by 1/degree) and `f1_largest_class` (F1 of always
            predicting the largest class).
        unread: Modules of the model that attend and were not read.

    Returns:
        The word and its reasons.

    Raises:
        NotFiniteError: If a metric that the verdict needs is not finite.

    >>> good = {"f1": 0.9, "g_tvd": 0.0, "overlap": 1.0, "nonuniformity": 0.5}
    >>> baselines = {"f_slope_most": -0.4, "f_slope_least": -0.1, "f_slope_random": -0.2}
    >>> baselines |= {"f_slope_random_deviation": 0.02, "f1_largest_class": 0.3}
    >>> baselines |= {"overlap_randomised": 0.5, "g_tvd_uniform": 0.3}
    >>> judge(good, good, baselines).word
    'stable'
    """
    _check(clean, attacked, baselines)
    tests: tuple[tuple[Word, list[str]], ...] = (
        ("degenerate", _degenerate(clean, baselines)),
        ("unfaithful", _unfaithful(baselines)),
        ("unstable", _unstable(clean, attacked)),
    )
    warnings = [*_weak_model(clean, baselines), *_untested(baselines), *_unread_attention(unread)]
    all_reasons = [reason for _, reasons in tests for reason in reasons]
    for word, reasons in tests:
        if reasons:
            return Verdict(word, (*all_reasons, *warnings))
    reason = (
        f"under attack {attacked['overlap']:.0%} of each node's top neighbours are kept, "
        f"and F1 goes from {clean['f1']:.3f} to {attacked['f1']:.3f}"
    )
    return Verdict("stable", (reason, *warnings))


def _weak_model(clean: Mapping[str, float], baselines: Mapping[str, float]) -> list[str]:
    if clean["f1"] > baselines["f1_largest_class"] + 0.05:
        return []
    return [
        f"beware, the model has learnt little: F1 {clean['f1']:.3f}, and naming the largest class gives "
        f"{baselines['f1_largest_class']:.3f}"
    ]


def _check(clean: Mapping[str, float], attacked: Mapping[str, float], baselines: Mapping[str, float]) -> None:
    """Refuse NaN: comparisons with NaN are false, so every test would pass."""
    values = {f"clean {name}": clean[name] for name in ("f1", "nonuniformity")}
    values |= {f"attacked {name}": attacked[name] for name in ("f1", "g_tvd", "overlap")}
    values |= {name: baselines[name] for name in ("g_tvd_uniform", "f1_largest_class")}
    if wrong := sorted(name for name, value in values.items() if not math.isfinite(value)):
        raise NotFiniteError(
            f"{', '.join(wrong)} of the audit are not finite, so there is no verdict; check the predictions and "
            "the attention of the model on this graph"
        )


def _untested(baselines: Mapping[str, float]) -> list[str]:
    """Warnings about what could not be tested, or lies within the noise."""
    most, random, noise = (
        baselines["f_slope_most"],
        baselines["f_slope_random"],
        2 * baselines["f_slope_random_deviation"],
    )
    warnings = []
    if math.isnan(most) or math.isnan(random) or math.isnan(baselines["f_slope_least"]):
        warnings.append("beware, whether what is attended to matters was not tested: no judged node is right")
    elif random - noise <= most < random:
        warnings.append(
            f"beware, deleting what a node attends to most hurts more (slope {most:+.3f}) than deleting random edges "
            f"({random:+.3f} ± {noise:.3f}), but not by more than the noise"
        )
    if math.isnan(baselines["overlap_randomised"]):
        warnings.append("beware, whether it depends on what was learnt was not tested: no node has so many neighbours")
    return warnings


def _unread_attention(unread: Sequence[str]) -> list[str]:
    if not unread:
        return []
    named = ", ".join(name or "the model itself" for name in unread)
    return [f"beware, attention inside {named} is not read: all of this is about the attention over edges alone"]


def _degenerate(clean: Mapping[str, float], baselines: Mapping[str, float]) -> list[str]:
    reasons = []
    if clean["nonuniformity"] < UNIFORM:
        reasons.append(
            f"the attention is uniform: its mean distance from 1/degree is {clean['nonuniformity']:.4f}, "
            f"under {UNIFORM}"
        )
    if baselines["g_tvd_uniform"] < UNUSED:
        reasons.append(
            f"the prediction does not use it: uniform attention moves the answers by {baselines['g_tvd_uniform']:.4f}, "
            f"under {UNUSED}"
        )
    return reasons


def _unfaithful(baselines: Mapping[str, float]) -> list[str]:
    most, least = baselines["f_slope_most"], baselines["f_slope_least"]
    random = baselines["f_slope_random"]
    reasons = []
    if baselines["overlap_randomised"] > UNLEARNT:
        reasons.append(
            "it does not depend on what the model has learnt: with all parameters randomised "
            f"{baselines['overlap_randomised']:.0%} of each node's top neighbours stay"
        )
    for than, slope in (("what it attends to least", least), ("random edges", random)):
        if most >= slope:
            reasons.append(
                f"deleting what a node attends to most does not hurt more (slope {most:+.3f}) than deleting {than} "
                f"({slope:+.3f})"
            )
    return reasons


def _unstable(clean: Mapping[str, float], attacked: Mapping[str, float]) -> list[str]:
    reasons = []
    if attacked["overlap"] < OVERLAP:
        reasons.append(f"only {attacked['overlap']:.0%} of each node's top neighbours survive the attack")
    if clean["f1"] - attacked["f1"] > LOSS:
        reasons.append(f"F1 falls from {clean['f1']:.3f} to {attacked['f1']:.3f}")
    if attacked["g_tvd"] > MOVED:
        reasons.append(f"the predicted probabilities move by {attacked['g_tvd']:.3f} on average")
    return reasons
