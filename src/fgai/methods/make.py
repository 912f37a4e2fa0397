"""A method by name, preset and settings."""

from __future__ import annotations

from typing import Any

from fgai.errors import SettingError
from fgai.methods.base import METHODS


def make_method(name: str, preset: str = "default", **settings: Any) -> Any:
    """Create a registered method.

    Args:
        name: A method of `METHODS`.
        preset: One of the method's presets. A method without presets has only `default`.
        settings: Fields of the method that differ from the preset.

    Returns:
        The method, a frozen dataclass with `fit`.

    Raises:
        SettingError: If the method has no such preset, or a setting is out of range.

    >>> make_method("vanilla", epochs=5).epochs
    5
    >>> make_method("vanilla", "paper")
    Traceback (most recent call last):
    fgai.errors.SettingError: vanilla has no presets, and 'paper' was given; give its name only
    """
    kind = METHODS[name]
    if hasattr(kind, "preset"):
        return kind.preset(preset, **settings)
    if preset != "default":
        raise SettingError(f"{name} has no presets, and {preset!r} was given; give its name only")
    return kind(**settings)
