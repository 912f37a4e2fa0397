"""Seeding of the global random generators, for the duration of a block."""

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
    """Seed the global random generators inside a block, and restore their states after it.

    Dropout and the samplers of PyG use the global generators of Python, NumPy and PyTorch.

    Args:
        seed: A whole number from 0 to 2**63 - 1.

    >>> with seeded(3):
    ...     first = torch.rand(1)
    >>> with seeded(3):
    ...     assert torch.equal(first, torch.rand(1))
    """
    check_seed(seed)
    python_state, numpy_state, device = random.getstate(), np.random.get_state(), default_device()
    device_state = random_state(device)  # `fork_rng` restores the CPU and CUDA only
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            restore_random_state(device_state, device)
