"""The examples that `.ci/newuser` runs: Python that compiles, and commands with options that there are."""

import doctest
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from fgai.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [path for name in ("README.md", "docs/quickstart.md", "docs/cli.md") if (path := ROOT / name).exists()]


def module():
    spec = importlib.util.spec_from_file_location("blocks", ROOT / ".ci/blocks.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


BLOCKS = module()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_python_compiles_and_commands_have_the_options_they_are_given(path):
    commands = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    for block in BLOCKS.blocks_of(path.read_text()):
        if block.kind == "python":
            compile(block.text, f"{path.name}:{block.line}", "exec")
            continue
        for line in block.text.replace("\\\n", " ").splitlines():
            for part in re.findall(r"(?:^|&& *)(fgai [^&|]*)", line):
                _, command, *words = shlex.split(part, comments=True)
                if command in ("--help", "--version"):
                    continue
                known = {option for one in commands[command].params for option in one.opts}
                given = {word.partition("=")[0] for word in words if word.startswith("--")}
                assert given <= {*known, "--help"}, f"{path.name}:{block.line}: {line}"


def test_blocks_are_taken_as_their_notes_say(tmp_path, monkeypatch, capfd):
    assert doctest.testmod(BLOCKS).failed == 0
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 1\n```\n\n```python\nprint(x + 1)\n```\n```console\n$ echo three\nthree\n```\n"
        "<!-- not run -->\n```sh\nfalse\n```\n<!-- file: mine.txt -->\n```python\ny = 4\n```\n```text\nfalse\n```\n"
    )
    monkeypatch.chdir(tmp_path)
    BLOCKS.main([str(page)])
    told = [line for line in capfd.readouterr().out.splitlines() if not line.startswith("--")]
    assert told == ["2", "three"] and (tmp_path / "mine.txt").read_text() == "y = 4\n"


def test_a_block_that_fails_ends_the_run(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh\nfalse\necho on\n```\n")
    with pytest.raises(Exception, match="exit status 1"):
        BLOCKS.main([str(page)])
