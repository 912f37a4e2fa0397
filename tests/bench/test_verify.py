"""A cell that runs again is compared with what was committed, number by number."""

import math
from dataclasses import replace
from statistics import stdev

import pytest
from scipy.stats import t as student
from typer.testing import CliRunner

from fgai.bench import verify as module
from fgai.bench.plan import Cell
from fgai.bench.results import CellStore, Row
from fgai.bench.run import Settings, finish
from fgai.bench.verify import Comparison, verify
from fgai.cli import app
from fgai.errors import DataError

CELL = Cell("synthetic", "gat", "vanilla", 0)
QUICK = Settings(attacks=("injection-20x20",), epochs=1)


@pytest.fixture(scope="module", name="done")
def _done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cells")
    finish(CELL, CellStore(folder), QUICK)
    return folder


def test_the_same_code_gives_equal_numbers(done):
    again = verify(CELL.name, done, QUICK)
    assert again.ok and again.comparisons and all(one.distance == 0 for one in again.comparisons)
    assert {one.attack for one in again.comparisons} == {"none", "injection-20x20"}
    assert not [line for line in again.differences if "settings" in line or "data" in line]
    assert "g_jsd_released" not in {one.metric for one in again.comparisons} or "0.1.0" not in again.text()


def test_a_changed_number_and_other_settings_are_told(done, tmp_path):
    rows = [
        replace(row, metrics={**row.metrics, "overlap": 0.123, "g_jsd_released": 0.5}, versions={"fgai": "0.1.0"},
                settings={**row.settings, "lr": 7}, data_sha256="other")
        for row in CellStore(done).rows(CELL)
    ]  # fmt: skip
    CellStore(tmp_path).put(CELL, rows)
    again = verify(CELL.name, tmp_path, QUICK)
    assert not again.ok and {one.metric for one in again.comparisons if not one.ok} == {"overlap"}
    told = "\n".join(again.differences)
    assert "lr: 7 -> " in told and "the data is not that" in told
    assert "g_jsd_released was defined otherwise up to 0.1.0" in told
    assert "outside" in again.text()


def rows(values, metric="overlap"):
    return [{"x": Row("d", "b", "m", seed, {metric: value}, attack="x")} for seed, value in enumerate(values)]


def test_the_interval_is_that_of_the_difference_of_two_seeds():
    values = [0.5, 0.6, 0.8]
    same = rows(values)
    expected = student.ppf(0.975, 2) * math.sqrt(2) * stdev(values)
    assert module._allowed(same, same[0]["x"], "overlap") == pytest.approx(expected)
    assert module._allowed(same[:2], same[0]["x"], "overlap") == 0


def test_with_one_seed_f1_may_differ_as_two_samples_do(monkeypatch):
    monkeypatch.setattr(module, "_test_items", lambda row: 400)
    same = rows([0.8], "f1")
    assert module._allowed(same, same[0]["x"], "f1") == pytest.approx(1.959964 * math.sqrt(2 * 0.8 * 0.2 / 400))


def test_rounding_is_no_difference():
    assert Comparison("none", "f1", 50.0, 50.00002, 0.0).ok and not Comparison("none", "f1", 0.5, 0.50002, 0.0).ok
    assert not Comparison("none", "g_jsd", 6.1e-7, 1.2e-9, 0.0).ok  # small numbers differ, too


def test_only_the_seeds_of_the_same_cell_make_the_interval(tmp_path):
    store = CellStore(tmp_path)
    for cell in (CELL, replace(CELL, seed=12), replace(CELL, method="fgai"), replace(CELL, preset="paper")):
        store.put(cell, [Row(cell.dataset, cell.backbone, cell.method, cell.seed, {}, cell.preset)])
    assert sorted(rows["none"].seed for rows in module._all_seeds(CELL, store)) == [0, 12]


def test_a_preset_with_one_seed_takes_the_intervals_of_the_default_preset(tmp_path):
    store, one = CellStore(tmp_path), replace(CELL, preset="paper")
    for seed, cell in enumerate([one, CELL, replace(CELL, seed=1)]):
        store.put(cell, [Row(cell.dataset, cell.backbone, cell.method, cell.seed, {"f1": seed}, cell.preset)])
    assert module._seeds_of_intervals(one, store) == (module._all_seeds(one, store), [])
    store.put(replace(CELL, seed=2), [Row(CELL.dataset, CELL.backbone, CELL.method, 2, {"f1": 0})])
    same, notes = module._seeds_of_intervals(one, store)
    assert [rows["none"].preset for rows in same] == ["default"] * 3
    assert notes == ["the cell has 1 of 3 seeds; its intervals are those of the default preset"]
    assert module._seeds_of_intervals(CELL, store)[1] == []


def test_a_cell_that_is_not_there_is_said(tmp_path):
    with pytest.raises(DataError, match="holds no finished cell 'cora-gat-fgai-0'"):
        verify("cora-gat-fgai-0", tmp_path)
    told = CliRunner().invoke(app, ["bench", "verify", "nope", "--cells", str(tmp_path)])
    assert told.exit_code == 2 and "holds no finished cell" in told.stderr
