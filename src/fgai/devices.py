"""Where tensors live: which device to take, what lies where, and double precision where a device has none.

The model's device decides. `model.to(device)` and `data.to(device)` is all that a user does; batches of a loader come
on the CPU and are moved to the model. Random numbers are drawn on the CPU and moved, so they are the same everywhere.
"""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.errors import SettingError

CPU = torch.device("cpu")
WITHOUT_DOUBLE = ("mps",)  # devices that have no float64


def default_device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    found = torch.accelerator.current_accelerator(check_available=True)
    return CPU if found is None else found


def resolve_device(name: str = "") -> torch.device:
    """The device of this name, or the default; one that torch does not know or that is not there is refused.

    >>> resolve_device("cpu")
    device(type='cpu')
    >>> resolve_device("gpu")
    Traceback (most recent call last):
    fgai.errors.SettingError: no device is called 'gpu'; this machine has cpu
    """
    if not name:
        return default_device()
    here = _present()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingError(f"no device is called {name!r}; this machine has {', '.join(here)}") from error
    if str(device) not in here:
        raise SettingError(
            f"this machine has no {name}, or this torch was built without it; give one of {', '.join(here)}"
        )
    return device


def device_of_rank(device: torch.device) -> torch.device:
    """The GPU of this process: under `torchrun` each takes its own, unless one is named by its number."""
    if device.type != "cuda" or device.index is not None or "LOCAL_RANK" not in os.environ:
        return device
    number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= count:
        raise SettingError(f"there are {count} GPUs for {os.environ['LOCAL_WORLD_SIZE']} ranks; give fewer --ranks")
    return torch.device("cuda", number)


def device_of(model: nn.Module) -> torch.device:
    """Where a model lives: the device of its first parameter or buffer; the CPU where it has none.

    >>> device_of(nn.Linear(1, 1))
    device(type='cpu')
    """
    first = next(model.parameters(), next(model.buffers(), None))
    return CPU if first is None else first.device


def on_device(data: Data, device: torch.device) -> Data:
    """The graph with its tensors on this device; a graph that is there already is returned itself."""
    tensors = [value for value in data.to_dict().values() if isinstance(value, Tensor)]
    if all(value.device == device for value in tensors):
        return data
    return copy.copy(data).to(str(device))


def placed(data: Data, device: torch.device) -> Data:
    """The graph on a device; sparse features are dense there, since only the CPU has our products of sparse rows."""
    moved = copy.copy(data).to(str(device))
    if device.type != "cpu" and isinstance(moved.x, Tensor) and moved.x.is_sparse:
        moved.x = moved.x.to_dense()
    return moved


def to_double(value: Tensor) -> Tensor:
    """The tensor in float64; where its device has none, a copy on the CPU.

    >>> to_double(torch.ones(1))
    tensor([1.], dtype=torch.float64)
    """
    return (value.cpu() if value.device.type in WITHOUT_DOUBLE else value).double()


def random_state(device: torch.device) -> Tensor:
    """The state of torch's own generator of a device."""
    return torch.get_rng_state() if device.type == "cpu" else _module(device).get_rng_state(*_index(device))


def restore_random_state(state: Tensor, device: torch.device) -> None:
    """Put back what `random_state` gave."""
    if device.type == "cpu":
        torch.set_rng_state(state.cpu())
    else:
        _module(device).set_rng_state(state.cpu(), *_index(device))


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _index(device: torch.device) -> list[torch.device]:
    return [] if device.type == "mps" else [device]  # there is one, and its functions take no other


def _present() -> list[str]:
    """The devices of this machine, by name."""
    found = default_device()
    if found == CPU:
        return ["cpu"]
    return ["cpu", found.type, *(f"{found.type}:{number}" for number in range(torch.accelerator.device_count()))]
