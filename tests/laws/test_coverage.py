"""Every attention layer and model of PyG is in the table of docs/coverage.md, which is made by running."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

ROOT = Path(__file__).parents[2]
TABLE = json.loads((ROOT / "results/coverage.json").read_text())
QUICK = ("GPSConv (multihead, GINConv inside)", "SAGPooling (between GATConvs)", "DenseGATConv")


@pytest.fixture
def coverage(monkeypatch) -> Any:
    """The script, under a name that no package has."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("coverage_table", ROOT / "benchmarks/coverage.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_class_of_pyg_that_may_attend_is_in_the_table_or_left_out_with_a_reason(coverage):
    classes = {case.covers for case in coverage.CASES}
    exported = {name for name, public in coverage.attending().items() if public}
    assert not exported - classes - set(coverage.OTHERS), "add a case to benchmarks/covered.py, or a reason to OTHERS"
    assert not classes & {name for name in coverage.OTHERS if name not in ("TopKPooling", "MemPooling")}


def test_a_new_attention_layer_is_recognised(coverage):
    class New(nn.Module):
        """Softmax in a docstring alone does not count."""

        def forward(self, x):  # nor attention in a comment
            return x

    class Attends(New):
        def forward(self, x):
            return x.softmax(-1)

    assert not coverage._has_words(coverage._names(New)) and coverage._has_words(coverage._names(Attends))


def test_the_table_has_no_raw_error_and_nothing_is_silently_partial(coverage):
    rows = TABLE["rows"]
    assert [row["name"] for row in rows] == [case.name for case in coverage.CASES]
    outcomes = {row[column] for row in rows for column in coverage.COLUMNS}
    assert outcomes == {coverage.FINE, coverage.REFUSES}
    assert all(row[f"{column}_note"] for row in rows for column in coverage.COLUMNS if row[column] == coverage.REFUSES)
    assert len(coverage.complete(rows)) >= 25


def same(coverage, case):
    row = next(row for row in TABLE["rows"] if row["name"] == case.name)
    assert coverage.cover(case) == row, f"run python benchmarks/coverage.py: {case.name}"


@pytest.mark.parametrize("name", QUICK)
def test_a_row_is_what_running_gives(coverage, name):
    same(coverage, next(case for case in coverage.CASES if case.name == name))


@pytest.mark.slow
def test_the_whole_table_is_what_running_gives(coverage):
    for case in coverage.CASES:
        same(coverage, case)
