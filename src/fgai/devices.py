"""Devices: selection, moving graphs, and double precision on devices that have none.

The device of the model is used. A user calls `model.to(device)` and `data.to(device)`; batches of a loader are on the
CPU and are moved to the model. Random numbers are sampled on the CPU and moved, so they are the same on all devices.
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
    """Return the accelerator if there is one, else the CPU."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return CPU if accelerator is None else accelerator


def resolve_device(name: str = "") -> torch.device:
    """Return the device of this name, or the default device if the name is empty.

    Raises:
        SettingError: torch does not know the name, or the machine has no such device.

    >>> resolve_device("cpu")
    device(type='cpu')
    >>> resolve_device("gpu")
    Traceback (most recent call last):
    fgai.errors.SettingError: no device is called 'gpu'; this machine has cpu
    """
    if not name:
        return default_device()
    available = _available_devices()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise SettingError(f"no device is called {name!r}; this machine has {', '.join(available)}") from error
    if str(device) not in available:
        raise SettingError(
            f"this machine has no {name}, or this torch was built without it; give one of {', '.join(available)}"
        )
    return device


def device_of_rank(device: torch.device) -> torch.device:
    """Return the GPU of this process. Under `torchrun` each process has its own, unless `device` has an index."""
    if device.type != "cuda" or device.index is not None or "LOCAL_RANK" not in os.environ:
        return device
    number, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if number >= count:
        raise SettingError(f"there are {count} GPUs for {os.environ['LOCAL_WORLD_SIZE']} ranks; give fewer --ranks")
    return torch.device("cuda", number)


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter or buffer of a model; the CPU if it has none.

    >>> device_of(nn.Linear(1, 1))
    device(type='cpu')
    """
    first = next(model.parameters(), next(model.buffers(), None))
    return CPU if first is None else first.device


def on_device(data: Data, device: torch.device) -> Data:
    """Return the graph with its tensors on a device; the same object if they are there already."""
    tensors = [value for value in data.to_dict().values() if isinstance(value, Tensor)]
    if all(value.device == device for value in tensors):
        return data
    return copy.copy(data).to(str(device))


def placed(data: Data, device: torch.device) -> Data:
    """Return a copy of the graph on a device. Sparse features become dense on a GPU, which has no sparse kernels."""
    moved = copy.copy(data).to(str(device))
    if device.type != "cpu" and isinstance(moved.x, Tensor) and moved.x.is_sparse:
        moved.x = moved.x.to_dense()
    return moved


def to_double(value: Tensor) -> Tensor:
    """Return the tensor in float64; on the CPU if its device has no float64.

    >>> to_double(torch.ones(1))
    tensor([1.], dtype=torch.float64)
    """
    return (value.cpu() if value.device.type in WITHOUT_DOUBLE else value).double()


def random_state(device: torch.device) -> Tensor:
    """Return the state of torch's default generator of a device."""
    return torch.get_rng_state() if device.type == "cpu" else _module(device).get_rng_state(*_index(device))


def restore_random_state(state: Tensor, device: torch.device) -> None:
    """Restore a state that `random_state` returned."""
    if device.type == "cpu":
        torch.set_rng_state(state.cpu())
    else:
        _module(device).set_rng_state(state.cpu(), *_index(device))


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)


def _index(device: torch.device) -> list[torch.device]:
    return [] if device.type == "mps" else [device]  # there is only one, and its functions take no argument


def _available_devices() -> list[str]:
    """Return the names of the devices of this machine."""
    kind = default_device().type
    if kind == "cpu":
        return ["cpu"]
    return ["cpu", kind, *(f"{kind}:{number}" for number in range(torch.accelerator.device_count()))]
