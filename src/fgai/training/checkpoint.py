"""Training runs on disk, so that a killed run can resume: safetensors and JSON, no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from fgai.errors import DataError
from fgai.files import atomic_write
from fgai.readers import parse_json, read_tensors
from fgai.records import record

REMEDY = "give another file for the checkpoint, or delete that one and train from the start"
Groups = dict[str, dict[str, Tensor]]


@dataclass(frozen=True)
class About:
    """The metadata of a checkpoint."""

    settings: Mapping[str, Any]
    best: tuple[float, float]
    best_epoch: int
    steps: int
    history: tuple[Any, ...]


def save(path: Path, tensors: Mapping[str, Mapping[str, Tensor]], about: Mapping[str, Any]) -> None:
    """Write groups of named tensors and their metadata to `path`, atomically."""
    named = {f"{group}/{name}": tensor for group, part in tensors.items() for name, tensor in part.items()}
    flat = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in named.items()}  # some may share memory
    with atomic_write(path) as temporary:
        save_file(flat, str(temporary), {"about": json.dumps(dict(about))})


def load(path: Path) -> tuple[Groups, About]:
    """Return the groups of tensors and the metadata that `save` wrote."""
    groups: Groups = {}
    tensors, metadata = read_tensors(path, REMEDY)
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = tensor
    raw = parse_json(metadata.get("about", "{}"), path, REMEDY, infinite=True)
    return groups, record(About, raw, path, REMEDY)


def check(path: Path, tensors: Groups, model: nn.Module, optimizer: Optimizer) -> None:
    """Raise `DataError` if the weights or Adam's moments in a checkpoint do not have the shapes of this model."""
    state = model.state_dict()
    for group in ("model", "best"):
        _check_shapes(path, group, state, tensors.get(group, {}))
    moments = tensors.get("optimizer", {})
    parameters = [parameter for part in optimizer.param_groups for parameter in part["params"]]
    numbers = sorted({int(key.partition("/")[0]) for key in moments if key.partition("/")[0].isdecimal()})
    expected: dict[str, Tensor] = {}
    for number in (number for number in numbers if number < len(parameters)):
        like = {"step": torch.tensor(0.0), "exp_avg": parameters[number], "exp_avg_sq": parameters[number]}
        expected |= {f"{number}/{name}": value for name, value in like.items()}
    _check_shapes(path, "optimizer", expected, moments)
    if any(bool((value < key.endswith("step")).any()) for key, value in moments.items() if not key.endswith("exp_avg")):
        raise DataError(f"{path} holds negative steps or second moments of Adam; {REMEDY}")


def _check_shapes(path: Path, group: str, expected: Mapping[str, Tensor], actual: Mapping[str, Tensor]) -> None:
    def shapes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}

    ours, theirs = shapes(expected), shapes(actual)
    if other := sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)):
        raise DataError(
            f"{path} holds a run of another model: `{group}/{other[0][:100]}` is {theirs.get(other[0], 'missing')}, "
            f"but this run has {ours.get(other[0], 'none')}; {REMEDY}"
        )


def check_random(path: Path, state: Tensor | None) -> None:
    """Raise `DataError` if `state` is not a state of torch's random number generator."""
    try:
        torch.Generator().set_state(torch.empty(0) if state is None else state)
    except (RuntimeError, TypeError) as error:
        raise DataError(f"{path} holds no state of the random number generator ({error}); {REMEDY}") from error


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimizer with one dict of tensors per parameter, such as Adam."""
    state = optimizer.state_dict()["state"]
    return {f"{number}/{name}": value for number, part in state.items() for name, value in part.items()}


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load the tensors that `optimizer_tensors` returned."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
