import os
import pty
import subprocess
import sys

import pytest

from fgai import progress as module
from fgai.progress import progress

CODE = """
from fgai.progress import progress
with progress("counting", total=2) as advance:
    advance("one")
    advance("two")
"""
COLOURS = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@pytest.mark.parametrize("setting", [{}, {"FORCE_COLOR": "1"}], ids=["plain", "colour"])
def test_short_work_writes_nothing_when_output_is_piped(setting):
    plain = {name: value for name, value in os.environ.items() if name not in COLOURS}
    done = subprocess.run([sys.executable, "-c", CODE], env=plain | setting, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_long_work_writes_a_plain_line_every_few_seconds_when_output_is_piped(monkeypatch, capsys):
    clock = iter([0.0, 2.0, 6.0, 7.0, 13.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(clock))
    with progress("fitting", total=4) as advance:
        for number in range(4):
            advance(f"F1 0.{number}")
    told = capsys.readouterr()
    assert told.err.splitlines() == ["fitting: 2 of 4 after 6 s; F1 0.1", "fitting: 4 of 4 after 13 s; F1 0.3"]
    assert told.out == "" and module.EVERY == 5.0


def test_a_terminal_gets_a_bar_on_the_standard_error():
    ours, theirs = pty.openpty()
    done = subprocess.run([sys.executable, "-c", CODE], stdout=subprocess.PIPE, stderr=theirs, check=True)
    os.close(theirs)
    assert done.stdout == b"" and b"2/2" in os.read(ours, 100_000)
    os.close(ours)


def test_an_error_inside_goes_through():
    with pytest.raises(ZeroDivisionError), progress("counting", total=1) as advance:
        advance(str(1 / 0))
