import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import together
from fgai import certify, distributed, read
from fgai.backbones import build
from fgai.errors import MissingExtraError, RankError, SettingError, UnknownNameError
from fgai.large import audit_batches, full_neighbour_loader
from fgai.launchers import launch


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
    fits = {"nodes": together.fitted, "graphs": together.graphs_fitted, "typed": together.typed_fitted}
    for items, fit in fits.items():
        alike(first[items], together.told(fit(slots=2)), 1e-4)
        alone = together.told(fit())
        assert alone["weights"] != pytest.approx(first[items]["weights"], abs=1e-4), "a step of one batch is another"


def test_a_rank_that_is_killed_is_started_again_and_nothing_is_lost(tmp_path, monkeypatch):
    monkeypatch.setenv("FGAI_TEST_MARK", str(tmp_path / "killed"))
    launch(together.fit_and_die, str(tmp_path), ranks=2)
    assert (tmp_path / "killed").exists() and not (tmp_path / "run").exists()
    first, second = said(tmp_path)
    assert first == second
    alike(first, together.told(together.fitted(slots=2)), 1e-4)


def compare_with_one_process(first, second):
    """What two ranks said in `audit_here` is what one process computes."""
    alone = audit_batches(
        build("gat", together.DATA), full_neighbour_loader(together.DATA, 2, batch=64), together.ATTACK
    )
    assert first["clean"] == second["clean"] == pytest.approx(dict(alone.clean), abs=1e-6)
    assert sorted(first["nodes"] + second["nodes"]) == list(range(400)), "each node is read by one rank"
    logits = read(build("gat", together.DATA), together.DATA).logits
    for said_by in (first, second):
        assert torch.allclose(logits[said_by["nodes"]], torch.tensor(said_by["logits"]), atol=1e-5)
    assert first["radii"] == second["radii"], "each has the certificates of both"
    whole = certify(build("gat", together.DATA), together.DATA, k=3, steps=1).certified
    torch.testing.assert_close(torch.tensor(first["radii"], dtype=whole.dtype), whole, atol=1e-5, rtol=0)


def test_metrics_and_readings_of_the_ranks_are_those_of_one(tmp_path):
    launch(together.audit_here, str(tmp_path), ranks=2)
    compare_with_one_process(*said(tmp_path))


def test_what_a_rank_refuses_is_said_in_a_sentence_without_its_traceback(capfd):
    with pytest.raises(RankError) as found:
        launch(together.refuse, ranks=2, restarts=0)
    said = str(found.value).partition(" ")[2][2:]
    assert said == "crashed 1 times, the last time with: DataError: the disk is full; make room"
    assert "Traceback" not in capfd.readouterr().err


def test_an_engine_that_cannot_run_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fgai\[ray\]'"):
        launch(print, ranks=2, engine="ray")
    with pytest.raises(UnknownNameError, match="Registered: local, torchrun, ray"):
        launch(print, ranks=2, engine="spark")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(SettingError, match="torchrun --nproc-per-node 2"):
        launch(print, ranks=2, engine="torchrun")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(SettingError, match="torchrun started 4 processes"):
        launch(print, ranks=2, engine="torchrun")


def test_a_process_of_torchrun_joins_the_group_and_leaves_it(monkeypatch):
    described = {"WORLD_SIZE": 1, "RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
    for name, value in described.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    inside = []

    def job():
        inside.append(torch.distributed.is_initialized())
        return lambda: [*inside, torch.distributed.is_initialized()]

    assert launch(job, ranks=1, engine="torchrun") == [True, False]
    assert distributed.world_size() == 1


def alone(*command):
    """A command in a network of its own, which has nothing but the loopback."""
    return ["unshare", "-rn", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *map(str, command)]


def by_ray(job, folder):
    """Run a job of `together` on two workers of Ray, and return what they said."""
    if find_spec("ray") is None or subprocess.run(alone("true"), capture_output=True).returncode:
        pytest.skip("needs Ray (pip install 'fgai[ray]') and a network namespace (unshare -rn)")
    code = f"import together; from fgai.launchers import launch; launch(together.{job}, {str(folder)!r}, ranks=2, "
    command = alone(sys.executable, "-c", f"{code}engine='ray')")
    subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parent)
    return said(folder)


@pytest.mark.slow
@pytest.mark.parametrize("job", ["fit_here", "fit_and_die"])
def test_workers_of_ray_learn_what_ranks_learn_and_a_killed_one_starts_again(tmp_path, monkeypatch, job):
    monkeypatch.setenv("FGAI_TEST_MARK", str(tmp_path / "killed"))
    first, second = by_ray(job, tmp_path)
    assert (tmp_path / "killed").exists() == (job == "fit_and_die") and not (tmp_path / "run").exists()
    assert first == second
    alike(first.get("nodes", first), together.told(together.fitted(slots=2)), 1e-4)


@pytest.mark.slow
def test_workers_of_ray_audit_certify_and_read_what_one_process_does(tmp_path):
    compare_with_one_process(*by_ray("audit_here", tmp_path))
