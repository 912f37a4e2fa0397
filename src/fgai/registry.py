"""Registries: one per kind of entry (metric, adversary, method, ...). The CLI, the docs and the tests list them."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fgai.errors import DataError, UnknownNameError

T = TypeVar("T")
U = TypeVar("U")


class Registry(Mapping[str, T]):
    """A read-only mapping from names to entries of one kind; `add` and `register` extend it.

    Args:
        kind: What the entries are, for error messages.
        extended_by: A module that registers more entries. It is imported when the registry is first read.

    >>> colours = Registry[str]("colour")
    >>> colours.add("red", "#f00")
    '#f00'
    >>> colours["rde"]
    Traceback (most recent call last):
    fgai.errors.UnknownNameError: no colour is called 'rde'; did you mean 'red'? Registered: red
    """

    def __init__(self, kind: str, extended_by: str = "") -> None:
        self.kind = kind
        self._extended_by = extended_by
        self._entries: dict[str, T] = {}
        self._about: dict[str, str] = {}

    def add(self, name: str, entry: T, about: str = "") -> T:
        """Register `entry` under a new name and return it.

        `about` is the line for listings, by default the first line of the docstring.
        """
        if name in self._entries:
            raise ValueError(f"a {self.kind} called '{name}' is already registered; choose another name")
        self._entries[name] = entry
        self._about[name] = about or (entry.__doc__ or "").strip().partition("\n")[0]
        return entry

    def register(self, name: str) -> Callable[[U], U]:
        """Return a decorator that calls `add` and preserves the type of the entry."""

        def decorate(entry: U) -> U:
            self.add(name, entry)  # pyright: ignore[reportArgumentType], a U is a T
            return entry

        return decorate

    def about(self, name: str) -> str:
        """Return the line for listings."""
        self[name]  # raises if the name is unknown
        return self._about[name]

    def _all(self) -> dict[str, T]:
        """The entries, with those of the module that extends the registry."""
        if self._extended_by:
            module, self._extended_by = self._extended_by, ""
            importlib.import_module(module)
        return self._entries

    def __getitem__(self, name: str) -> T:
        entries = self._all()
        if name not in entries:
            close = difflib.get_close_matches(str(name), entries, n=1)
            hint = f"did you mean '{close[0]}'? " if close else ""
            raise UnknownNameError(f"no {self.kind} is called '{name}'; {hint}Registered: {', '.join(self)}")
        return entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


def import_from_cwd(module: str) -> Any:
    """Import an installed module, or one in the current folder, so that its entries are registered."""
    if not module or module.startswith("."):
        raise DataError(f"{module!r} is no name of a module; give an installed module, or one in this folder")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"{module}: {error}; give an installed module, or one in this folder") from error
    except (Exception, SystemExit) as error:
        raise DataError(describe_error(module, error)) from error
    finally:
        sys.path.pop(0)


def import_file(path: Path) -> Any:
    """Run a Python file as a module, so that its entries are registered, and return it.

    Raises:
        DataError: If there is no such file, or its code raises.
    """
    spec = importlib.util.spec_from_file_location(f"submitted_{path.stem}", path) if path.suffix == ".py" else None
    if spec is None or spec.loader is None or not path.is_file():
        raise DataError(f"{path} is not a Python file; give one whose name ends in .py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise DataError(f"{describe_error(path, error)}; mend it, and run it with Python first") from error
    return module


def describe_error(what: object, error: BaseException) -> str:
    """Return what a user's code raised, and where.

    >>> describe_error("mine:build", ValueError("no such layer"))
    'mine:build raised ValueError: no such layer'
    """
    lines = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
    return f"{what} raised {type(error).__name__}: {error}{place}"
