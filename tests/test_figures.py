import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_figure_shown_is_the_one_in_its_results_file():
    run = subprocess.run([sys.executable, "benchmarks/pages.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
