"""`import fgai` and the help of each command import no torch, and are fast."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fgai
from fgai.cli import BENCH, COMMANDS, app

ROOT = Path(__file__).parents[2]
LIMIT = 0.5  # seconds
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["torch_geometric"] = sys.modules["scipy"] = None  # importing one of them fails
from fgai.cli import app
app({words!r}, standalone_mode=False)
"""


def slow_starts(best):
    """The figures of one more measurement that are, at best, above the limit; `best` is updated."""
    printed = subprocess.run([sys.executable, "benchmarks/startup.py"], cwd=ROOT, capture_output=True, text=True)
    for name, seconds in json.loads(printed.stdout).items():
        best[name] = min(seconds, best.get(name, seconds))
    return {name for name, seconds in best.items() if seconds >= LIMIT} - {"every public name"}


def test_help_version_and_import_take_less_than_half_a_second():
    best = {}
    assert any(not slow_starts(best) for _ in range(4)), best  # again if other processes take the cores meanwhile


HELPS = [[command, "--help"] for command in COMMANDS] + [["bench", command, "--help"] for command in BENCH]


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["bench", "--help"], *HELPS])
def test_no_help_imports_torch(words):
    code = WITHOUT_TORCH.format(words=words)
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(f"fgai {fgai.__version__}" if words == ["--version"] else "Usage: ")


def test_every_public_name_is_there_and_what_is_not_is_said():
    for name in fgai.__all__:
        assert getattr(fgai, name) is not None and name in dir(fgai)
    with pytest.raises(AttributeError, match="has no attribute 'audits'"):
        _ = fgai.audits  # pyright: ignore[reportAttributeAccessIssue]


def test_an_html_report_is_written_by_who_imports_only_the_audits():
    code = "from fgai.auditing import WRITERS; print(WRITERS['.html'].__module__)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert told.stdout.strip() == "fgai.report.page", told.stderr


@pytest.mark.parametrize(("words", "completed"), [("fgai au", "audit"), ("fgai ls da", "datasets")])
def test_the_shell_completes_commands_and_kinds(words, completed):
    env = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" ")), "_FGAI_COMPLETE": "complete_bash"}
    told = CliRunner().invoke(app, [], env=env, prog_name="fgai")
    assert told.stdout.split() == [completed], told.output
