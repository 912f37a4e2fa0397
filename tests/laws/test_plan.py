"""The cost model of docs/scale.md: its formulas worked by hand, and its prediction beside the run that came after."""

import importlib
from pathlib import Path

import pytest

from fgai.bench.results import read_costs

ROOT = Path(__file__).parents[2]


@pytest.fixture
def model(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("cost_model")


def test_an_epoch_worked_by_hand(model):
    graph = model.Graph(nodes=1_024 * 64 * 10, edges=10**9, features=128, sampled_nodes=100, sampled_edges=99)
    cluster = model.Cluster(machines=2, ranks=32, memory=32e9, reads=1e6, hop=1e-4, network=1e9)
    one = model.epoch(dict(zip(model.TERMS, (0.5, 1e-6, 0.0, 0.0), strict=True)), graph, cluster)
    assert one.steps == 10 and one.compute == pytest.approx(0.5 + 0.1024)
    assert one.disk == pytest.approx(100 * 1_024 * 32 / 1e6), "the ranks use up the memory, so every row is a page"
    assert one.ring == pytest.approx(126 * (1e-4 + model.MODEL_BYTES / 64 / 1e9))
    assert one.tree == pytest.approx(2 * (1e-4 + model.MODEL_BYTES / 1e9))
    assert one.hours == pytest.approx(10 * (one.disk + one.tree) / 3600) and one.waiting_hours > one.hours
    assert graph.store_bytes == 655_360 * (512 + 8) + 4 * 10**9
    assert model.exact_hours(3.6e-6, graph, cluster) == pytest.approx(2e9 * 3.6e-6 / 64 / 3600)
    large = model.Cluster(machines=2, memory=32e9 + graph.store_bytes / 4)
    assert model.miss_rate(graph, large) == pytest.approx(0.75)


def test_the_prediction_is_within_a_quarter_of_the_largest_run(model):
    rows, nodes = model.known(), model.BATCH * model.known()["nodes sampled for a seed node", model.LARGE]
    edges = model.BATCH * rows["edges sampled for a seed node", model.LARGE]
    predicted = model.step_seconds(model.coefficients(), nodes, edges, model.FEATURES)
    assert predicted == pytest.approx(rows[model.PREDICTED, model.LARGE], rel=0.01), "it is the one that was recorded"
    assert predicted == pytest.approx(rows[model.MEASURED, model.LARGE], rel=0.25)


def test_the_one_step_model_is_within_a_quarter_of_its_largest_run():
    """results/scale.json: a step and a sampled node have a cost, fitted up to 10^6 nodes."""
    rows = {(cost.what, cost.dataset): cost.value for cost in read_costs(ROOT / "results/scale.json")}
    step, node, edge = (
        rows[f"model: seconds, us a {what}", "generated"] for what in ("step", "sampled node", "sampled edge")
    )
    sampled = [rows[f"{what} sampled for a seed node", "generated, 10^7 nodes"] for what in ("nodes", "edges")]
    predicted = step / 1_024 + node * sampled[0] + edge * sampled[1]
    assert predicted == pytest.approx(rows["FGAI, CPU us a seed node", "generated, 10^7 nodes"], rel=0.25)
