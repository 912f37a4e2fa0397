"""Run the code blocks of Markdown pages in the current folder: python blocks.py PAGE ...

The Python blocks of a page share their variables, as in a notebook. Blocks of `sh`, `bash` and `console` go to bash; in
a console block the lines after `$ ` are commands. Lines that install with pip are left out. A comment just above a
block says more: `<!-- not run -->` skips it, `<!-- file: mine.py -->` writes it to a file.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SHELLS = ("sh", "bash", "console")
BLOCK = re.compile(r"(?:<!-- *(?P<note>[^\n]*?) *-->\n+)?^```(?P<kind>\w+)[^\n]*\n(?P<body>.*?)^```", re.M | re.S)


class Block(NamedTuple):
    """A code block: its kind, its text, its first line in the page, and what the comment above it says."""

    kind: str
    text: str
    line: int
    note: str


def blocks_of(page: str) -> Iterator[Block]:
    r"""The blocks of a page that can be run.

    >>> page = "```sh\npip install x\nls\n```\n<!-- not run -->\n```sh\nrm x\n```\n"
    >>> [block.text for block in blocks_of(page)]
    ['ls']
    """
    for match in BLOCK.finditer(page):
        kind, note = match["kind"], match["note"] or ""
        if kind not in (*SHELLS, "python") or note == "not run":
            continue
        text = match["body"] if kind == "python" else _commands(kind, match["body"])
        if text.strip():
            yield Block(kind, text, page[: match.start("body")].count("\n") + 1, note)


def _commands(kind: str, text: str) -> str:
    """The commands of a shell block, without those that install packages."""
    lines = text.splitlines()
    if kind == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return "\n".join(line for line in lines if not re.match(r"(python3? -m )?pip install", line))


def run(block: Block, names: dict[str, Any], where: str) -> None:
    """Run one block; a shell ends at its first command that fails."""
    if block.note.startswith("file:"):
        Path(block.note.removeprefix("file:").strip()).write_text(block.text)
    elif block.kind == "python":
        exec(compile(block.text, where, "exec"), names)
    else:
        subprocess.run(["bash", "-euo", "pipefail", "-c", block.text], check=True)


def main(pages: list[str]) -> None:
    """Run the blocks of all pages."""
    for page in pages:
        names: dict[str, Any] = {"__name__": "__page__"}
        for block in blocks_of(Path(page).read_text(encoding="utf-8")):
            where, began = f"{page}:{block.line}", time.monotonic()
            print(f"-- {where} ({block.kind})", flush=True)
            run(block, names, where)
            print(f"-- {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main(sys.argv[1:])
