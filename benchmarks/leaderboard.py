"""Writes the page of the leaderboard from `results/`, and adds it to the docs as `board.html` when MkDocs builds them.

python benchmarks/leaderboard.py leaderboard.html
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fgai.bench.leaderboard import Leaderboard
from fgai.bench.leaderboard_page import LAYOUT, content, save
from fgai.report import page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

RESULTS = Path(__file__).parent.parent / "results"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page to the files of the docs; MkDocs calls this."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "board.html", content=page(content(Leaderboard(RESULTS)), LAYOUT)))
    return files


def main(out: Annotated[Path, typer.Argument(help="The file to write.")]) -> None:
    save(out, RESULTS)


if __name__ == "__main__":
    typer.run(main)
