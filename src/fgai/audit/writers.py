"""The formats in which what an audit found is written, by the ending of the file; `fgai.report` adds `.html`."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from fgai.files import ending, whole
from fgai.registry import Registry

WRITERS: Registry[Callable[[Any], str]] = Registry("format of a report")
WRITERS.add(".json", lambda found: found.json(), "everything, to be read back")
WRITERS.add(".md", lambda found: found.markdown(), "a table for a page")
WRITERS.add(".txt", lambda found: found.text(), "for the terminal")


def write(found: Any, path: str | Path) -> None:
    """Write a report or a comparison to a file, in the format that its name asks for."""
    path = Path(path)
    content = writer_for(path)(found)
    with whole(path) as half:
        half.write_text(content + "\n", encoding="utf-8")


def writer_for(path: Path) -> Callable[[Any], str]:
    """The format that the name of a file asks for."""
    return WRITERS[ending(path, WRITERS, "a report")]


def in_notebook(found: Any) -> str:
    """The page of a report in a frame of its own, as notebooks show it."""
    page = escape(WRITERS[".html"](found))
    return f'<iframe sandbox="allow-scripts" srcdoc="{page}" width="100%" height="720" title="audit"></iframe>'
