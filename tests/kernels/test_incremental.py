"""Functions of a few rows: the values and gradients are those of all rows, and the others are made once."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fgai.cache import TensorCache
from fgai.kernels import Rows, incremental, rows_of
from fgai.kernels.incremental import ROWWISE_OPS

N, AT = 4, torch.tensor([1, 3])  # as many rows as columns, so that one is not mistaken for the other unseen
BESIDE = torch.randn(N, 4)
WITHIN = (lambda f, x: f(x, dim=-1), lambda f, x: f(x, 1), lambda f, x: f(x, dim=0), lambda f, x: f(x))
ALIGNED = [
    lambda f, x: f(x, BESIDE),
    lambda f, x: f(BESIDE, x),
    lambda f, x: f(x, 2.0),
    lambda f, x: f(x, BESIDE[0]),
    lambda f, x: f(x, BESIDE[:1]),
    lambda f, x: f(x, x),
    lambda f, x: f(x, wide(x)),
    lambda f, x: f(wide(x), x),
]
CALLS = {
    functional.linear: [lambda f, x: f(x, BESIDE), lambda f, x: f(x, torch.ones(N, 4), torch.ones(N))],
    functional.layer_norm: [lambda f, x: f(x, (4,))],
    functional.dropout: [lambda f, x: f(x, 0.5, training=False)],
    Tensor.view: [lambda f, x: f(x, -1, 2, 2), lambda f, x: f(x, -1)],
    Tensor.view_as: [lambda f, x: f(x, BESIDE)],
    Tensor.reshape: [lambda f, x: f(x, -1, 2, 2), lambda f, x: f(x, 4, N)],
    Tensor.flatten: [lambda f, x: f(x, 1), lambda f, x: f(x)],
    **dict.fromkeys((Tensor.sum, torch.sum, Tensor.mean, torch.mean), WITHIN),
    **{func: ALIGNED for func, how in ROWWISE_OPS.items() if how.__name__ == "_elementwise"},
}


def rows(value, new, at=AT):
    return Rows(TensorCache(), value, at, new).tensor()


def wide(x):
    """A tensor that depends on x and is other in more rows."""
    at = torch.tensor([0, 1, 3])
    if rows_of(x) is None:  # plainly
        return torch.ones_like(x).index_copy(0, at, 2 * x.detach()[at])
    return rows(torch.ones(N, 4), 2 * x.detach()[at], at)


@pytest.mark.parametrize("func", ROWWISE_OPS, ids=lambda f: getattr(f, "__qualname__", str(f)))
def test_a_few_rows_are_as_good_as_all(func):
    for call in CALLS.get(func, [lambda f, x: f(x)]):
        value, new = torch.randn(N, 4), torch.randn(2, 4, requires_grad=True)
        plain = value.index_copy(0, AT, new)
        expected = call(func, plain)
        (slope,) = torch.autograd.grad(expected.square().sum(), new)
        cache = TensorCache()
        with incremental():
            for _ in range(2):
                found = call(func, Rows(cache, value, AT, new).tensor())
                torch.testing.assert_close(found, expected)
                torch.testing.assert_close(torch.autograd.grad(found.square().sum(), new)[0], slope)


def test_most_functions_keep_the_rows_apart():
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 2)).eval()
    model.requires_grad_(False)
    value, new = torch.randn(N, 4), torch.randn(2, 4)
    with incremental():
        found = model(rows(value, new))
    torch.testing.assert_close(rows_of(found).new, model(new))
    torch.testing.assert_close(rows_of(found).base, model(value))


def test_other_rows_are_made_again_when_a_parameter_changes_and_only_then():
    layer, base, new = nn.Linear(4, 3).requires_grad_(False), torch.randn(N, 4), torch.randn(2, 4)
    cache = TensorCache()
    with incremental():
        first, second = (rows_of(layer(Rows(cache, base, AT, new).tensor())).base for _ in range(2))
        assert first is second
        with torch.no_grad():
            layer.bias.add_(1)
        again = layer(Rows(cache, base, AT, new).tensor())
    torch.testing.assert_close(again, layer(base.index_copy(0, AT, new)))


def test_other_rows_are_made_again_when_what_stands_beside_them_is_another():
    cache, base, new = TensorCache(), torch.randn(N, 4), torch.randn(2, 4)
    with incremental():
        for beside in (torch.ones(N, 4), torch.ones(N, 4), torch.zeros(N, 4)):
            plain = base.index_copy(0, AT, new) + beside
            torch.testing.assert_close(Rows(cache, base, AT, new).tensor() + beside, plain)


def test_what_asks_for_a_gradient_gets_it_from_all_rows():
    layer, value, new = nn.Linear(4, 3), torch.randn(N, 4), torch.randn(2, 4)
    with incremental():
        found = layer(rows(value, new)).square().sum()
    expected = layer(value.index_copy(0, AT, new)).square().sum()
    parameters = list(layer.parameters())
    for ours, theirs in zip(*(torch.autograd.grad(y, parameters) for y in (found, expected)), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_number_made_of_the_rows_moves_with_them():
    new = torch.randn(2, 4, requires_grad=True)
    value = torch.randn(N, 4)
    plain = value.index_copy(0, AT, new)
    (expected,) = torch.autograd.grad((plain - plain.mean()).pow(3).sum(), new)
    with incremental():
        x = rows(value, new)
        (found,) = torch.autograd.grad((x - x.mean()).pow(3).sum(), new)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("act", [functional.relu, functional.elu, functional.leaky_relu])
def test_a_function_in_place_changes_its_argument_and_nothing_else(act):
    cache, base, new = TensorCache(), torch.randn(N, 4), torch.randn(2, 4)
    kept, plain = base.clone(), base.index_copy(0, AT, new)
    with incremental():
        x = Rows(cache, base, AT, new).tensor()
        act(x, inplace=True)
    assert torch.equal(base, kept) and torch.equal(x, act(plain))


def test_what_is_no_plain_tensor_or_no_row_goes_torchs_way():
    value, new = torch.randn(N, 4), torch.randn(2, 4)
    plain, sparse = value.index_copy(0, AT, new), torch.eye(4).to_sparse()
    with incremental():
        assert torch.equal(rows(value, new) + sparse, plain + sparse)
        normal = functional.layer_norm(rows(value, new), plain.shape)
        assert rows(value, new).view(torch.int32).sum(1).dtype == plain.view(torch.int32).sum(1).dtype
        flat = functional.linear(rows(value[:, 0], new[:, 0]), torch.ones(2, N))
    torch.testing.assert_close(normal, functional.layer_norm(plain, plain.shape))
    torch.testing.assert_close(flat, functional.linear(plain[:, 0], torch.ones(2, N)))


def test_what_stands_beside_gets_its_gradient_too():
    beside, x = torch.ones(N, 4, requires_grad=True), rows(torch.zeros(N, 4), torch.ones(2, 4))
    with incremental():
        assert torch.autograd.grad((x + beside).sum(), beside)[0].eq(1).all()


def test_a_tensor_that_was_changed_in_place_is_not_known_any_more():
    x = rows(torch.zeros(N, 4), torch.ones(2, 4))
    assert rows_of(x) is not None
    x[0, 0] = 5.0
    assert rows_of(x) is None
    with incremental():
        assert float((x + 1)[0, 0]) == 6.0


def test_dropout_in_training_drops():
    with incremental():
        x = functional.dropout(rows(torch.ones(N, 400), torch.ones(2, 400)), 0.5, training=True)
    assert rows_of(x) is None
    assert 0.3 < float((x == 0).float().mean()) < 0.7
