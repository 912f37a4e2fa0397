"""The mode of a model inside a `with` block: evaluation, frozen parameters, statistics as in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode inside a `with` block. Afterwards each module has its previous mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def frozen_params(model: nn.Module) -> Iterator[None]:
    """Set `requires_grad=False` on all parameters inside a `with` block; attacks differentiate their inputs only.

    >>> layer = nn.Linear(1, 1)
    >>> with frozen_params(layer):
    ...     layer.weight.requires_grad
    False
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_()


@contextmanager
def training_statistics(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Let modules compute their statistics from each call, as in training, inside a `with` block.

    Afterwards their buffers and modes are as before.
    """
    modes = [module.training for module in modules]
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers(recurse=False)]
    for module in modules:
        module.training = True
    try:
        yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
