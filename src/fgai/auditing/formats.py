"""The file formats of a report, and its forms in a notebook."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from fgai.files import atomic_write, checked_suffix
from fgai.registry import Registry

WRITERS: Registry[Callable[[Any], str]] = Registry("format of a report", extended_by="fgai.report")
WRITERS.add(".json", lambda report: report.json(), "everything; `AuditReport.load` reads it")
WRITERS.add(".md", lambda report: report.markdown(), "a table for a page")
WRITERS.add(".txt", lambda report: report.text(), "for the terminal")


def write(report: Any, path: str | Path) -> None:
    """Write a report or a comparison to a file; the suffix decides the format."""
    path = Path(path)
    content = writer_for(path)(report)
    with atomic_write(path) as half:
        half.write_text(content + "\n", encoding="utf-8")


def writer_for(path: Path) -> Callable[[Any], str]:
    """The writer for the suffix of a file."""
    return WRITERS[checked_suffix(path, WRITERS, "a report")]


def notebook_html(report: Any) -> str:
    """The HTML page of a report in an iframe, for notebooks."""
    page = escape(WRITERS[".html"](report))
    return f'<iframe sandbox="allow-scripts" srcdoc="{page}" width="100%" height="720" title="audit"></iframe>'
