"""Several processes that train one model: ranks, collective operations, and a launcher for one machine."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as group
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from fgai.errors import RankError, SettingError

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
    total = value.clone() if value.device.type in SUPPORTED else value.cpu()
    group.all_reduce(total)
    return total.to(value.device)


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Replace the gradients by their mean over all ranks, in one message."""
    if world_size() == 1:
        return
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in trainable]
    mean = all_reduce(torch.cat([gradient.flatten() for gradient in gradients])) / world_size()
    for parameter, gradient in zip(trainable, mean.split([p.numel() for p in trainable]), strict=True):
        parameter.grad = gradient.view_as(parameter)


def all_gather(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the named tensors of each rank; they have the same shapes on all ranks."""
    if world_size() == 1:
        return [dict(tensors)]
    gathered: list[dict[str, Tensor]] = [{} for _ in range(world_size())]
    for name, given in tensors.items():
        value = given if given.device.type in SUPPORTED else given.cpu()
        parts = [torch.empty_like(value) for _ in range(world_size())]
        group.all_gather(parts, value.contiguous())
        for theirs, part in zip(gathered, parts, strict=True):
            theirs[name] = part
    return gathered


def _in_group() -> bool:
    return group.is_available() and group.is_initialized()


RESTARTS = 3  # of all ranks, when one crashes
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # a shared store keeps addresses of crashed ranks
LOGGERS = ("torch.distributed.elastic.multiprocessing.api", "torch.multiprocessing.spawn")  # log stacks of crashes
PATIENCE = timedelta(minutes=2)  # a rank that waits longer assumes that another crashed, and all restart


def launch(function: Callable[..., Any], *args: Any, ranks: int, restarts: int = RESTARTS) -> None:
    """Run `function(*args)` in several processes that form a group; if one crashes, all restart.

    Args:
        function: A function that can be imported by its module and name. If it returns a function, that is called
            after the group is closed.
        *args: Its arguments.
        ranks: Number of processes.
        restarts: Largest number of restarts.

    Raises:
        RankError: If a process crashes after the last restart.
    """
    if ranks < 1:
        raise SettingError(f"ranks={ranks}; give at least 1")
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
        message: Any = first.message  # a dict with the error and its stack, if Python raised one
        message = message["message"] if isinstance(message, dict) else message
        raise RankError(f"rank {number} crashed {restarts + 1} times, the last time with: {message}") from error


def _run_in_group(function: Callable[..., Any], *args: Any) -> None:
    """Join the group and run the function; the ranks share the cores of the machine."""
    signal.signal(signal.SIGTERM, _end_at_once)  # torch's handler raises anywhere, and the trace hides the first error
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["LOCAL_WORLD_SIZE"])))
    join_group()
    try:
        after = function(*args)
    finally:
        group.destroy_process_group()
    if callable(after):
        after()


def _end_at_once(number: int, _: object) -> None:
    """End a rank that the launcher stops because another one crashed."""
    os._exit(128 + number)


def join_group() -> None:
    """Join the process group that `torchrun` describes in the environment: nccl for GPU tensors, gloo for the CPU."""
    both = torch.cuda.is_available() and group.is_nccl_available()
    group.init_process_group("cpu:gloo,cuda:nccl" if both else "gloo", timeout=PATIENCE)
