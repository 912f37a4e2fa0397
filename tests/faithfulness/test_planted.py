"""Attention whose faithfulness is planted is graded as often as a power calculation says."""

import importlib
import json
from pathlib import Path

import pytest
from scipy import stats

from fgai.faithfulness import measure_faithfulness

ROOT = Path(__file__).parents[2]


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("planted")


@pytest.mark.parametrize("kind", ["true", "reversed", "random"])
def test_the_effect_of_the_power_calculation_is_the_measured_one(planted, kind):
    """The sums of the evidence, node by node, against copies in one forward pass of a model."""
    own = planted.effect(kind, nodes=300, seed=7)
    found = measure_faithfulness(planted.Planted(), planted.random_graph(300, kind, 7), "last", nodes=300)
    assert round(own.tested * 300) == found.nodes
    assert abs(own.covariance[1, 1] ** 0.5 - found.against_least.deviation) < 1e-5
    if kind != "random":  # there the calculation uses the mean of all graphs, 0
        assert abs(own.mean[1] - found.against_least.mean) < 1e-5
        assert abs(own.mean[0] - found.necessity.mean) < 4 * found.necessity.deviation / found.nodes**0.5


@pytest.mark.parametrize(("nodes", "kind"), [(50, "true"), (50, "reversed"), (200, "true"), (50, "uniform")])
def test_evidence_is_missing_as_often_as_the_power_calculation_says(planted, nodes, kind):
    draws = 40
    row, expected = planted.rates(nodes, kind, draws), planted.expected(nodes, kind)
    assert row["wrong"] == 0
    missing = round(row["unknown"] * draws)
    assert missing == draws if kind == "uniform" else stats.binomtest(missing, draws, expected["unknown"]).pvalue > 1e-3


def test_too_few_nodes_are_no_evidence(planted):
    assert planted.expected(15, "true")["unknown"] == 1 == planted.rates(15, "true", 5)["unknown"]


def test_at_most_2_percent_of_the_committed_grades_are_wrong(planted):
    rows = json.loads((ROOT / "results/planted.json").read_text())
    assert {(row["nodes"], row["planted"]) for row in rows} == {(n, k) for n in planted.SIZES for k in planted.KINDS}
    for row in rows:
        assert row["draws"] >= 1000 and row["wrong"] <= 0.02
        assert abs(row["unknown"] - row["expected_unknown"]) < 0.1
        if row["planted"] == "uniform":
            assert row["unknown"] == 1
