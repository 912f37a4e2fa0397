"""What holds inside every block of ours: layers are of PyG's classes to whoever copies, pickles or trains them."""

import copy
import io
import pickle
from contextlib import contextmanager

import pytest
import torch

import fgai.kernels.pyg
from fgai import FGAI, NodeInjection, Tap, Vanilla, accelerated, backbones, datasets, open_reader
from fgai.datasets.split import split_nodes
from fgai.graph import add_nodes
from fgai.metrics import METRICS
from fgai.modes import eval_mode
from fgai.reading import Reader, training_reader
from fgai.trial import attacked_trial, clean_trial

DATA = split_nodes(datasets.synthetic(120, 700, features=8, classes=3, seed=0), seed=0)
SMALL = NodeInjection(nodes=2, edges=3, steps=2)


@contextmanager
def tapped_and_accelerated(model):
    with accelerated(model), Tap(model).open():
        yield


@contextmanager
def tapped(model):
    with Tap(model).open():
        yield


BLOCKS = {
    "accelerated": accelerated,
    "tap": tapped,
    "tap in accelerated": tapped_and_accelerated,
    "open_reader": open_reader,
    "training_reader": training_reader,
}


@pytest.fixture(autouse=True)
def _always(monkeypatch):
    monkeypatch.setattr(fgai.kernels.pyg, "MIN_EDGES", 0)


@pytest.fixture(params=["gat", "gatv2", "gt"], name="case")
def _case(request):
    data = backbones.BACKBONES[request.param].prepare(DATA)
    return backbones.build(request.param, data), data


def pickled(model):
    return pickle.loads(pickle.dumps(model))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved], ids=lambda f: f.__name__)
def test_copies_made_inside_a_block_are_plain_and_work_outside(case, block, copied):
    model, data = case
    plain = [type(module) for module in model.modules()]
    expected = Reader(model.eval())(data).logits
    with BLOCKS[block](model):
        twin = copied(model)
        inside = [type(module) for module in model.modules()]
    assert inside != plain, "the block does something"
    assert [type(module) for module in twin.modules()] == plain
    assert [type(module) for module in model.modules()] == plain
    for module, other in zip(twin.modules(), model.modules(), strict=True):
        assert sorted(vars(module)) == sorted(vars(other))
        assert not any(value for name, value in vars(module).items() if name.endswith("_hooks"))
    assert all(parameter.requires_grad for parameter in twin.parameters())
    assert torch.equal(Reader(twin.eval())(data).logits, expected)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("method", [Vanilla(epochs=2), FGAI(adversary=SMALL, epochs=2)], ids=["vanilla", "fgai"])
def test_a_fit_inside_a_block_is_the_fit_outside(case, block, method):
    model, data = case
    expected = method.fit(model, data).model
    with BLOCKS[block](model):
        found = method.fit(model, data).model
    assert [type(module) for module in found.modules()] == [type(module) for module in expected.modules()]
    for name, value in expected.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("attacked", [False, True])
def test_metrics_are_the_same_with_and_without_acceleration(name, attacked):
    model = backbones.build("gat", DATA).double()
    data = copy.copy(DATA)
    data.x = data.x.double()
    with eval_mode(model):
        plain = clean_trial(Reader(model), data)
        plain = attacked_trial(SMALL, "cross-entropy", plain, 0) if attacked else plain
        expected = METRICS[name].compute(plain)
    with open_reader(model) as read:
        fast = clean_trial(read, data)
        fast = attacked_trial(SMALL, "cross-entropy", fast, 0) if attacked else fast
        assert METRICS[name].compute(fast) == pytest.approx(expected, abs=1e-9, nan_ok=True)


def test_features_carry_nothing_of_ours():
    x = add_nodes(DATA, torch.zeros(1, 8), torch.tensor([[120], [0]])).x
    assert not vars(x)


def test_a_plain_read_records_no_gradient_and_the_model_keeps_its_own():
    model = backbones.build("gat", DATA)
    with open_reader(model) as read:
        assert not read(DATA).logits.requires_grad
        assert all(parameter.requires_grad for parameter in model.parameters())
        x = torch.zeros(1, 8, requires_grad=True)
        read(add_nodes(DATA, x, torch.tensor([[120], [0]]))).logits.sum().backward()
    assert x.grad is not None and all(parameter.grad is None for parameter in model.parameters())
