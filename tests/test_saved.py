import hashlib
import json
import math
import resource
from pathlib import Path

import pytest
import torch

from fgai import saved
from fgai.backbones import BACKBONES, build
from fgai.calling import call_by_signature
from fgai.errors import DataError
from worlds import asked

WEIGHTS, MANIFEST = "weights.safetensors", "manifest.json"


def keep(folder, graph, name="gat", seed=1):
    model = build(name, graph, seed=seed)
    saved.save(folder, model, backbone=name, features=16, classes=4, seed=seed, metrics={"f1": 0.5})
    return model


def rewrite(folder, **changed):
    manifest = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(manifest | changed))


@pytest.mark.parametrize("name", BACKBONES)
def test_a_saved_model_says_the_same_when_it_is_read_back(name, community, tmp_path):
    graph = BACKBONES[name].prepare(asked(community, name))
    model = keep(tmp_path / "deep" / "er", graph, name).eval()
    back = saved.load(tmp_path / "deep" / "er")
    assert type(back.model) is type(model)
    assert not any(module.training for module in back.model.modules())
    assert torch.equal(call_by_signature(back.model, graph), call_by_signature(model, graph))


def test_the_folder_holds_the_weights_and_the_manifest_and_no_code(community, tmp_path):
    model = keep(tmp_path, community)
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST, WEIGHTS]
    content = (tmp_path / WEIGHTS).read_bytes()
    length = int.from_bytes(content[:8], "little")  # the whole format: a length, JSON, numbers
    header = json.loads(content[8 : 8 + length])
    state = model.state_dict()
    assert header.keys() - {"__metadata__"} == state.keys()
    assert len(content) == 8 + length + sum(tensor.numel() * 4 for tensor in state.values())


def test_the_manifest_says_how_the_model_was_made(community, tmp_path):
    keep(tmp_path, community)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert saved.load(tmp_path).manifest == manifest
    told = {"format": 1, "backbone": "gat", "features": 16, "classes": 4, "seed": 1, "metrics": {"f1": 0.5}}
    assert told.items() <= manifest.items()
    assert manifest["weights_sha256"] == hashlib.sha256((tmp_path / WEIGHTS).read_bytes()).hexdigest()
    assert manifest["versions"]["torch"] == torch.__version__


def test_a_figure_that_is_no_number_does_not_lose_the_model(community, tmp_path):
    model = build("gat", community)
    saved.save(tmp_path, model, backbone="gat", features=16, classes=4, metrics={"f1": math.nan})
    assert saved.load(tmp_path).manifest["metrics"] == {"f1": None}


def test_a_second_model_takes_the_place_of_the_first(community, tmp_path):
    keep(tmp_path, community, seed=1)
    second = keep(tmp_path, community, seed=2).eval()
    assert torch.equal(call_by_signature(saved.load(tmp_path).model, community), call_by_signature(second, community))


@pytest.mark.parametrize("place", [-1, 9])
def test_weights_with_one_changed_byte_are_refused(community, tmp_path, place):
    keep(tmp_path, community)
    content = bytearray((tmp_path / WEIGHTS).read_bytes())
    content[place] ^= 1
    (tmp_path / WEIGHTS).write_bytes(content)
    with pytest.raises(DataError, match="not the ones its manifest describes"):
        saved.load(tmp_path)


@pytest.mark.parametrize("gone", [WEIGHTS, MANIFEST])
def test_a_folder_without_one_of_the_files_holds_no_model(community, tmp_path, gone):
    keep(tmp_path, community)
    (tmp_path / gone).unlink()
    with pytest.raises(DataError, match="holds no saved model"):
        saved.load(tmp_path)


def test_a_manifest_that_is_not_json_and_a_file_for_a_folder_are_refused(community, tmp_path):
    keep(tmp_path, community)
    (tmp_path / MANIFEST).write_text("{")
    for folder in (tmp_path, tmp_path / WEIGHTS):
        with pytest.raises(DataError, match="holds no saved model"):
            saved.load(folder)


def test_another_format_is_refused_by_its_number(community, tmp_path):
    keep(tmp_path, community)
    rewrite(tmp_path, format=2)
    with pytest.raises(DataError, match="has format 2, and this fgai reads 1"):
        saved.load(tmp_path)


@pytest.mark.parametrize("content", ["[]", '{"format": 1}'])
def test_a_manifest_without_its_entries_is_refused_in_words(community, tmp_path, content):
    keep(tmp_path, community)
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(DataError):
        saved.load(tmp_path)


def test_weights_that_do_not_fit_the_manifests_shape_are_refused_in_words(community, tmp_path):
    keep(tmp_path, community)
    rewrite(tmp_path, classes=5)
    with pytest.raises(DataError):
        saved.load(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"features": 30_000_000},
        {"features": 10**18},
        {"features": -1},
        {"features": 1.5},
        {"classes": "4"},
        {"backbone": {}},
        {"backbone": "nobody"},
        {"seed": -1},
        {"seed": "0"},
        {"metrics": {"f1": "high"}},
        {"method": {"name": 7}},
        {"history": [{"number": 0}]},
        {"history": [{"number": 0, "terms": {"a": 1}, "val_f1": None}, {"number": 1, "terms": {}, "val_f1": None}]},
        {"weights_sha256": "../../x"},
    ],
    ids=str,
)
def test_a_manifest_that_claims_what_is_not_there_is_refused(community, tmp_path, changed):
    keep(tmp_path, community)
    rewrite(tmp_path, **changed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=str(tmp_path)):
        saved.load(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_weights_that_no_training_leads_to_are_refused(community, tmp_path, value):
    model = build("gat", community)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = value
    saved.save(tmp_path, model, backbone="gat", features=16, classes=4)
    with pytest.raises(DataError, match=r"not finite|above"):
        saved.load(tmp_path)


def test_weights_of_another_shape_leave_a_users_model_as_it_was(community, tmp_path):
    keep(tmp_path, community)
    model = BACKBONES["gat"](17, 4)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises(DataError, match="does not fit GAT"):
        saved.load_weights(model, tmp_path / WEIGHTS)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


@pytest.mark.parametrize("step", ["write_json", "replace"])
def test_a_model_that_is_killed_while_it_is_replaced_is_the_old_or_the_new_one(community, tmp_path, monkeypatch, step):
    old = keep(tmp_path, community, seed=1).state_dict()

    def killed(*_):
        raise KeyboardInterrupt

    replace = Path.replace
    with monkeypatch.context() as patched:
        if step == "write_json":
            patched.setattr(saved, "write_json", killed)
        else:
            patched.setattr(Path, "replace", lambda a, b: killed() if b.name == WEIGHTS else replace(a, b))
        with pytest.raises(KeyboardInterrupt):
            keep(tmp_path, community, seed=2)
    new = build("gat", community, seed=2).state_dict()
    wanted = old if step == "write_json" else new
    found = saved.load(tmp_path)
    assert all(torch.equal(weight, wanted[name]) for name, weight in found.model.state_dict().items())
    assert found.manifest["seed"] == (1 if step == "write_json" else 2)
    keep(tmp_path, community, seed=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [MANIFEST, WEIGHTS]
    assert saved.load(tmp_path).manifest["seed"] == 3
