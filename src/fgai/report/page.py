"""The page: a plain record, our script and style, and two libraries, in one file that asks nobody for anything.

Values are JSON in a block that is never executed, and the script writes them as text. A Content-Security-Policy allows
only the scripts and styles whose hashes it names, and no request at all.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from fgai.auditing import WRITERS, AuditReport, Comparison
from fgai.certificates import Certificate
from fgai.files import atomic_write
from fgai.report.content import Histories, content

LIBRARIES = ("cytoscape-3.34.4", "uplot-1.6.32")  # as their authors publish them, with their licences
SCRIPTS = ("dom.js", "theme.js", "charts.js", "moved.js", "graph.js", "neighbourhood.js", "page.js")
STYLES = ("uplot-1.6.32.min.css", "page.css")
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def save(
    path: str | Path,
    found: AuditReport | Comparison,
    *,
    certificates: Mapping[str, Certificate] | None = None,
    histories: Histories | None = None,
    about: Mapping[str, str] | None = None,
) -> None:
    """Write the page of an audit or a comparison; certificates and training histories go by the names of its models."""
    made = page(content(found, certificates, histories, about))
    with atomic_write(Path(path)) as half:
        half.write_text(made, encoding="utf-8")


@WRITERS.register(".html")
def page_of(found: AuditReport | Comparison) -> str:
    """A page to look at."""
    return page(content(found))


def page(shown: Mapping[str, Any]) -> str:
    """The HTML of what `content` made.

    >>> "<b>" in page({"title": "<b>"})
    False
    """
    scripts = [*map(_library, LIBRARIES), "\n".join(map(_asset, SCRIPTS))]
    style = "\n".join(map(_asset, STYLES))
    policy = f"script-src {_hashes(scripts)}; style-src {_hashes([style])}; base-uri 'none'; form-action 'none'"
    parts = {
        "policy": f"default-src 'none'; {policy}",
        "style": style,
        "content": embedded({**shown, "libraries": LIBRARIES}),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return re.sub(r"\[\[(\w+)\]\]", lambda place: parts[place[1]], _asset("page.html"))


def embedded(value: Any) -> str:
    r"""JSON that cannot end the block it stands in.

    >>> print(embedded("</script>"))
    "\u003c/script\u003e"
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign, safe in UNSAFE.items():
        text = text.replace(sign, safe)
    return text


def _asset(name: str) -> str:
    return files("fgai.report").joinpath("assets", name).read_text(encoding="utf-8").rstrip("\n")


def _library(name: str) -> str:
    return f"/*\n{_asset(f'{name}.LICENSE')}\n*/\n{_asset(f'{name}.min.js')}"


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
