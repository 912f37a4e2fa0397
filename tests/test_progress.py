import os
import subprocess
import sys

import pytest

from fgai.progress import progress

CODE = """
from fgai.progress import progress
with progress("counting", total=2) as advance:
    advance("one")
    advance("two")
"""
COLOURS = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@pytest.mark.parametrize("setting", [{}, {"FORCE_COLOR": "1"}], ids=["plain", "colour"])
def test_nothing_is_written_when_output_is_piped(setting):
    plain = {name: value for name, value in os.environ.items() if name not in COLOURS}
    done = subprocess.run([sys.executable, "-c", CODE], env=plain | setting, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_an_error_inside_goes_through():
    with pytest.raises(ZeroDivisionError), progress("counting", total=1) as advance:
        advance(str(1 / 0))
