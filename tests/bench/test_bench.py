import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fgai import backbones, datasets, saved
from fgai.adversaries import THREATS
from fgai.bench.cells import row_per_attack
from fgai.bench.engines import ENGINES
from fgai.bench.plan import Cell, Column, Plan, plans
from fgai.bench.results import CellStore, Row, read_rows
from fgai.bench.run import Settings, finish, run
from fgai.bench.tables import FORMATS, table_of
from fgai.calling import call_by_signature
from fgai.cli import app
from fgai.deletion import SHARES
from fgai.errors import DataError, MissingExtraError, SettingError, UnknownNameError
from fgai.files import SUFFIX
from fgai.methods import FGAI, Vanilla
from fgai.metrics import measure
from fgai.reading import open_reader
from fgai.trial import attacked_trial, clean_trial
from loose import loose

PLAN = Plan(
    "small",
    "A small table",
    seeds={"synthetic": 2},
    backbones=("gat",),
    methods=("vanilla", "ln", "fgai"),
    columns=(Column("F1", "f1", "none"), Column("F1, 20x20", "f1", "injection-20x20")),
    notes=("Small graphs differ.",),
    paper={"gat": {"fgai": {"synthetic": [0.5, 0.25]}}},
)
ONE = replace(PLAN, methods=("vanilla",), seeds={"synthetic": 1})
QUICK = Settings(attacks=("injection-20x20",), epochs=2)


def metrics(folder, plan=PLAN) -> Any:
    return {(cell.name, row.attack): dict(row.metrics) for cell in plan.cells() for row in CellStore(folder).rows(cell)}


@pytest.fixture(scope="module", name="done")
def _done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serial")
    assert len(run(PLAN, folder, settings=QUICK)) == 6
    return folder


def test_every_cell_has_a_row_for_the_clean_graph_and_one_per_attack(done):
    for cell in PLAN.cells():
        clean, attacked = sorted(CellStore(done).rows(cell), key=lambda row: row.attack != "none")
        assert (clean.attack, attacked.attack) == ("none", "injection-20x20")
        assert clean.data_sha256 and clean.versions and clean.settings["seed"] == cell.seed
        assert clean.seconds > 0 and clean.peak_mb > 0 and "median_radius" in clean.metrics


def test_the_curves_of_a_row_have_the_slopes_that_it_tells(done):
    for cell in PLAN.cells():
        for row in CellStore(done).rows(cell):
            for first, slope in (("most", "f_slope_plus"), ("least", "f_slope_minus")):
                fitted = np.polynomial.Polynomial.fit(SHARES, loose(row.curves[first]), 1).convert().coef[1]
                assert fitted == pytest.approx(row.metrics[slope], abs=1e-9)


def test_finished_cells_are_not_run_again(done):
    before = {path: path.stat().st_mtime_ns for path in done.glob("*.json")}
    assert run(PLAN, done, settings=QUICK) == []
    assert {path: path.stat().st_mtime_ns for path in done.glob("*.json")} == before


def test_a_pool_gives_the_same_rows_bit_for_bit(done, tmp_path):
    some = replace(PLAN, seeds={"synthetic": 1})
    run(some, tmp_path, engine="pool", workers=2, settings=QUICK)
    assert metrics(tmp_path, some) == metrics(done, some)


def test_the_same_cell_gives_the_same_figures_another_time(done, tmp_path):
    cell = Cell("synthetic", "gat", "fgai", 1)
    finish(cell, CellStore(tmp_path), QUICK)
    assert [row.metrics for row in CellStore(tmp_path).rows(cell)] == [
        row.metrics for row in CellStore(done).rows(cell)
    ]


def test_a_failure_is_a_row_and_is_tried_again(tmp_path, monkeypatch):
    cell = Cell("synthetic", "gat", "vanilla", 0)
    with monkeypatch.context() as patch:
        patch.setattr("fgai.bench.models.ModelStore.trained", lambda *_: 1 / 0)
        finish(cell, CellStore(tmp_path), QUICK)
    (row,) = CellStore(tmp_path).rows(cell)
    assert "ZeroDivisionError" in row.error and not CellStore(tmp_path).finished(cell)
    finish(cell, CellStore(tmp_path), QUICK)
    assert CellStore(tmp_path).finished(cell)


def test_an_attack_that_fails_loses_no_row_that_was_finished(tmp_path, monkeypatch):
    cell, store = Cell("synthetic", "gat", "vanilla", 0), CellStore(tmp_path)
    finish(cell, store, QUICK)
    before = {row.attack: row for row in store.rows(cell)}
    attacks = ("injection-20x20", "injection-20x40", "single-1")
    more = replace(QUICK, attacks=attacks)

    broken = THREATS["single-1"].adversary

    def failing(adversary, gain, clean, seed):
        return 1 / 0 if adversary == broken else attacked_trial(adversary, gain, clean, seed)

    with monkeypatch.context() as patch:
        patch.setattr("fgai.bench.cells.attacked_trial", failing)
        finish(cell, store, more)
    kept = {row.attack: row for row in store.rows(cell) if not row.error}
    assert kept.keys() == {"none", "injection-20x20", "injection-20x40"} and not store.finished(cell)
    assert {name: kept[name] for name in before} == before
    assert "ZeroDivisionError" in "".join(row.error for row in store.rows(cell))
    finish(cell, store, more)
    again = {row.attack: row for row in store.rows(cell)}
    assert store.finished(cell, attacks) and {name: again[name] for name in kept} == kept


def test_a_method_that_needs_a_trained_model_starts_from_the_vanilla_one(tmp_path):
    finish(Cell("synthetic", "gat", "fgai", 0), CellStore(tmp_path), QUICK)
    assert (tmp_path / "models" / "synthetic-gat-vanilla-0" / "manifest.json").exists()


def test_the_command_says_which_cells_failed(tmp_path):
    plan = tmp_path / "mine.toml"
    plan.write_text(
        'title = "x"\nbackbones = ["gat"]\nmethods = ["vanilla:paper"]\nseeds = { synthetic = 1 }\n'
        'columns = [{ heading = "F1", metric = "f1", attack = "none" }]'
    )
    done = CliRunner().invoke(app, ["bench", str(plan), "--out", str(tmp_path)])
    assert done.exit_code == 1 and "Vanilla has no preset 'paper'" in done.stderr
    assert CliRunner().invoke(app, ["table", str(plan), str(tmp_path), "--beside", "papr"]).exit_code == 2


def test_a_method_runs_only_where_a_plan_has_it(done):
    plan = replace(PLAN, methods=("vanilla", "fgai"), seeds={"synthetic": 1, "cora": 1}, where={"fgai": ["synthetic"]})
    assert {(cell.dataset, cell.method) for cell in plan.cells()} == {
        ("synthetic", "vanilla"),
        ("synthetic", "fgai"),
        ("cora", "vanilla"),
    }
    assert {line[0] for line in table_of(plan, done).body if line[2] == "fgai"} == {"synthetic"}


@pytest.mark.parametrize(
    ("listed", "lines"),
    [
        (["gt"], {("synthetic", "gt"), ("cora", "gt")}),
        (["gt", "gat", "cora"], {("cora", "gt"), ("cora", "gat")}),
        ([], {(dataset, backbone) for dataset in ("synthetic", "cora") for backbone in ("gat", "gatv2", "gt")}),
    ],
)
def test_a_method_runs_with_the_backbones_and_on_the_datasets_that_a_plan_lists(listed, lines):
    three = replace(PLAN, backbones=("gat", "gatv2", "gt"), seeds={"synthetic": 1, "cora": 1})
    plan = replace(three, methods=("vanilla", "fgai"), where={"fgai": listed})
    assert {line[:2] for line in plan.lines() if line[2] == "fgai"} == lines
    assert len([line for line in plan.lines() if line[2] == "vanilla"]) == 6


@pytest.mark.parametrize("where", ['fga = ["cora"]', 'fgai = ["core"]', 'fgai = "cora"'])
def test_a_plan_that_names_what_it_does_not_have_is_refused(tmp_path, where):
    text = 'title = ""\nbackbones = ["gat"]\nmethods = ["fgai"]\nseeds = { cora = 1 }\ncolumns = []\n'
    (tmp_path / "mine.toml").write_text(f"{text}where = {{ {where} }}\n")
    with pytest.raises(
        DataError, match=r"has no (method fga|dataset or backbone core) that `where` names|a list for each"
    ):
        Plan.read(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(
    "column", [Column("", "f2", "none"), Column("", "f1", "strongset"), Column("", "f1", "ensemble:tre")]
)
def test_a_column_that_nothing_fills_is_refused_before_anything_runs(tmp_path, column):
    unknown = r"column of the (metric f2|attack strongset|explanation tre), which is not registered .*; there is "
    with pytest.raises(SettingError, match=unknown):
        run(replace(PLAN, columns=(column,)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_attack_may_name_the_explanation_that_metrics_are_about():
    data = datasets.load("synthetic")
    model = Vanilla(epochs=2).fit(backbones.build("gat", data), data).model
    about = {"dataset": "synthetic", "backbone": "gat", "method": "vanilla", "seed": 0, "sha": ""}
    attacks = [f"injection-20x20{explanation}" for explanation in ("", ":last", ":tree")]
    unnamed, last, tree = (dict(row.metrics) for row in row_per_attack(model, data, attacks=attacks, **about))
    assert unnamed == last and tree["f1"] == last["f1"]
    attack = THREATS["injection-20x20"].adversary
    with open_reader(model) as read:
        expected = measure(attacked_trial(attack, "cross-entropy", clean_trial(read, data, "tree"), 0))
    assert tree["g_jsd"] == pytest.approx(expected["g_jsd"]) != last["g_jsd"]


def test_cells_with_fewer_attacks_or_other_epochs_run_again(tmp_path):
    assert len(run(ONE, tmp_path, settings=QUICK)) == 1
    assert run(ONE, tmp_path, settings=QUICK) == []
    more = replace(QUICK, attacks=("injection-20x20", "injection-20x40"), epochs=3)
    assert len(run(ONE, tmp_path, settings=more)) == 1
    manifest = json.loads(next(tmp_path.glob("models/*/manifest.json")).read_text())
    assert manifest["method"]["epochs"] == 3


def test_another_attack_on_a_saved_model_keeps_the_rows_that_are_there(tmp_path):
    (cell,) = run(ONE, tmp_path, settings=QUICK)
    store = CellStore(tmp_path)
    before = {row.attack: row for row in store.rows(cell)}
    both = replace(QUICK, attacks=("injection-20x40",))
    assert run(ONE, tmp_path, settings=both) == [cell]
    after = {row.attack: row for row in store.rows(cell)}
    assert {*after} == {"none", "injection-20x20", "injection-20x40"}
    assert {name: after[name] for name in before} == before  # also their seconds: they did not run again
    shutil.rmtree(tmp_path / "models")
    assert run(ONE, tmp_path, settings=replace(QUICK, attacks=("single-1",), epochs=3)) == [cell]
    anew = {row.attack: row for row in store.rows(cell)}
    assert {*anew} == {*after, "single-1"} and all(anew[name] != after[name] for name in after)


def test_an_error_before_the_first_row_keeps_the_finished_rows(tmp_path, monkeypatch):
    (cell,) = run(ONE, tmp_path, settings=QUICK)
    before = CellStore(tmp_path).rows(cell)
    with monkeypatch.context() as patch:
        patch.setattr("fgai.datasets.load", lambda *_, **__: 1 / 0)
        finish(cell, CellStore(tmp_path), replace(QUICK, attacks=("single-1",)))
    after = CellStore(tmp_path).rows(cell)
    assert [row for row in after if not row.error] == before and len(after) == len(before) + 1


def test_a_killed_run_with_another_model_loses_no_row_and_mixes_no_models(tmp_path, monkeypatch):
    def killed(*_, **__):
        raise KeyboardInterrupt

    (cell,) = run(ONE, tmp_path, settings=QUICK)
    store, more = CellStore(tmp_path), replace(QUICK, attacks=("single-1",), epochs=3)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("fgai.bench.cells.attacked_trial", killed)
        run(ONE, tmp_path, settings=more)
    assert {row.attack for row in store.rows(cell)} == {"none", "injection-20x20"}
    assert len({row.model_sha256 for row in store.rows(cell)}) == 2 and not store.finished(cell)
    assert run(ONE, tmp_path, settings=more) == [cell]
    assert {row.attack for row in store.rows(cell)} == {"none", "injection-20x20", "single-1"}
    assert len({row.model_sha256 for row in store.rows(cell)}) == 1 and store.finished(cell, ("single-1",))


def test_rows_of_an_attack_that_is_not_registered_break_nothing(tmp_path):
    (cell,) = run(ONE, tmp_path, settings=QUICK)
    store = CellStore(tmp_path)
    rows = store.rows(cell)
    store.put(cell, [*rows, replace(rows[-1], attack="mine")])
    assert run(ONE, tmp_path, settings=replace(QUICK, attacks=("single-1",))) == [cell]
    assert {row.attack for row in store.rows(cell)} == {"none", "injection-20x20", "mine", "single-1"}
    shutil.rmtree(tmp_path / "models")
    assert run(ONE, tmp_path, settings=replace(QUICK, attacks=("single-2",), epochs=3)) == [cell]
    assert {row.attack for row in store.rows(cell)} == {"none", "injection-20x20", "single-1", "single-2"}


def test_rows_and_models_of_other_data_are_not_used_again(tmp_path, monkeypatch):
    (cell,) = run(ONE, tmp_path, settings=QUICK)
    before = {row.attack: row for row in CellStore(tmp_path).rows(cell)}
    other = datasets.load("synthetic", seed=7)
    monkeypatch.setattr("fgai.datasets.load", lambda *_, **__: other)
    assert run(ONE, tmp_path, settings=replace(QUICK, attacks=("single-1",))) == [cell]
    after = {row.attack: row for row in CellStore(tmp_path).rows(cell)}
    assert len({(row.data_sha256, row.model_sha256) for row in after.values()}) == 1
    assert {*after} == {*before, "single-1"} and after["none"].data_sha256 != before["none"].data_sha256


def test_an_inductive_model_never_sees_a_test_node(tmp_path, monkeypatch):
    seen: list[Any] = []

    def fit(self, model, data, **settings):
        seen.append(data)
        return Vanilla.fit(self, model, data, **settings)

    monkeypatch.setattr("fgai.bench.models.ModelStore.method", lambda _, cell, *__: Spied(epochs=2, seed=cell.seed))
    Spied: Any = dataclass(frozen=True)(type("Spied", (Vanilla,), {"fit": fit}))
    plan = replace(ONE, inductive=True)
    (cell,) = run(plan, tmp_path, settings=QUICK)
    data = loose(datasets.load("synthetic", seed=0))
    kept = int((~data.test_mask).sum())
    assert cell.name == "synthetic-gat-vanilla-inductive-0" and [graph.num_nodes for graph in seen] == [kept]
    assert torch.equal(seen[0].y, data.y[~data.test_mask]) and not seen[0].test_mask.any()
    rows = CellStore(tmp_path).rows(cell)
    assert all(row.inductive and row.metrics["f1"] is not None for row in rows) and len(rows) == 2
    assert list(CellStore(tmp_path).all_rows()) == []  # other tables do not count it


def test_the_training_attack_of_an_inductive_model_has_its_share_of_the_nodes(tmp_path):
    plan, data = replace(ONE, methods=("at",)), datasets.load("synthetic", seed=0)
    for inductive, nodes in ((False, 20), (True, round(20 * float((~data.test_mask).float().mean())))):
        (cell,) = run(replace(plan, inductive=inductive), tmp_path, settings=QUICK)
        (row,) = (row for row in CellStore(tmp_path).rows(cell) if row.attack == "none")
        assert row.settings["adversary"]["nodes"] == nodes
    assert 0 < nodes < 20


def test_a_plan_runs_the_attacks_of_its_columns(tmp_path):
    plan = replace(ONE, columns=(Column("", "f1", "none"), Column("", "f1", "injection-20x40")))
    (cell,) = run(plan, tmp_path, settings=replace(QUICK, attacks=None))
    assert {row.attack for row in CellStore(tmp_path).rows(cell)} == {"none", "injection-20x40"}


def test_a_saved_model_without_its_training_time_is_trained_again(tmp_path):
    (cell,) = run(ONE, tmp_path, settings=QUICK)
    shelved = next(tmp_path.glob("models/*/manifest.json"))
    told = json.loads(shelved.read_text())
    shelved.write_text(json.dumps({name: value for name, value in told.items() if name != "seconds"}))
    (tmp_path / f"{cell.name}.json").unlink()
    run(ONE, tmp_path, settings=QUICK)
    assert CellStore(tmp_path).rows(cell)[0].seconds > 0 and json.loads(shelved.read_text())["seconds"] > 0


def test_a_plan_may_name_the_default_and_leave_a_dataset_out(done):
    plan = replace(PLAN, methods=("fgai:default",), seeds={"synthetic": 2, "cora": 0})
    lines = table_of(plan, done).body
    assert [(line[0], line[3]) for line in lines] == [("synthetic", "2"), ("cora", "0")]


SCRIPT = """
import sys
import torch
from fgai.bench.plan import Column, Plan
from fgai.bench.run import Settings, run
torch.set_num_threads(1)  # as in the tests: the last digits of a metric depend on it
plan = Plan("small", "", {"synthetic": 3}, ("gat",), ("vanilla", "fgai"), (Column("F1", "f1", "none"),))
run(plan, sys.argv[1], settings=Settings(attacks=("injection-20x20",), epochs=2))
"""
KILLED = Plan("small", "", {"synthetic": 3}, ("gat",), ("vanilla", "fgai"), (Column("F1", "f1", "none"),))


def test_a_run_that_is_killed_twice_loses_nothing_that_was_finished(tmp_path):
    draw, kept, kills = random.Random(0), {}, 0
    while kills < 2:  # benchmarks/hostile.py kills thirty times
        process = subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path / "killed"], stdout=subprocess.DEVNULL)
        moment = time.monotonic() + draw.uniform(2.0, 6.0)
        while time.monotonic() < moment and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        rows = [row for path in (tmp_path / "killed").glob("*.json") for row in read_rows(path)]  # none is half written
        now = {row.key: row for row in rows}  # a cell that was killed between two attacks gets more rows
        assert now.items() >= kept.items()
        kept = now
    subprocess.run([sys.executable, "-c", SCRIPT, tmp_path / "killed"], check=True, stdout=subprocess.DEVNULL)
    run(KILLED, tmp_path / "whole", settings=QUICK)
    assert metrics(tmp_path / "killed", KILLED) == metrics(tmp_path / "whole", KILLED)
    assert not list((tmp_path / "killed").rglob(f"*{SUFFIX}*"))
    tables = [FORMATS["markdown"](table_of(KILLED, tmp_path / name)) for name in ("killed", "whole")]
    assert tables[0] == tables[1]


def test_a_worker_that_dies_is_replaced(tmp_path):
    cells = [Cell("synthetic", "gat", "vanilla", seed) for seed in range(2)]
    done = list(ENGINES["pool"](Suicidal(tmp_path), cells, 1))
    assert sorted(done) == cells
    assert len(list(tmp_path.glob("*.done"))) == 2


class Suicidal:
    """Its process is killed at the first try of each cell."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def __call__(self, cell):
        import os

        tried = self.folder / "tried"
        if cell.seed == 1 and not tried.exists():
            tried.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        (self.folder / f"{cell.name}.done").write_text("")


def test_the_table_has_means_and_the_papers_numbers_beside(done):
    table = table_of(PLAN, done, beside_paper=True)
    assert table.head == ("dataset", "backbone", "method", "seeds", "F1", "F1, 20x20")
    faithful = next(line for line in table.body if line[2] == "fgai")
    values = [metrics(done)[f"synthetic-gat-fgai-{seed}", "none"]["f1"] for seed in (0, 1)]
    assert faithful[3] == "2" and faithful[4].startswith(f"{sum(values) / 2:.3f} ± ") and "(0.5)" in faithful[4]
    assert "(0.25)" in faithful[5] and "Small graphs differ." in FORMATS["markdown"](table)
    assert r"$\pm$" in FORMATS["latex"](table)
    assert FORMATS["csv"](table).splitlines()[0] == 'dataset,backbone,method,seeds,F1,"F1, 20x20"'


def test_what_has_not_run_or_failed_is_a_dash(tmp_path):
    cell = PLAN.cells()[0]
    CellStore(tmp_path).put(cell, [Row(cell.dataset, cell.backbone, cell.method, cell.seed, {}, error="it broke")])
    assert {line[3:] for line in table_of(PLAN, tmp_path).body} == {("0", "-", "-")}


@pytest.mark.parametrize("name", [name for name in plans() if Plan.read(name).paper is not None])
def test_our_plans_have_the_papers_numbers_for_every_row(name):
    plan = Plan.read(name)
    assert plan.title and plan.notes
    for backbone in plan.backbones:
        missing = {"links": {"ln", "at"}, "ablation": {"fgai:paper", "fgai:released"}, "cost": {"pro-gnn"}}
        told = set(plan.methods) - missing.get(name, set())  # in the paper, on these datasets
        assert set(plan.paper[backbone]) == told
        for method in told:
            assert set(plan.paper[backbone][method]) == set(plan.seeds) - {"cora"}  # ours alone


def test_some_numbers_of_the_paper_read_by_eye():
    table1, table2, fidelity = (Plan.read(name).paper for name in ("table1", "table2", "fidelity"))
    assert table1["gat"]["vanilla"]["amazon-photo"] == [6.67e-7, 7.41]
    assert table2["gat"]["fgai"]["coauthor-cs"] == [0.8985, 0.8905]
    assert fidelity["gat"]["vanilla"]["amazon-photo"] == [-1.2821, -0.3848, 0.4061, 1.0594]  # underlined: positive


def test_cells_are_chosen_by_their_fields():
    plan = Plan.read("table2")
    assert len(plan.cells()) == 3 * 4 * (5 + 5 + 3 + 1)
    assert len(plan.cells(seeds=1)) == 48
    assert {cell.seed for cell in plan.cells({"dataset": "amazon-photo", "seed": "0+2"})} == {0, 2}
    with pytest.raises(SettingError, match="no 'data'"):
        plan.cells({"data": "cora"})
    refused = CliRunner().invoke(app, ["bench", "table2", "--only", "amazon-photo"])
    assert refused.exit_code == 2 and "field=value" in refused.stderr


def test_plans_that_are_none_are_refused(tmp_path):
    with pytest.raises(UnknownNameError, match="table2"):
        Plan.read("tabel2")
    (tmp_path / "a.toml").write_text("title = 1 = 2")
    (tmp_path / "b.toml").write_text("title = 'x'")
    for name in ("a.toml", "b.toml"):
        with pytest.raises(DataError, match="not a plan"):
            Plan.read(str(tmp_path / name))


def test_ray_is_asked_for_in_words(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"fgai\[ray\]"):
        list(ENGINES["ray"](print, [], 1))


def test_a_method_in_one_file_appears_in_the_table(tmp_path):
    """In a process of its own: what it registers stays there."""
    examples = Path(__file__).parents[2] / "examples"
    (tmp_path / "mine.toml").write_text(
        'title = "Mine"\nbackbones = ["gat"]\nmethods = ["vanilla", "frozen-features"]\nseeds = { synthetic = 1 }\n'
        'columns = [{ heading = "F1", metric = "f1", attack = "none" }]\n'
    )
    mine, cells = str(tmp_path / "mine.toml"), str(tmp_path / "cells")
    script = (
        "from fgai.bench.plan import Plan\nfrom fgai.bench.run import Settings, run\n"
        "from fgai.bench.tables import FORMATS, table_of\n"
        "if __name__ == '__main__':\n"
        f"    plan = Plan.read({mine!r})\n"
        "    quick = Settings(attacks=(), epochs=2)\n"
        f"    run(plan, {cells!r}, engine='pool', workers=1, settings=quick, modules=['frozen_features'])\n"
        f"    print(FORMATS['markdown'](table_of(plan, {cells!r})))\n"
    )
    (tmp_path / "go.py").write_text(script)
    done = subprocess.run(
        [sys.executable, tmp_path / "go.py"], cwd=examples, capture_output=True, text=True, check=True
    )
    line = next(line for line in done.stdout.splitlines() if "frozen-features" in line)
    assert line.split("|")[4].strip() == "1" and "0." in line


def test_the_commands_run_a_plan_and_show_it(tmp_path):
    (tmp_path / "mine.toml").write_text(
        'title = "Mine"\nbackbones = ["gat"]\nmethods = ["vanilla"]\nseeds = { synthetic = 2 }\n'
        'columns = [{ heading = "F1", metric = "f1", attack = "none" }]\n'
    )
    rows = [Row("synthetic", "gat", "vanilla", 0, {"f1": 0.75}, attack="none")]
    CellStore(tmp_path / "cells").put(Cell("synthetic", "gat", "vanilla", 0), rows)
    plan, cells = str(tmp_path / "mine.toml"), str(tmp_path / "cells")
    ran = CliRunner().invoke(app, ["bench", plan, "--out", cells, "--only", "seed=0"])
    assert ran.exit_code == 0 and "0 cells" in ran.output
    shown = CliRunner().invoke(app, ["table", plan, cells, "--as", "csv"])
    assert shown.output.splitlines()[1] == "synthetic,gat,vanilla,1,0.750"
    wrong = CliRunner().invoke(app, ["table", "tabel2"])
    assert wrong.exit_code != 0 and "table2" in wrong.output


RAY = """
import sys
from fgai.bench.plan import Column, Plan
from fgai.bench.run import Settings, run
plan = Plan("small", "", {"synthetic": 2}, ("gat",), ("vanilla", "ln", "fgai"), (Column("F1", "f1", "none"),))
run(plan, sys.argv[1], engine="ray", workers=2, settings=Settings(attacks=("injection-20x20",), epochs=2))
"""


def alone(*command):
    """A command in a network of its own, which has nothing but the loopback."""
    return ["unshare", "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *map(str, command)]


needs_ray = pytest.mark.skipif(
    find_spec("ray") is None or subprocess.run(alone("true"), capture_output=True).returncode != 0,
    reason="needs Ray (pip install 'fgai[ray]') and a network namespace (unshare -rn)",
)


@needs_ray
@pytest.mark.slow
def test_ray_gives_the_same_rows_bit_for_bit(done, tmp_path):
    subprocess.run(alone(sys.executable, "-c", RAY, tmp_path), check=True, capture_output=True)
    assert metrics(tmp_path) == metrics(done)


DYING = """
import sys
sys.path.insert(0, sys.argv[2])
from test_bench import Suicidal
from fgai.bench.engines import ENGINES
from fgai.bench.plan import Cell
cells = [Cell("synthetic", "gat", "vanilla", seed) for seed in range(3)]
assert sorted(ENGINES["ray"](Suicidal(sys.argv[1]), cells, 2)) == cells
"""


@needs_ray
@pytest.mark.slow
def test_ray_survives_a_worker_that_is_killed(tmp_path):
    here = Path(__file__).parent
    paths = os.pathsep.join(map(str, [here, here.parent, *filter(None, [os.environ.get("PYTHONPATH")])]))
    command = alone("env", f"PYTHONPATH={paths}", sys.executable, "-c", DYING, tmp_path, here)
    subprocess.run(command, check=True, capture_output=True, cwd=here)
    assert len(list(tmp_path.glob("*.done"))) == 3


def test_fgai_starts_from_the_trained_vanilla_model_of_its_seed(tmp_path, monkeypatch):
    started = []

    def fit(self, model, data):
        started.append(model)
        return Vanilla(epochs=1).fit(model, data)

    monkeypatch.setattr(FGAI, "fit", fit)
    finish(Cell("synthetic", "gat", "fgai", 0), CellStore(tmp_path), QUICK)
    vanilla = saved.load(tmp_path / "models" / "synthetic-gat-vanilla-0").model.state_dict()
    assert all(torch.equal(value, vanilla[name]) for name, value in started[0].state_dict().items())


def test_a_defence_is_attacked_through_its_own_cleaning(tmp_path, monkeypatch):
    calls = []

    def recorded(*args, call, **kwargs):
        calls.append(call)
        return row_per_attack(*args, call=call, **kwargs)

    monkeypatch.setattr("fgai.bench.run.row_per_attack", recorded)
    for method in ("vanilla", "gnnguard"):
        finish(Cell("synthetic", "gat", method, 0), CellStore(tmp_path), QUICK)
    assert calls[0] is call_by_signature and calls[1] is not call_by_signature
