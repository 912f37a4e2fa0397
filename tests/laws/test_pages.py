"""The examples that `.ci/newuser` runs: Python that compiles, and commands with options that there are."""

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from fgai.cli import app
from readme import check, examples

ROOT = Path(__file__).parents[2]
PAGES = [path for name in ("README.md", "docs/quickstart.md", "docs/cli.md") if (path := ROOT / name).exists()]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_compiles_and_commands_have_the_options_they_are_given(path):
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    for example in examples(path.read_text()):
        if example.kind == "python":
            compile(example.code, path.name, "exec")
            continue
        for line in example.code.replace("\\\n", " ").splitlines():
            for part in re.findall(r"(?:^|&& *)(fgai [^&|]*)", line):
                _, command, *words = shlex.split(part, comments=True)
                if command in ("--help", "--version"):
                    continue
                known = {option for one in commands[command].params for option in one.opts}
                given = {word.partition("=")[0] for word in words if word.startswith("--")}
                assert given <= {*known, "--help"}, f"{path.name}: {line}"


def test_a_page_is_checked_against_the_outputs_that_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    text = "<!-- not run -->\n```sh\nfalse\n```\n```sh\necho F1 0.91\n```\n\n<!-- output -->\n```text\nF1 {}\n```\n"
    page.write_text(text.format(0.9))
    check(page)  # within the tolerance
    page.write_text(text.format(0.5))
    with pytest.raises(SystemExit, match=r"0\.5 is now 0\.91"):
        check(page)
    page.write_text("```sh\nfalse\necho on\n```\n")
    with pytest.raises(AssertionError, match="echo on"):
        check(page)
