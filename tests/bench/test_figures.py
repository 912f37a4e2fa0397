import subprocess
import sys
from pathlib import Path

import pytest

from fgai.bench.plan import Plan
from fgai.bench.results import CellStore

ROOT = Path(__file__).parents[2]


def test_every_figure_shown_is_the_one_in_its_results_file():
    run = subprocess.run([sys.executable, "benchmarks/pages.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("plan", ["table1", "table2", "fidelity", "links"])
def test_no_cell_of_the_papers_tables_is_missing(plan):
    cells = Plan.read(plan).cells()
    store = CellStore(ROOT / "results/cells")
    assert cells and [cell.name for cell in cells if not store.finished(cell, Plan.read(plan).attacks)] == []
