"""A training run on disk, so that one that was killed goes on where it was: safetensors and JSON, no pickle."""

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
    """What a checkpoint says of its run beside the tensors."""

    settings: Mapping[str, Any]
    best: tuple[float, float]
    best_epoch: int
    history: tuple[Any, ...]


def save(path: Path, tensors: Mapping[str, Mapping[str, Tensor]], about: Mapping[str, Any]) -> None:
    """Write groups of named tensors and what is said about them; the file is there whole or not at all."""
    named = {f"{group}/{name}": tensor for group, part in tensors.items() for name, tensor in part.items()}
    flat = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in named.items()}  # some may share memory
    with atomic_write(path) as half:
        save_file(flat, str(half), {"about": json.dumps(dict(about))})


def load(path: Path) -> tuple[Groups, About]:
    """What `save` wrote."""
    groups: Groups = {}
    tensors, metadata = read_tensors(path, REMEDY)
    for key, tensor in tensors.items():
        group, _, name = key.partition("/")
        groups.setdefault(group, {})[name] = tensor
    raw = parse_json(metadata.get("about", "{}"), path, REMEDY, infinite=True)
    return groups, record(About, raw, path, REMEDY)


def check(path: Path, tensors: Groups, model: nn.Module, optimizer: Optimizer) -> None:
    """Refuse a checkpoint whose weights, or what Adam knows of them, are not those of this model."""
    state = model.state_dict()
    for group in ("model", "kept"):
        _same(path, group, state, tensors.get(group, {}))
    known = tensors.get("optimizer", {})
    every = [parameter for part in optimizer.param_groups for parameter in part["params"]]
    taught = sorted({int(key.partition("/")[0]) for key in known if key.partition("/")[0].isdecimal()})
    wanted: dict[str, Tensor] = {}
    for number in (number for number in taught if number < len(every)):
        like = {"step": torch.tensor(0.0), "exp_avg": every[number], "exp_avg_sq": every[number]}
        wanted |= {f"{number}/{name}": value for name, value in like.items()}
    _same(path, "optimizer", wanted, known)
    if any(bool((value < key.endswith("step")).any()) for key, value in known.items() if not key.endswith("exp_avg")):
        raise DataError(f"{path} holds steps or squares below zero; {REMEDY}")


def _same(path: Path, group: str, wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    def shapes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}

    ours, theirs = shapes(wanted), shapes(found)
    if other := sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)):
        raise DataError(
            f"{path} holds a run of another model: `{group}/{other[0][:100]}` is {theirs.get(other[0], 'not there')}, "
            f"and this run has {ours.get(other[0], 'none')}; {REMEDY}"
        )


def check_random(path: Path, state: Tensor | None) -> None:
    """Refuse what is no state of torch's generator."""
    try:
        torch.Generator().set_state(torch.empty(0) if state is None else state)
    except (RuntimeError, TypeError) as error:
        raise DataError(f"{path} holds no state of the random numbers ({error}); {REMEDY}") from error


def optimizer_tensors(optimizer: Optimizer) -> dict[str, Tensor]:
    """The state of an optimizer whose state is tensors per parameter, as Adam's is."""
    state = optimizer.state_dict()["state"]
    return {f"{number}/{name}": value for number, part in state.items() for name, value in part.items()}


def restore_optimizer(optimizer: Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` took."""
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
