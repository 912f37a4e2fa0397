"""Files of the docs that are made when MkDocs builds them: the page of the leaderboard, and the two papers.

python benchmarks/site_files.py FOLDER     # the same files, without MkDocs
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from citations import read_bibliography, rendered
from fgai.bench.leaderboard import Leaderboard
from fgai.bench.leaderboard_page import LAYOUT, content
from fgai.report import page

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parent.parent


def made() -> dict[str, str]:
    """The files by their paths in the docs."""
    entries = read_bibliography(ROOT / "paper/paper.bib")
    papers = {f"paper/{path.name}": rendered(path.read_text(), entries) for path in sorted(ROOT.glob("paper/*.md"))}
    return {"board.html": page(content(Leaderboard(ROOT / "results")), LAYOUT), **papers}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files; MkDocs calls this."""
    from mkdocs.structure.files import File

    for name, text in made().items():
        files.append(File.generated(config, name, content=text))
    return files


def main(folder: Annotated[Path, typer.Argument(help="The folder to write to.")]) -> None:
    for name, text in made().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
