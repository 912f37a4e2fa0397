import random

import numpy as np
import pytest
import torch

from fgai.seeding import seeded
from strategies import generators


def draws():
    return random.random(), np.random.rand(), torch.rand(1).item()


@pytest.mark.parametrize("seed", [0, 7, 2**32 + 5])
def test_the_same_seed_gives_the_same_draws_of_all_three_generators(seed):
    with seeded(seed):
        first = draws()
    with seeded(seed):
        assert draws() == first


def test_another_seed_gives_other_draws_of_every_generator():
    with seeded(1):
        one = draws()
    with seeded(2):
        two = draws()
    assert all(a != b for a, b in zip(one, two, strict=True))


def test_the_draws_are_those_of_the_generators_seeded_by_hand():
    with seeded(5):
        python, legacy, torchs = draws()
    assert python == random.Random(5).random()
    assert legacy == np.random.RandomState(5).rand()
    assert torchs == torch.rand(1, generator=torch.Generator().manual_seed(5)).item()


def test_the_global_generators_are_put_back_also_after_an_error():
    before = generators()
    with seeded(3):
        draws()
    assert generators() == before
    with pytest.raises(ZeroDivisionError), seeded(3):
        _ = draws()[0] / 0
    assert generators() == before


def test_an_inner_block_does_not_disturb_the_outer_one():
    with seeded(4):
        plain = [draws(), draws()]
    with seeded(4):
        first = draws()
        with seeded(9):
            draws()
        assert [first, draws()] == plain
