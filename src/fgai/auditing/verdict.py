"""The verdict in words, and the thresholds it rests on. Each reason says its number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

UNIFORM = 0.01  # mean l1 distance from 1/degree under which attention prefers no neighbour
UNUSED = 0.005  # g-TVD under uniform attention below which the answers do not use it
UNLEARNT = 0.95  # share of the top k that random parameters must not keep
OVERLAP = 0.9  # share of the top k that must survive
LOSS = 0.02  # F1 that may be lost
MOVED = 0.05  # g-TVD that may be suffered

Word = Literal["stable", "unstable", "degenerate", "unfaithful"]


@dataclass(frozen=True)
class Verdict:
    """One word, and the reasons for it."""

    word: Word
    reasons: tuple[str, ...]


def judge(clean: Mapping[str, float], attacked: Mapping[str, float], baselines: Mapping[str, float]) -> Verdict:
    """Degenerate attention is no explanation; an unfaithful one does not say what matters; the rest may be unstable.

    The word is the first that applies, the reasons are all. `floor` holds the slopes of F on the clean graph when each
    node loses its most attended, least attended or random edges (`f_slope_most`, `f_slope_least`, `f_slope_random` and
    its deviation), `overlap_randomised` (V_k under random parameters), `g_tvd_uniform` (attention replaced by 1/degree)
    and `f1_largest_class` (always naming the largest class).

    >>> good = {"f1": 0.9, "g_tvd": 0.0, "overlap": 1.0, "nonuniformity": 0.5}
    >>> baselines = {"f_slope_most": -0.4, "f_slope_least": -0.1, "f_slope_random": -0.2, "f_slope_random_deviation": 0.02}
    >>> baselines |= {"overlap_randomised": 0.5, "g_tvd_uniform": 0.3, "f1_largest_class": 0.3}
    >>> judge(good, good, baselines).word
    'stable'
    """
    tests: tuple[tuple[Word, list[str]], ...] = (
        ("degenerate", _degenerate(clean, baselines)),
        ("unfaithful", _unfaithful(baselines)),
        ("unstable", _unstable(clean, attacked)),
    )
    weak = _weak(clean, baselines)
    every = [reason for _, reasons in tests for reason in reasons]
    for word, reasons in tests:
        if reasons:
            return Verdict(word, (*every, *weak))
    kept = (
        f"under attack {attacked['overlap']:.0%} of each node's top neighbours are kept, "
        f"and F1 goes from {clean['f1']:.3f} to {attacked['f1']:.3f}"
    )
    return Verdict("stable", (kept, *weak))


def _weak(clean: Mapping[str, float], baselines: Mapping[str, float]) -> list[str]:
    if clean["f1"] > baselines["f1_largest_class"] + 0.05:
        return []
    return [
        f"beware, the model has learnt little: F1 {clean['f1']:.3f}, and naming the largest class gives "
        f"{baselines['f1_largest_class']:.3f}"
    ]


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
    random, noise = baselines["f_slope_random"], 2 * baselines["f_slope_random_deviation"]
    reasons = []
    if baselines["overlap_randomised"] > UNLEARNT:
        reasons.append(
            "it does not depend on what the model has learnt: with all parameters randomised "
            f"{baselines['overlap_randomised']:.0%} of each node's top neighbours stay"
        )
    if most >= min(least, random - noise):
        reasons.append(
            f"deleting what a node attends to most does not hurt more (slope {most:+.3f}) than deleting what it "
            f"attends to least ({least:+.3f}) and random edges ({random:+.3f} ± {noise:.3f})"
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
