"""Settings in the ranges in which they mean something: one check per kind, used by every adversary and method."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from fgai.errors import SettingError

SEEDS = 2**63  # seeds lie below; those that are made of other seeds are taken modulo this


def check_numbers(least: float, **values: Any) -> None:
    """Each value is a finite number and not below `least`.

    >>> check_numbers(0, radius=float("nan"))
    Traceback (most recent call last):
    fgai.errors.SettingError: radius=nan; give a finite number of at least 0
    """
    for name, value in values.items():
        if not _finite(value) or value < least:
            raise SettingError(f"{name}={value!r}; give a finite number of at least {least:g}")


def check_positive(**values: Any) -> None:
    """Each value is a finite number above 0."""
    for name, value in values.items():
        if not _finite(value) or value <= 0:
            raise SettingError(f"{name}={value!r}; give a finite number above 0")


def check_share(**values: Any) -> None:
    """Each value is a number from 0 to 1."""
    for name, value in values.items():
        if not _finite(value) or not 0 <= value <= 1:
            raise SettingError(f"{name}={value!r}; give a share, a number from 0 to 1")


def check_whole(least: int, **values: Any) -> None:
    """Each value is a whole number and not below `least`.

    >>> check_whole(1, epochs=-3)
    Traceback (most recent call last):
    fgai.errors.SettingError: epochs=-3; give a whole number of at least 1
    """
    for name, value in values.items():
        if not _whole(value) or value < least:
            raise SettingError(f"{name}={value!r}; give a whole number of at least {least}")


def check_choice(choices: Iterable[str], **values: Any) -> None:
    """Each value is one of the choices.

    >>> check_choice(("l1", "l2"), norm="l7")
    Traceback (most recent call last):
    fgai.errors.SettingError: norm='l7'; there is 'l1' and 'l2'
    """
    *most, last = map(repr, choices)
    for name, value in values.items():
        if repr(value) not in (*most, last):
            raise SettingError(f"{name}={value!r}; there is {', '.join(most)} and {last}")


def check_box(box: Any) -> None:
    """A box of features is None or two finite numbers, the lower one first."""
    fine = box is None or (isinstance(box, tuple | list) and len(box) == 2 and all(map(_finite, box)))
    if not fine or (box is not None and box[0] >= box[1]):
        raise SettingError(f"box={box!r}; give two finite numbers, the lower one first, or None for the data's range")


def check_top(k: Any) -> None:
    """A top k is a whole number of neighbours or a fraction of them."""
    if (_whole(k) and k >= 1) or (isinstance(k, float) and 0.0 < k <= 1.0):
        return
    raise SettingError(f"k is {k!r}; give a whole number of neighbours (1, 2, ...) or a fraction of them (0.0, 1.0]")


def check_seed(seed: Any) -> None:
    """A seed is a whole number from 0 to 2**63 - 1, which every generator takes.

    >>> check_seed(-1)
    Traceback (most recent call last):
    fgai.errors.SettingError: seed=-1; give a whole number from 0 to 2**63 - 1
    """
    if not _whole(seed) or not 0 <= seed < SEEDS:
        raise SettingError(f"seed={seed!r}; give a whole number from 0 to 2**63 - 1")


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
