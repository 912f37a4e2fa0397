"""fgai: how far the attention of a graph neural network can be trusted, and a method that makes it trustworthy.

`import fgai` imports no torch. A public name is imported when it is first used; `__init__.pyi` lists them all.
"""

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def _homes() -> dict[str, str]:
    """The module of each public name, from the type stub beside this file."""
    tree = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in froms for alias in node.names}


_HOMES = _homes()
__all__ = ["__version__", *_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value = version("fgai")
    elif _HOMES.get(name, "fgai") != "fgai":
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _HOMES or (not name.startswith("_") and find_spec(f"fgai.{name}") is not None):
        value = importlib.import_module(f"fgai.{name}")
    else:
        raise AttributeError(f"module 'fgai' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
