"""Checkpoints, perturbations, audits, rows and histories that are not what they claim to be."""

import json
import math
from dataclasses import asdict

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch_geometric.data import Data

from fgai.adversaries import Perturbation
from fgai.auditing import AuditReport, audit
from fgai.bench.figures import figure
from fgai.bench.results import read_costs, read_rows
from fgai.errors import DataError, FGAIError
from fgai.methods import FGAI
from fgai.training import loop as training
from reports import ATTACK
from worlds import community, trained


class Stopped(Exception):
    pass


@pytest.fixture(scope="module", name="run")
def _run(tmp_path_factory):
    """A checkpoint of a run that was stopped."""
    path, save = tmp_path_factory.mktemp("run") / "run.safetensors", training.disk.save

    def stop(*words):
        save(*words)
        raise Stopped

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training.disk, "save", stop)
        with pytest.raises(Stopped):
            FGAI(epochs=12).fit(trained(), community(), checkpoint=path)
    return path


def without(name):
    return lambda tensors, about: tensors.pop(name)


def put(name, value):
    return lambda tensors, about: tensors.__setitem__(name, value)


def say(name, value):
    return lambda tensors, about: about.__setitem__(name, value)


WEIGHT = "conv1.att_src"


@pytest.mark.parametrize(
    "damage",
    [
        without(f"model/{WEIGHT}"),
        without("rank0/random/torch"),
        without("rank0/warm_start0/x"),
        without("optimizer/0/step"),
        put(f"best/{WEIGHT}", torch.ones(3)),
        put(f"model/{WEIGHT}", torch.tensor(math.nan)),
        put("optimizer/99/step", torch.tensor(1.0)),
        put("optimizer/0/step", torch.tensor(0.0)),
        put("rank0/random/torch", torch.zeros(7, dtype=torch.uint8)),
        put("rank0/warm_start0/x", torch.zeros(3, 3)),
        put("rank0/warm_start0/rounds", torch.tensor(-5)),
        say("history", [7]),
        say("history", []),
        say("steps", 0),
        say("chosen", 99),
        say("best", "high"),
        say("settings", None),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused_in_a_sentence(run, tmp_path, damage):
    with safe_open(str(run), "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
        about = json.loads(file.metadata()["about"])
    damage(tensors, about)
    save_file(tensors, tmp_path / "run.safetensors", {"about": json.dumps(about)})
    with pytest.raises(FGAIError, match=r"train from the start|delete that one"):
        FGAI(epochs=12).fit(trained(), community(), checkpoint=tmp_path / "run.safetensors")


EDGES = torch.zeros(2, 1, dtype=torch.long)
OURS = {"fgai": '{"perturbation": 1}'}


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"added": EDGES, "dropped": EDGES}, {"fgai": "[]"}),
        ({"added": EDGES, "dropped": EDGES}, {"fgai": "{"}),
        ({"added": EDGES, "dropped": EDGES.float()}, OURS),
        ({"added": EDGES[0], "dropped": EDGES}, OURS),
        ({"added": EDGES - 1, "dropped": EDGES}, OURS),
        ({"added": EDGES, "dropped": EDGES, "x": torch.ones(3)}, OURS),
        ({"added": EDGES, "dropped": EDGES, "x_delta": torch.tensor([math.nan])}, OURS),
    ],
)
def test_a_file_that_holds_no_perturbation_is_refused(tmp_path, tensors, metadata):
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, tmp_path / "p.safetensors", metadata)
    with pytest.raises(DataError, match=r"p\.safetensors"):
        Perturbation.load(tmp_path / "p.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        Perturbation(x=torch.ones(1, 2)),
        Perturbation(x=torch.ones(1, 3), added=torch.tensor([[5], [0]])),
        Perturbation(dropped=torch.tensor([[0], [4]])),
        Perturbation(x_delta=torch.ones(3, 3)),
    ],
)
def test_a_perturbation_of_another_graph_says_so(change):
    data = Data(x=torch.zeros(4, 3), edge_index=torch.tensor([[0], [1]]))
    with pytest.raises(DataError, match="the graph that it was made for"):
        change.apply(data)


@pytest.fixture(scope="module", name="told")
def _told():
    return json.loads(audit(trained(), community(), ATTACK, seeds=1).json())


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("seeds", 10**30),
        ("seeds", 10**9),
        ("seeds", "1"),
        ("model", "m" * 5_000),
        ("model", None),
        ("names", {"0": 7}),
        ("graph", {}),
        ("adversary", {}),
        ("certified", {}),
        ("attacked", {}),
        ("grades", {"used": None, "faithful": None, "stable": None, "answer": "fine", "line": ""}),
        ("grades", {"used": None, "faithful": None, "stable": None, "answer": "yes", "line": ""}),
        ("curves", {"shares": [], "clean": {}, "attacked": {}}),
        ("moved", [[]]),
        ("views", [{"node": 0}]),
        ("clean", {"f1": "high"}),
    ],
)
def test_an_audit_that_could_not_be_told_is_refused(told, tmp_path, part, value):
    (tmp_path / "a.json").write_text(json.dumps(told | {part: value}))
    with pytest.raises(DataError, match=r"a\.json"):
        AuditReport.load(tmp_path / "a.json")


def test_an_audit_is_read_back_as_it_was(tmp_path):
    found = audit(trained(), community(), ATTACK, seeds=2)
    found.save(tmp_path / "a.json")
    again = AuditReport.load(tmp_path / "a.json")
    assert again.json() == found.json() and again.text() == found.text()
    assert asdict(again).keys() == asdict(found).keys() and again.views == found.views


@pytest.mark.parametrize("content", ["{}", "[7]", '[{"dataset": 1}]', "[" * 9_000, "[{}]", "nul"])
def test_rows_costs_and_histories_that_are_none_are_refused(tmp_path, content):
    path = tmp_path / "histories" / "amazon-photo-gat-fgai-0.json"
    path.parent.mkdir()
    path.write_text(content)
    for reader in (read_rows, read_costs, lambda _: figure("loss-terms", tmp_path)):
        with pytest.raises(DataError, match=path.name):
            reader(path)
