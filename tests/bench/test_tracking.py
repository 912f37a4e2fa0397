import sys

import pytest

from fgai.bench.plan import Cell, Plan
from fgai.bench.run import Settings, run
from fgai.bench.tracking import tracker
from fgai.errors import MissingExtraError

PLAN = Plan("small", "Small", {"synthetic": 1}, ("gat",), ("vanilla",), ())


def test_the_metrics_of_a_cell_are_logged_as_it_ends(tmp_path):
    told = []
    run(PLAN, tmp_path, settings=Settings(attacks=(), epochs=2), track=lambda *what: told.append(what))
    ((name, figures, step),) = told
    assert (name, step) == (Cell("synthetic", "gat", "vanilla", 0).name, 0)
    assert 0 <= figures["none/f1"] <= 1 and all(isinstance(value, float) for value in figures.values())


@pytest.mark.parametrize(("where", "module"), [("mlflow:x.db", "mlflow.tracking"), ("tensorboard:x", "tensorboard")])
def test_a_tracker_that_is_not_installed_is_asked_for_in_words(where, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r"pip install 'fgai\[track\]'"):
        tracker(where)


def tell(where):
    track = tracker(where)
    for step, value in enumerate((0.5, 0.25)):
        track("cora-gat", {"none/f1": value}, step)


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_back_what_was_logged(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tell(f"tensorboard:{tmp_path}")
    reader = events.EventAccumulator(str(tmp_path / "cora-gat")).Reload()
    assert [(event.step, event.value) for event in reader.Scalars("none/f1")] == [(0, 0.5), (1, 0.25)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_back_what_was_logged(tmp_path):
    tracking = pytest.importorskip("mlflow.tracking")
    tell(f"mlflow:{tmp_path / 'runs.db'}")
    client = tracking.MlflowClient(f"sqlite:///{tmp_path / 'runs.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("fgai").experiment_id])
    history = client.get_metric_history(found.info.run_id, "none/f1")
    assert [(metric.step, metric.value) for metric in history] == [(0, 0.5), (1, 0.25)]
