"""`fgai init`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from fgai.errors import OutputError
from fgai.files import atomic_write, try_output

TEMPLATE, NAME = "mine.template", "mine.py"


def init(folder: Annotated[Path, typer.Argument(help="The folder to write to.")] = Path()) -> None:
    """Write mine.py, an example of your own model and graph."""
    path = folder / NAME
    if path.exists():
        raise OutputError(f"{path} exists already; give another folder, or remove it")
    try_output(path)
    with atomic_write(path) as half:
        half.write_text((files("fgai.cli") / TEMPLATE).read_text(encoding="utf-8"), encoding="utf-8")
    shown = str(path).encode(errors="backslashreplace").decode()
    typer.echo(f"{shown} is written. Train its model: python {NAME}")
    typer.echo(f"Then audit it: fgai audit --model {path.stem}:build --weights w.safetensors")
