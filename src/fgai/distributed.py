"""Several processes that train one model: ranks, collective operations, and a launcher for one machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as group
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from fgai.errors import RankError, SettingError

CARRIED = ("cpu", "cuda")  # devices between whose tensors gloo and nccl carry messages; others go by the CPU


def rank() -> int:
    """The number of this process.

    >>> rank(), world_size()
    (0, 1)
    """
    return group.get_rank() if _in_group() else 0


def world_size() -> int:
    """How many processes there are."""
    return group.get_world_size() if _in_group() else 1


def all_reduce(value: Tensor) -> Tensor:
    """The sum of a tensor over the ranks.

    >>> all_reduce(torch.tensor([2.0]))
    tensor([2.])
    """
    if world_size() == 1:
        return value
    carried = value.clone() if value.device.type in CARRIED else value.cpu()
    group.all_reduce(carried)
    return carried.to(value.device)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Give every rank the mean of all ranks' gradients, in one message."""
    if world_size() == 1:
        return
    asking = [parameter for parameter in parameters if parameter.requires_grad]
    slopes = [torch.zeros_like(p) if p.grad is None else p.grad for p in asking]
    mean = all_reduce(torch.cat([slope.flatten() for slope in slopes])) / world_size()
    for parameter, slope in zip(asking, mean.split([p.numel() for p in asking]), strict=True):
        parameter.grad = slope.view_as(parameter)


def all_gather(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The tensors of every rank, by name; they have the same shapes everywhere."""
    if world_size() == 1:
        return [dict(tensors)]
    found: list[dict[str, Tensor]] = [{} for _ in range(world_size())]
    for name, given in tensors.items():
        value = given if given.device.type in CARRIED else given.cpu()
        parts = [torch.empty_like(value) for _ in range(world_size())]
        group.all_gather(parts, value.contiguous())
        for theirs, part in zip(found, parts, strict=True):
            theirs[name] = part
    return found


def _in_group() -> bool:
    return group.is_available() and group.is_initialized()


RESTARTS = 3  # of all ranks, when one dies
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # each start has its own: in a shared one, dead ranks' addresses stay
LOGGERS = ("torch.distributed.elastic.multiprocessing.api", "torch.multiprocessing.spawn")  # stacks of every death
PATIENCE = timedelta(minutes=2)  # a rank that waits longer takes the others for dead, and all start again


def launch(function: Callable[..., Any], *args: Any, ranks: int, restarts: int = RESTARTS) -> None:
    """Run `function(*args)` in `ranks` processes that form a group; it must be found by its module and name.

    A function that it returns is called when the group is gone: what one process is left to do alone.
    """
    if ranks < 1:
        raise SettingError(f"ranks={ranks}; at least one process learns")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=restarts,
        monitor_interval=0.2,
        start_method="spawn",
    )
    os.environ.setdefault(OWN_STORE, "1")
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        elastic_launch(config, _run_in_group)(function, *args)
    except ChildFailedError as error:
        number, first = error.get_first_failure()
        why: Any = first.message  # a record of the error and its stack, if it was an error
        why = why["message"] if isinstance(why, dict) else why
        raise RankError(f"rank {number} died {restarts + 1} times, last of: {why}") from error


def _run_in_group(function: Callable[..., Any], *args: Any) -> None:
    """In each process: one thread where the ranks share cores, a group, and the work."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["LOCAL_WORLD_SIZE"])))
    joined_group()
    try:
        rest = function(*args)
    finally:
        group.destroy_process_group()
    if callable(rest):
        rest()


def joined_group() -> None:
    """Join the group that `torchrun` describes in the environment.

    Each tensor's own device decides what carries it: nccl on GPUs, gloo on the CPU.
    """
    both = torch.cuda.is_available() and group.is_nccl_available()
    group.init_process_group("cpu:gloo,cuda:nccl" if both else "gloo", timeout=PATIENCE)
