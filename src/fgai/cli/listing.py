"""`fgai ls`."""

from __future__ import annotations

import difflib
import importlib
import json
from typing import Annotated

import typer

from fgai.cli.options import AsJson, Import, import_modules
from fgai.errors import UnknownNameError

KINDS = {  # each with the module and the name of its registry
    "datasets": ("fgai.datasets", "DATASETS"),
    "backbones": ("fgai.backbones", "BACKBONES"),
    "methods": ("fgai.methods", "METHODS"),
    "adversaries": ("fgai.adversaries", "ADVERSARIES"),
    "threats": ("fgai.adversaries", "THREATS"),
    "gains": ("fgai.adversaries", "GAINS"),
    "metrics": ("fgai.metrics", "METRICS"),
    "explanations": ("fgai.explanations", "EXPLANATIONS"),
}
Kind = Annotated[
    str,
    typer.Argument(help=f"Only these: {', '.join(KINDS)}.", show_default=False, autocompletion=lambda: list(KINDS)),
]


def ls(kind: Kind = "", modules: Import = None, as_json: AsJson = False) -> None:
    """List datasets, backbones, methods, adversaries, ..."""
    asked = [_kind(kind)] if kind else list(KINDS)
    import_modules(modules)
    registries = [getattr(importlib.import_module(module), name) for module, name in map(KINDS.__getitem__, asked)]
    rows = [(registry.kind, name, registry.about(name)) for registry in registries for name in registry]
    if as_json:
        entries = [dict(zip(("kind", "name", "about"), row, strict=True)) for row in rows]
        typer.echo(json.dumps(entries, indent=1))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("kind", "name", "what it is", box=None)
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def _kind(word: str) -> str:
    """The kind that a word names, in the plural or the singular."""
    plurals = {"adversary": "adversaries", **{kind.removesuffix("s"): kind for kind in KINDS}}
    name = plurals.get(word, word)
    if name not in KINDS:
        close = difflib.get_close_matches(word, [*KINDS, *plurals], n=1)
        hint = f"did you mean '{plurals.get(close[0], close[0])}'? " if close else ""
        raise UnknownNameError(f"no kind is called '{word}'; {hint}There is {', '.join(KINDS)}")
    return name
