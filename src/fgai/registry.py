"""One kind of thing, one registry of names: what is registered is in the CLI, the docs and the laws."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fgai.errors import DataError, UnknownNameError

T = TypeVar("T")
U = TypeVar("U")


class Registry(Mapping[str, T]):
    """Names of one kind of thing.

    >>> colours = Registry[str]("colour")
    >>> colours.add("red", "#f00")
    '#f00'
    >>> colours["rde"]
    Traceback (most recent call last):
    fgai.errors.UnknownNameError: no colour is called 'rde'; did you mean 'red'? There is: red
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._about: dict[str, str] = {}

    def add(self, name: str, entry: T, about: str = "") -> T:
        """Register `entry` under `name` and return it; a name is given once.

        `about` is its line in listings, by default the first line of its docstring.
        """
        if name in self._entries:
            raise ValueError(f"a {self.kind} called '{name}' is registered already; choose another name")
        self._entries[name] = entry
        self._about[name] = about or (entry.__doc__ or "").strip().partition("\n")[0]
        return entry

    def register(self, name: str) -> Callable[[U], U]:
        """`add` as a decorator, which keeps the entry's own type."""

        def adding(entry: U) -> U:
            self.add(name, entry)  # pyright: ignore[reportArgumentType], a U is a T
            return entry

        return adding

    def about(self, name: str) -> str:
        """One line that says what `name` is."""
        self[name]
        return self._about[name]

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            close = difflib.get_close_matches(str(name), self._entries, n=1)
            hint = f"did you mean '{close[0]}'? " if close else ""
            raise UnknownNameError(f"no {self.kind} is called '{name}'; {hint}There is: {', '.join(self)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def import_from_cwd(module: str) -> Any:
    """Import a module, installed or in the current folder: what it registers is then there."""
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise DataError(f"{module}: {error}; name a module in this folder or installed") from error
    finally:
        sys.path.pop(0)
