import copy
import pickle

import pytest
import torch
from torch import nn

import fgai.kernels.pyg
from fgai import NodeInjection, backbones, datasets, open_reader
from fgai.adversaries import gains
from fgai.cache import TensorCache, TensorNotes
from fgai.kernels import incremental


class Counting:
    def __init__(self):
        self.made = 0

    def __call__(self):
        self.made += 1
        return torch.full((1,), float(self.made))


def test_a_result_is_found_by_the_memory_of_its_tensors():
    cache, make, x = TensorCache(), Counting(), torch.arange(6.0)
    for same in (x, x.detach(), x[:], x.view(6)):
        cache.get("f", [same], make)
    assert make.made == 1
    for other in (x[1:], x.view(2, 3), x.view(torch.int32), x.clone()):
        cache.get("f", [other], make)
    cache.get("g", [x], make)
    assert make.made == 6


def test_a_change_in_place_replaces_the_result():
    cache, make, x = TensorCache(), Counting(), torch.zeros(3)
    for _ in range(5):
        x += 1
        cache.get("f", [x], make)
    assert make.made == 5 and len(cache) == 1


def test_an_entry_goes_with_the_last_tensor_that_holds_the_memory():
    cache, make, x, y = TensorCache(), Counting(), torch.zeros(3), torch.zeros(3)
    view = x[1:]
    cache.get("f", [x, y], make)
    del x
    assert len(cache) == 1
    del view
    assert len(cache) == 0


def test_memory_that_is_used_again_is_not_mistaken_for_the_old():
    cache = TensorCache()
    for number in range(50):
        x = torch.full((1000,), float(number))
        assert float(cache.get("mean", [x], x.mean)) == number


def test_sparse_matrices_are_known_by_their_pattern_and_values():
    cache, make, x = TensorCache(), Counting(), torch.eye(3).to_sparse().coalesce()
    cache.get("f", [x], make)
    cache.get("f", [x.detach()], make)
    assert make.made == 1
    cache.get("f", [2 * x], make)
    assert make.made == 2


def test_tensors_may_be_compared_by_value():
    cache, make, x = TensorCache(), Counting(), torch.zeros(3)
    for other in (torch.ones(2), torch.ones(2), torch.zeros(2), torch.zeros(2)):
        cache.get("f", [x], make, equal=[other])
    assert make.made == 2


def test_nothing_that_needs_a_gradient_is_kept():
    cache, make, x = TensorCache(), Counting(), torch.zeros(3, requires_grad=True)
    assert cache.get("f", [x], lambda: 2 * x).requires_grad
    assert len(cache) == 0
    with torch.no_grad():
        cache.get("f", [x], make)
    assert len(cache) == 1


def test_a_tensor_without_memory_is_not_cached():
    cache, make, x = TensorCache(), Counting(), torch.eye(2).to_sparse_csr()
    assert [float(cache.get("f", [x], make)) for _ in range(2)] == [1.0, 2.0]


def test_the_least_recently_used_is_evicted():
    cache, make = TensorCache(size=2), Counting()
    a, b, c = (torch.zeros(1) for _ in range(3))
    for x in (a, b, a, c, a):
        cache.get("f", [x], make)
    assert make.made == 3
    cache.get("f", [b], make)
    assert make.made == 4


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_of_a_cache_are_empty(copied):
    cache, x = TensorCache(size=3), torch.zeros(1)
    cache.get("f", [x], Counting())
    assert len(copied(cache)) == 0 and len(cache) == 1


def test_notes_are_of_one_object_until_it_is_changed():
    notes, x = TensorNotes(), torch.zeros(2)
    notes.set(x, "noted")
    assert notes.get(x) == "noted"
    assert notes.get(x.view(2)) is None and notes.get(copy.deepcopy(x)) is None and notes.get(3) is None
    x += 1
    assert notes.get(x) is None
    del x
    assert not notes._notes


@pytest.mark.parametrize("name", ["gat", "gatv2", "gt"])
def test_graphs_that_are_gone_leave_nothing_in_a_block(name, monkeypatch):
    """Ten attacks in one block, as in an audit: what is kept does not grow with them."""
    monkeypatch.setattr(fgai.kernels.pyg, "MIN_EDGES", 0)
    caches, plain = [], TensorCache.__init__
    monkeypatch.setattr(TensorCache, "__init__", lambda self, *args, **how: caches.append(self) or plain(self, **how))
    data = backbones.BACKBONES[name].prepare(datasets.synthetic(nodes=100, edges=600))
    model, sizes = backbones.build(name, data), []
    with open_reader(model) as read:
        gain = gains.kl(read(data).detach())
        for seed in range(4):
            NodeInjection(nodes=2, edges=3, steps=2, seed=seed)(read, data, gain)
            sizes.append(len(caches[0]))
    assert sizes[0] > 0 and sizes[-1] == sizes[0]
    assert len(caches[0]) == 0, "a block that has ended keeps nothing"


def test_two_layers_of_the_same_shape_are_not_mistaken_for_each_other():
    norms = [nn.LayerNorm(3).requires_grad_(False) for _ in range(2)]
    beside = [torch.zeros(3), torch.ones(3)]
    base, new, at = torch.randn(4, 3), torch.randn(1, 3), torch.tensor([2])
    rows = fgai.kernels.Rows(TensorCache(), base, at, new).tensor()
    plain = base.index_copy(0, at, new)
    for first, second in ((norms[0].weight, beside[0]), (beside[1], norms[1].bias)):
        with incremental():
            found = nn.functional.layer_norm(rows, (3,), first, second)
        torch.testing.assert_close(found, nn.functional.layer_norm(plain, (3,), first, second))
