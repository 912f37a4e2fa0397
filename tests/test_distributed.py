import json
import os

import pytest

import together
from fgai.backbones import build
from fgai.distributed import launch
from fgai.errors import RankError
from fgai.large import audit_batches, full_neighbour_loader


@pytest.fixture(autouse=True)
def found_by_name(monkeypatch):
    """Ranks import this folder's `together`."""
    here = os.path.dirname(__file__)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))


def said(folder):
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def alike(one, two, tolerance):
    for mine, theirs in zip(one["terms"], two["terms"], strict=True):
        assert mine == pytest.approx(theirs, abs=tolerance)
    assert one["weights"] == pytest.approx(two["weights"], abs=tolerance)


def test_two_ranks_learn_what_one_learns_from_the_same_batches(tmp_path):
    launch(together.fit_here, str(tmp_path), ranks=2)
    first, second = said(tmp_path)
    assert first == second
    alike(first, together.told(together.fitted(slots=2)), 1e-4)
    alone = together.told(together.fitted())
    assert alone["weights"] != pytest.approx(first["weights"], abs=1e-4), "a step of one batch is another step"


def test_a_rank_that_is_killed_is_started_again_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setenv("FGAI_TEST_MARK", str(tmp_path / "killed"))
    launch(together.fit_and_die, str(tmp_path), ranks=2)
    assert (tmp_path / "killed").exists() and not (tmp_path / "run").exists()
    first, second = said(tmp_path)
    assert first == second
    alike(first, together.told(together.fitted(slots=2)), 1e-4)


def test_metrics_sum_over_ranks(tmp_path):
    launch(together.audit_here, str(tmp_path), ranks=2)
    first, second = said(tmp_path)
    alone = audit_batches(
        build("gat", together.DATA), full_neighbour_loader(together.DATA, 2, batch=64), together.ATTACK
    )
    assert first == second == pytest.approx(dict(alone.clean), abs=1e-6)


def test_what_a_rank_refuses_is_said_in_a_sentence_without_its_traceback(capfd):
    with pytest.raises(RankError) as found:
        launch(together.refuse, ranks=1, restarts=0)
    assert str(found.value) == "rank 0 crashed 1 times, the last time with: DataError: the disk is full; make room"
    assert "Traceback" not in capfd.readouterr().err
