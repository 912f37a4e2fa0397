"""A training run on disk, so that one that was killed goes on where it was: safetensors and JSON, no pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from fgai.files import whole


def save(path: Path, tensors: Mapping[str, Mapping[str, Tensor]], about: Mapping[str, Any]) -> None:
    """Write groups of named tensors and what is said about them; the file is there whole or not at all."""
    named = {f"{group}/{name}": tensor for group, part in tensors.items() for name, tensor in part.items()}
    flat = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in named.items()}  # some may share memory
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as half:
        save_file(flat, str(half), {"about": json.dumps(dict(about))})


def load(path: Path) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """What `save` wrote."""
    groups: dict[str, dict[str, Tensor]] = {}
    with safe_open(str(path), "pt") as file:
        for key in file.keys():  # noqa: SIM118, not a dict
            group, _, name = key.partition("/")
            groups.setdefault(group, {})[name] = file.get_tensor(key)
        return groups, json.loads(file.metadata()["about"])


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
