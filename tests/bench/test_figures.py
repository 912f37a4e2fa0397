import importlib
import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from fgai.bench.figures import figure
from fgai.bench.plan import Plan
from fgai.bench.results import CellStore
from fgai.errors import DataError

ROOT = Path(__file__).parents[2]


def test_every_figure_shown_is_the_one_in_its_results_file():
    run = subprocess.run([sys.executable, "benchmarks/pages.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("plan", ["table1", "table2", "fidelity", "links"])
def test_no_cell_of_the_papers_tables_is_missing(plan):
    cells = Plan.read(plan).cells()
    store = CellStore(ROOT / "results/cells")
    assert cells and [cell.name for cell in cells if not store.finished(cell, Plan.read(plan).attacks)] == []


def test_the_lead_over_the_best_rival_is_paired_by_seed(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    chosen_links = importlib.import_module("chosen_links")
    own, best, worse = {0: 0.8, 1: 0.7, 2: 0.9}, {0: 0.7, 1: 0.6, 2: 0.8, 3: 0.0}, {0: 0.1, 1: 0.1, 2: 0.1, 3: 1.0}
    assert chosen_links.lead(own, [worse, best]).startswith("+0.100 [+0.100, +0.100]")  # seed 3 has no partner
    assert chosen_links.lead(own, [best, {0: 0.1}]).endswith("3 seeds")  # a weak rival with one seed hides none
    assert chosen_links.lead(best, [own]).endswith("✗")
    assert chosen_links.lead({0: 0.5}, [{0: 0.6}]) == "-0.100 ✗"  # no interval from one seed
    assert chosen_links.over(chosen_links.common(own, best), best) == pytest.approx(0.7)


@pytest.mark.parametrize("name", ["f-curves", "loss-terms", "certified"])
def test_a_figure_of_one_backbone_differs_from_that_of_another_and_names_what_is_missing(name):
    def points(backbone):
        axes = figure(name, ROOT / "results", backbone=backbone).axes
        return [[line.get_ydata().tolist() for line in one.lines] for one in axes]

    assert points("gat") != points("gatv2")
    with pytest.raises(DataError, match="with none"):
        figure(name, ROOT / "results", backbone="none")


def test_no_row_of_the_certified_shares_is_missing(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    certified = importlib.import_module("certified")
    rows = {certified.key(row) for row in json.loads((ROOT / "results/certified.json").read_text())}
    models = product(certified.SEEDS.items(), certified.BACKBONES, certified.METHODS)
    wanted = {
        (dataset, backbone, method, seed, *row)
        for (dataset, seeds), backbone, method in models
        for seed in range(seeds)
        for row in certified.all_rows()
    }
    assert len(wanted) == 114 * 24 and not wanted - rows
