"""Copies of a model."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fgai.errors import CallError

Model = TypeVar("Model", bound=nn.Module)


def copy_model(model: Model) -> Model:
    """Return a copy of a model; raise `CallError` if there is no way.

    A tensor that the model computed and stored, such as `self.alpha = alpha` in `forward`, is copied without its
    gradient, which PyTorch does not copy.

    Args:
        model: The model. It is not changed.

    >>> layer = nn.Linear(2, 1)
    >>> layer.last = layer(torch.ones(1, 2))
    >>> copied = copy_model(layer)
    >>> torch.equal(copied.last, layer.last), copied.last.requires_grad, copied.weight is layer.weight
    (True, False, False)
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise CallError(f"{type(model).__name__} is a TorchScript program, without layers; give the original model")
    computed: dict[int, Any] = {
        id(value): value.detach().clone()
        for layer in model.modules()
        for value in _tensors(vars(layer))
        if not value.is_leaf
    }
    try:
        return copy.deepcopy(model, computed)
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise CallError(
            f"{type(model).__name__} cannot be copied: {error}; remove attributes that copy.deepcopy does not copy"
        ) from error


def copy_to_train(model: Model) -> Model:
    """Return a copy of a model that can load the weights of another epoch; raise `CallError` if it cannot.

    >>> from torch_geometric.nn import Linear
    >>> copy_to_train(nn.utils.parametrizations.weight_norm(Linear(2, 1)))
    Traceback (most recent call last):
    fgai.errors.CallError: ParametrizedLinear cannot load its own state_dict, so no epoch of it can be saved. ...
    """
    copied = copy_model(model)
    try:
        copied.load_state_dict(model.state_dict())
    except RuntimeError as error:
        raise CallError(
            f"{type(model).__name__} cannot load its own state_dict, so no epoch of it can be saved. PyG's layers are "
            "so with weights that are computed from others (weight_norm, spectral_norm, pruning); remove that with "
            "torch.nn.utils.parametrize.remove_parametrizations or torch.nn.utils.prune.remove. "
            f"PyTorch says: {error}"
        ) from error
    return copied


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
