"""The examples of README and of the quickstart, and the output that each page shows below them.

`python tests/readme.py` runs the pages and writes the output below each example. `<!-- output -->` above a `text` block
marks it as the output of the block above. `python tests/readme.py --check PAGE ...` runs pages in the current folder
and fails where their outputs differ; the new user of CI does so with the wheel.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/quickstart.md")
BLOCK = re.compile(
    r"(?:<!-- *(?P<note>[^\n]*?) *-->\n+)?^```(?P<kind>python|sh)\n(?P<code>.*?)^```\n"
    r"(?:\n*<!-- output -->\n+```text\n(?P<shown>.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
TOLERANCE = 0.02  # of a number in an output, absolute and relative: other processors round otherwise


class Example(NamedTuple):
    """A block of code, and the output that the page shows below it; None if it shows none."""

    kind: str
    code: str
    shown: str | None
    span: tuple[int, int]  # of the output in the page


def examples(text: str) -> list[Example]:
    r"""The blocks of a page that a reader runs, without installations and without blocks marked as not run.

    >>> [e.shown for e in examples("```sh\nls\n```\n\n<!-- output -->\n```text\na\n```\n")]
    ['a\n']
    """
    blocks = [match for match in BLOCK.finditer(text) if match["note"] != "not run"]
    each = [Example(match["kind"], match["code"], match["shown"], match.span("shown")) for match in blocks]
    return [example for example in each if not example.code.startswith("pip install")]


def outputs(text: str, folder: Path) -> Iterator[tuple[Example, str]]:
    """Run the examples of a page one after another in a folder; yields each with its output."""
    for example in examples(text):
        shell = ["bash", "-euo", "pipefail", "-c"] if example.kind == "sh" else [sys.executable, "-c"]
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "120"}
        done = subprocess.run(
            [*shell, example.code], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{example.code}\n{done.stderr}"
        yield example, done.stdout


def differences(shown: str, printed: str) -> list[str]:
    """What differs between two outputs: words, or numbers by more than the tolerance.

    >>> differences("F1 0.90", "F1 0.901"), differences("stable", "unstable")
    ([], ["'stable' is now 'unstable'"])
    """
    if NUMBER.sub("#", shown).split() != NUMBER.sub("#", printed).split():
        return [f"{shown!r} is now {printed!r}"]
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True)
    return [f"{a} is now {b}" for a, b in pairs if not _near(float(a), float(b))]


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= TOLERANCE * (1 + abs(one))


def write(page: Path) -> None:
    """Write the output of each example into the page."""
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder:
        results = [*outputs(text, Path(folder))]
    for example, printed in reversed(results):
        if example.shown is not None:
            start, end = example.span
            text = text[:start] + printed.strip("\n") + "\n" + text[end:]
    page.write_text(text)


def check(page: Path) -> None:
    """Run the examples of a page in the current folder; raise if an output is not what the page shows."""
    began = time.monotonic()
    for number, (example, printed) in enumerate(outputs(page.read_text(), Path.cwd())):
        print(f"-- {page.name}, example {number} ({example.kind}), {time.monotonic() - began:.0f} s", flush=True)
        if example.shown is not None and (wrong := differences(example.shown, printed)):
            raise SystemExit(f"{page.name} shows another output: {wrong}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--check"]:
        for name in sys.argv[2:]:
            check(Path(name))
    else:
        for name in PAGES:
            write(ROOT / name)
