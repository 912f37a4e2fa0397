"""Versions of the software that computed a result."""

from __future__ import annotations

import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    """Return the versions of all packages that can change a result.

    >>> sorted(versions())
    ['fgai', 'python', 'torch', 'torch-geometric']
    """
    return {name: version(name) for name in ("fgai", "torch", "torch-geometric")} | {
        "python": platform.python_version()
    }
