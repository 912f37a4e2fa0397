"""What figures were made with."""

from __future__ import annotations

import platform
from importlib.metadata import version


def versions() -> dict[str, str]:
    """The versions that can change a figure.

    >>> sorted(versions())
    ['fgai', 'python', 'torch', 'torch-geometric']
    """
    return {name: version(name) for name in ("fgai", "torch", "torch-geometric")} | {
        "python": platform.python_version()
    }
