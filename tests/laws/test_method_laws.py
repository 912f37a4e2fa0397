"""What every method keeps to."""

import copy

import pytest
import torch

from fgai import Reader, backbones, datasets
from fgai.adversaries import NodeInjection
from fgai.calling import call_by_signature
from fgai.datasets.split import split_nodes
from fgai.methods import METHODS
from killing import killed_in_epoch
from strategies import generators

SMALL = {"adversary": NodeInjection(nodes=2, edges=3, steps=1, step=0.5)}
DATA = split_nodes(datasets.synthetic(120, 500, features=12, seed=1), seed=1)
TRAINED = METHODS["vanilla"](epochs=15).fit(backbones.build("gat", DATA), DATA).model


def method(name, **settings):
    fields = METHODS[name].__dataclass_fields__
    given = {**SMALL, "epochs": 12, "seed": 3, **settings}
    return METHODS[name](**{key: value for key, value in given.items() if key in fields})


def weights(fit):
    return list(fit.model.state_dict().values())


@pytest.mark.parametrize("name", METHODS)
def test_the_given_model_the_graph_and_the_generators_are_left_as_they_were(name):
    model, data = copy.deepcopy(TRAINED).train(), copy.copy(DATA)
    model.conv1.eval()
    before, modes, state = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()], generators()
    method(name).fit(model, data)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    assert type(model) is type(TRAINED) and all(p.requires_grad and p.grad is None for p in model.parameters())
    assert generators() == state
    assert data.to_dict().keys() == DATA.to_dict().keys()
    assert all(torch.equal(data[key], DATA[key]) for key in ("x", "edge_index", "y"))


@pytest.mark.parametrize("name", [name for name in METHODS if name != "ln"])
def test_the_result_is_of_the_users_class_with_the_users_keys(name):
    fit = method(name, epochs=2).fit(TRAINED, DATA)
    assert type(fit.model) is type(TRAINED)
    assert list(fit.model.state_dict()) == list(TRAINED.state_dict())
    assert not any(module.training for module in fit.model.modules())


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_weights_and_another_others(name):
    one, two, other = (method(name, seed=seed).fit(TRAINED, DATA) for seed in (3, 3, 4))
    assert one.history == two.history
    assert all(torch.equal(a, b) for a, b in zip(weights(one), weights(two), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(one), weights(other), strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(name, tmp_path, monkeypatch):
    file = tmp_path / "runs" / "run.safetensors"
    whole = method(name, epochs=15).fit(TRAINED, DATA)
    with killed_in_epoch(13, monkeypatch):  # the last checkpoint is of the tenth epoch
        method(name, epochs=15).fit(TRAINED, DATA, checkpoint=file)
    assert file.exists()
    again = method(name, epochs=15).fit(TRAINED, DATA, checkpoint=file)
    assert not file.exists()
    assert again.history == whole.history
    assert all(torch.equal(a, b) for a, b in zip(weights(again), weights(whole), strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_history_holds_every_term_of_every_epoch(name):
    fit = method(name).fit(TRAINED, DATA)
    assert [epoch.number for epoch in fit.history] == list(range(12))
    assert all(epoch.terms.keys() == fit.history[0].terms.keys() for epoch in fit.history)
    assert all(torch.isfinite(torch.tensor(list(epoch.terms.values()))).all() for epoch in fit.history)


@pytest.mark.parametrize("name", METHODS)
def test_the_result_can_be_read_and_attacked(name):
    fit = method(name, epochs=2).fit(TRAINED, DATA)
    read = Reader(fit.model)
    clean = read(DATA).detach()
    hit = SMALL["adversary"](read, DATA, lambda now: now.logits.square().sum())
    assert len(hit.logits) == len(clean.logits) + 2


def test_a_model_is_called_as_the_user_says():
    calls = []
    for name in METHODS:
        method(name, epochs=1).fit(
            TRAINED, DATA, call=lambda m, d, name=name: calls.append(name) or call_by_signature(m, d)
        )
    assert set(calls) == set(METHODS)
