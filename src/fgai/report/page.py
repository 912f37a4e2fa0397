"""The HTML page: data, scripts, styles and two libraries in one file that makes no network request.

Values are JSON in a block that is never executed, and the scripts insert them as text. A Content-Security-Policy allows
only scripts and styles with known hashes, and forbids all requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fgai.auditing import WRITERS, AuditReport, Comparison
from fgai.certificates import Certificate, Proof
from fgai.files import atomic_write
from fgai.report.content import Histories, content

STYLES = ("uplot-1.6.32.min.css", "page.css")
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


@dataclass(frozen=True)
class Layout:
    """What a page is made of besides its data: its title, the part that a reader may skip to, and scripts."""

    title: str
    part: str  # the id of that part
    name: str  # what it is called
    libraries: tuple[str, ...]  # as their authors publish them, with their licences
    scripts: tuple[str, ...]


REPORT = Layout(
    "Can this attention be trusted?",
    "view",
    "the picture",
    ("cytoscape-3.34.4", "uplot-1.6.32"),
    (
        *("dom.js", "theme.js", "charts.js", "sorting.js", "moved.js", "graph.js", "neighbourhood.js"),
        *("molecules.js", "page.js"),
    ),
)


def save(
    path: str | Path,
    result: AuditReport | Comparison,
    *,
    certificates: Mapping[str, Certificate] | None = None,
    proofs: Mapping[str, Proof] | None = None,
    histories: Histories | None = None,
    about: Mapping[str, str] | None = None,
) -> None:
    """Write the HTML page of an audit or a comparison.

    Args:
        path: The file to write.
        result: An audit or a comparison.
        certificates: Certificates by the names of the models.
        proofs: Proofs against one attacker by the names of the models.
        histories: Training histories by the names of the models.
        about: More lines of the provenance table, such as the data and the command.

    >>> import tempfile
    >>> from fgai import audit, backbones, datasets, NodeInjection
    >>> data = datasets.load("synthetic")
    >>> report = audit(backbones.build("gat", data), data, NodeInjection(2, 5, steps=1), seeds=1, name="my GAT")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Path(folder) / "audit.html", report)
    ...     "my GAT" in (Path(folder) / "audit.html").read_text()
    True
    """
    html = page(content(result, certificates, histories, about, proofs))
    with atomic_write(Path(path)) as half:
        half.write_text(html, encoding="utf-8")


@WRITERS.register(".html")
def html_of(result: AuditReport | Comparison) -> str:
    """One HTML page."""
    return page(content(result))


def page(values: Mapping[str, Any], layout: Layout = REPORT) -> str:
    """The HTML of the data that `fgai.report.content` collects, or of another page with its own layout.

    >>> "<b>" in page({"title": "<b>"})
    False
    """
    scripts = [*map(_library, layout.libraries), "\n".join(map(_asset, layout.scripts))]
    style = "\n".join(map(_asset, STYLES))
    policy = f"script-src {_hashes(scripts)}; style-src {_hashes([style])}; base-uri 'none'; form-action 'none'"
    parts = {
        "title": layout.title,
        "part": layout.part,
        "name": layout.name,
        "policy": f"default-src 'none'; {policy}",
        "style": style,
        "content": json_for_html({**values, "libraries": layout.libraries}),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    return re.sub(r"\[\[(\w+)\]\]", lambda match: parts[match[1]], _asset("page.html"))


def json_for_html(value: Any) -> str:
    r"""JSON in which no character can end the surrounding HTML element.

    >>> print(json_for_html("</script>"))
    "\u003c/script\u003e"
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character, escaped in UNSAFE.items():
        text = text.replace(character, escaped)
    return text


def _asset(name: str) -> str:
    return files("fgai.report").joinpath("assets", name).read_text(encoding="utf-8").rstrip("\n")


def _library(name: str) -> str:
    return f"/*\n{_asset(f'{name}.LICENSE')}\n*/\n{_asset(f'{name}.min.js')}"


def _hashes(texts: list[str]) -> str:
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
