"""Several processes that learn one model: who this one is, and what all of them agree on.

Gradients are averaged by hand and not by `DistributedDataParallel`: the sum is the same, and the model keeps its own
class, keys and layers, which is what a tap looks for. Without a process group there is one rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as group
from torch import Tensor, nn

CARRIED = ("cpu", "cuda")  # devices between whose tensors gloo and nccl carry messages; others go by the CPU


def rank() -> int:
    """The number of this process.

    >>> rank(), world()
    (0, 1)
    """
    return group.get_rank() if _together() else 0


def world() -> int:
    """How many processes there are."""
    return group.get_world_size() if _together() else 1


def summed(value: Tensor) -> Tensor:
    """The sum of a tensor over the ranks.

    >>> summed(torch.tensor([2.0]))
    tensor([2.])
    """
    if world() == 1:
        return value
    carried = value.clone() if value.device.type in CARRIED else value.cpu()
    group.all_reduce(carried)
    return carried.to(value.device)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Give every rank the mean of all ranks' gradients, in one message."""
    if world() == 1:
        return
    asking = [parameter for parameter in parameters if parameter.requires_grad]
    slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in asking]
    mean = summed(torch.cat([slope.flatten() for slope in slopes])) / world()
    for parameter, slope in zip(asking, mean.split([p.numel() for p in asking]), strict=True):
        parameter.grad = slope.view_as(parameter)


def gathered(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The tensors of every rank, by name; they have the same shapes everywhere."""
    if world() == 1:
        return [dict(tensors)]
    found: list[dict[str, Tensor]] = [{} for _ in range(world())]
    for name, given in tensors.items():
        value = given if given.device.type in CARRIED else given.cpu()
        parts = [torch.empty_like(value) for _ in range(world())]
        group.all_gather(parts, value.contiguous())
        for theirs, part in zip(found, parts, strict=True):
            theirs[name] = part
    return found


def _together() -> bool:
    return group.is_available() and group.is_initialized()
