"""The mode of a model inside a `with` block: evaluation, frozen parameters, statistics as in training."""

from __future__ import annotations

from collections.abc import Iterator
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


def updating_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers in training mode that have buffers, such as batch norms with their statistics."""
    return [module for module in model.modules() if module.training and module._buffers]


@contextmanager
def statistics_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode inside a `with` block, except `updating_layers`.

    These compute their statistics from each call, as in training. Afterwards their buffers, and the mode of each
    module, are as before.
    """
    updating = updating_layers(model)
    buffers = [(buffer, buffer.clone()) for module in updating for buffer in module.buffers(recurse=False)]
    with eval_mode(model):
        for module in updating:
            module.training = True
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
