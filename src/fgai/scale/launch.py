"""Several processes on this machine, by torch's own elastic launcher: if one dies, all start again from the checkpoint.

On several machines the same function runs under `torchrun --nnodes ...`; this is what `--ranks` does on one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as group
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from fgai.errors import RankError, SettingError

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
        elastic_launch(config, _together)(function, *args)
    except ChildFailedError as error:
        number, first = error.get_first_failure()
        why: Any = first.message  # a record of the error and its stack, if it was an error
        why = why["message"] if isinstance(why, dict) else why
        raise RankError(f"rank {number} died {restarts + 1} times, last of: {why}") from error


def _together(function: Callable[..., Any], *args: Any) -> None:
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
