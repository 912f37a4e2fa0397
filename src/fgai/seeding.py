"""One place where global random generators are seeded: for the length of a block, and put back after it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from fgai.devices import default_device, random_state, restore_random_state
from fgai.settings import check_seed


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Dropout and PyG's samplers draw from global generators; inside this block those start at `seed`.

    >>> with seeded(3):
    ...     first = torch.rand(1)
    >>> with seeded(3):
    ...     assert torch.equal(first, torch.rand(1))
    """
    check_seed(seed)
    python, legacy, device = random.getstate(), np.random.get_state(), default_device()
    own = random_state(device)  # `fork_rng` knows the CPU and CUDA
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)
            restore_random_state(own, device)
