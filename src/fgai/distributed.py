"""Several processes that train one model: ranks and collective operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from itertools import zip_longest
from typing import Any, TypeVar

import torch
import torch.distributed as group
from torch import Tensor, nn

PATIENCE = timedelta(minutes=2)  # a rank that waits longer assumes that another crashed, and all restart
MISSING = object()  # of a rank with fewer items
T = TypeVar("T")
SUPPORTED = ("cpu", "cuda")  # devices that gloo and nccl support; tensors on others are copied to the CPU


def rank() -> int:
    """Return the rank of this process.

    >>> rank(), world_size()
    (0, 1)
    """
    return group.get_rank() if _in_group() else 0


def world_size() -> int:
    """Return the number of processes."""
    return group.get_world_size() if _in_group() else 1


def all_reduce(value: Tensor) -> Tensor:
    """Return the sum of a tensor over all ranks.

    >>> all_reduce(torch.tensor([2.0]))
    tensor([2.])
    """
    if world_size() == 1:
        return value
    total = _on_supported(value.clone())
    group.all_reduce(total)
    return total.to(value.device)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace the gradients by their mean over all ranks, in one message.

    A parameter without a gradient on any rank keeps none: the optimizer does not decay it.
    """
    if world_size() == 1:
        return
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trainable]
    used = gradients[0].new_tensor([p.grad is not None for p in trainable])
    flat = _on_supported(torch.cat([*(gradient.flatten() for gradient in gradients), used]))
    group.all_reduce(flat)
    *mean, used = flat.div_(world_size()).to(gradients[0].device).split([*(p.numel() for p in trainable), len(used)])
    for parameter, gradient, is_used in zip(trainable, mean, used.tolist(), strict=True):
        parameter.grad = gradient.view_as(parameter) if is_used else None


def all_gather(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the named tensors of each rank; they have the same shapes on all ranks."""
    if world_size() == 1:
        return [dict(tensors)]
    gathered: list[dict[str, Tensor]] = [{} for _ in range(world_size())]
    for name, given in tensors.items():
        value = _on_supported(given)
        parts = [torch.empty_like(value) for _ in range(world_size())]
        group.all_gather(parts, value.contiguous())
        for theirs, part in zip(gathered, parts, strict=True):
            theirs[name] = part
    return gathered


def all_gather_in_turn(items: list[T]) -> list[T]:
    """Return the items of all ranks: the first of each rank, the second of each rank, ...; some may have one less.

    >>> all_gather_in_turn([1, 2])
    [1, 2]
    """
    if world_size() == 1:
        return items
    lists: list[Any] = [None] * world_size()
    group.all_gather_object(lists, items)
    return [item for turn in zip_longest(*lists, fillvalue=MISSING) for item in turn if item is not MISSING]


def _on_supported(value: Tensor) -> Tensor:
    return value if value.device.type in SUPPORTED else value.cpu()


def _in_group() -> bool:
    return group.is_available() and group.is_initialized()


def barrier() -> None:
    """Wait until all ranks are here."""
    if world_size() > 1:
        group.barrier()


def broadcast_text(text: str) -> str:
    """Return the text of rank 0.

    >>> broadcast_text("folder")
    'folder'
    """
    texts: list[str | None] = [text]
    if world_size() > 1:
        group.broadcast_object_list(texts)
    return texts[0] or ""


def backend() -> str:
    """Return torch's name of the backend: nccl for GPU tensors, gloo for the CPU."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and group.is_nccl_available() else "gloo"


def join_group() -> None:
    """Join the process group that `torchrun` describes in the environment."""
    group.init_process_group(backend(), timeout=PATIENCE)


def leave_group() -> None:
    """Leave the process group; from then on this process is the only rank."""
    group.destroy_process_group()
