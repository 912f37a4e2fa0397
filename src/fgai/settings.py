"""Checks of settings: one function per kind of value, used by all adversaries and methods."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from fgai.errors import SettingError

SEEDS = 2**63  # exclusive upper bound of seeds; derived seeds are reduced modulo this number


def check_numbers(least: float, **values: Any) -> None:
    """Raise unless each value is a finite number of at least `least`.

    >>> check_numbers(0, radius=float("nan"))
    Traceback (most recent call last):
    fgai.errors.SettingError: radius=nan; give a finite number of at least 0
    """
    for name, value in values.items():
        if not _is_finite(value) or value < least:
            raise SettingError(f"{name}={value!r}; give a finite number of at least {least:g}")


def check_positive(**values: Any) -> None:
    """Raise unless each value is a finite number above 0."""
    for name, value in values.items():
        if not _is_finite(value) or value <= 0:
            raise SettingError(f"{name}={value!r}; give a finite number above 0")


def check_share(**values: Any) -> None:
    """Raise unless each value is a number from 0 to 1."""
    for name, value in values.items():
        if not _is_finite(value) or not 0 <= value <= 1:
            raise SettingError(f"{name}={value!r}; give a share, a number from 0 to 1")


def check_whole(least: int, most: int | None = None, **values: Any) -> None:
    """Raise unless each value is a whole number of at least `least`, and at most `most`.

    >>> check_whole(1, epochs=-3)
    Traceback (most recent call last):
    fgai.errors.SettingError: epochs=-3; give a whole number of at least 1
    """
    for name, value in values.items():
        if not _is_whole(value) or value < least:
            raise SettingError(f"{name}={value!r}; give a whole number of at least {least}")
        if most is not None and value > most:
            raise SettingError(f"{name}={value!r}; give a whole number of at most {most}")


def check_choice(choices: Iterable[str], **values: Any) -> None:
    """Raise unless each value is one of the choices.

    >>> check_choice(("l1", "l2"), norm="l7")
    Traceback (most recent call last):
    fgai.errors.SettingError: norm='l7'; there is 'l1' and 'l2'
    """
    *most, last = map(repr, choices)
    for name, value in values.items():
        if repr(value) not in (*most, last):
            raise SettingError(f"{name}={value!r}; there is {', '.join(most)} and {last}")


def check_sequence(least: int = 1, **values: Any) -> None:
    """Raise unless each value is a tuple or a list of at least `least` entries.

    >>> check_sequence(edges=())
    Traceback (most recent call last):
    fgai.errors.SettingError: edges=(); give a tuple of at least 1 value
    """
    for name, value in values.items():
        if not isinstance(value, tuple | list) or len(value) < least:
            raise SettingError(f"{name}={value!r}; give a tuple of at least {least} value{'s' * (least != 1)}")


def check_schedules(least: int = 1, **values: Any) -> None:
    """Raise unless each value has at least `least` pairs (steps, step size), with at least one step each.

    >>> check_schedules(schedules=((40, 0.1), (10, 0.4)))
    """
    check_sequence(least, **values)
    for name, pairs in values.items():
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise SettingError(f"{name}={pairs!r}; give pairs (steps, step size)")
            check_whole(1, steps=pair[0])
            check_positive(step=pair[1])


def check_box(box: Any) -> None:
    """Raise unless the box of features is None or two finite numbers, the lower one first."""
    valid = box is None or (isinstance(box, tuple | list) and len(box) == 2 and all(map(_is_finite, box)))
    if not valid or (box is not None and box[0] >= box[1]):
        raise SettingError(
            f"box={box!r}; give two finite numbers, the lower one first, or None for the range of the data"
        )


def check_top(k: Any) -> None:
    """Raise unless k is a whole number of neighbours or a fraction of them."""
    if (_is_whole(k) and k >= 1) or (isinstance(k, float) and 0.0 < k <= 1.0):
        return
    raise SettingError(f"k={k!r}; give a whole number of neighbours (1, 2, ...) or a fraction of them (0.0, 1.0]")


def check_seed(seed: Any) -> None:
    """Raise unless the seed is a whole number from 0 to 2**63 - 1, which all generators accept.

    >>> check_seed(-1)
    Traceback (most recent call last):
    fgai.errors.SettingError: seed=-1; give a whole number from 0 to 2**63 - 1
    """
    if not _is_whole(seed) or not 0 <= seed < SEEDS:
        raise SettingError(f"seed={seed!r}; give a whole number from 0 to 2**63 - 1")


def _is_whole(value: Any) -> bool:
    """Return whether the value is an integer, and not a bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    """Return whether the value is a finite real number, and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
