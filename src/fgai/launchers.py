"""Launchers of ranks: processes of this machine, those that `torchrun` started, or workers of a Ray cluster."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from fgai.distributed import PATIENCE, backend, join_group, leave_group
from fgai.errors import MissingExtraError, RankError, SettingError
from fgai.registry import Registry

RESTARTS = 3  # of all ranks, when one crashes
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"  # a shared store keeps addresses of crashed ranks
LOGGERS = ("torch.distributed.elastic.multiprocessing.api", "torch.multiprocessing.spawn")  # log stacks of crashes
ADDRESS = "RAY_ADDRESS"  # of the Ray cluster to use


class Launcher(Protocol):
    """Runs a function in several ranks, and returns the result of rank 0."""

    def __call__(self, function: Callable[..., Any], *args: Any, ranks: int, restarts: int, folder: Path | None) -> Any:
        """Run `function(*args)` in each rank."""
        ...


LAUNCHERS: Registry[Launcher] = Registry("launcher")


def launch(
    function: Callable[..., Any],
    *args: Any,
    ranks: int,
    engine: str = "local",
    restarts: int = RESTARTS,
    folder: Path | None = None,
) -> Any:
    """Run `function(*args)` in several processes that form a group; if one crashes, all restart.

    Args:
        function: A function that can be imported by its module and name. If it returns a function, that is called
            after the group is closed, and its result counts.
        *args: Its arguments.
        ranks: Number of processes. One `local` rank is this process, without a group.
        engine: A name in `LAUNCHERS`: `local`, `torchrun` or `ray`.
        restarts: Largest number of restarts; `torchrun` has an option of its own for it.
        folder: A folder that all ranks can write, for a Ray cluster of several machines; a temporary one by default.

    Returns:
        What the function returned in rank 0.

    Raises:
        RankError: If a process crashes after the last restart.
    """
    if ranks < 1:
        raise SettingError(f"ranks={ranks}; give at least 1")
    return LAUNCHERS[engine](function, *args, ranks=ranks, restarts=restarts, folder=folder)


@LAUNCHERS.register("local")
def local(function: Callable[..., Any], *args: Any, ranks: int, restarts: int, folder: Path | None = None) -> Any:
    """Processes of this machine, by torch's elastic launcher; a single rank is this process itself.

    >>> local(abs, -3, ranks=1, restarts=0)
    3
    """
    if ranks == 1:
        return _finished(function(*args))
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
        return elastic_launch(config, _run_local_rank)(function, *args)[0]
    except ChildFailedError as error:
        number, first = error.get_first_failure()
        message: Any = first.message  # a dict with the error and its stack, if Python raised one
        message = message["message"] if isinstance(message, dict) else message
        raise RankError(f"rank {number} crashed {restarts + 1} times, the last time with: {message}") from error


def _run_local_rank(function: Callable[..., Any], *args: Any) -> Any:
    signal.signal(signal.SIGTERM, _end_at_once)  # torch's handler raises anywhere, and the trace hides the first error
    return _run_rank(function, *args)


def _end_at_once(number: int, _: object) -> None:
    """End a rank that the launcher stops because another one crashed."""
    os._exit(128 + number)


def _run_rank(function: Callable[..., Any], *args: Any) -> Any:
    join_group()
    return _run_in_group(function, *args)


def _run_in_group(function: Callable[..., Any], *args: Any) -> Any:
    """Run the function, then leave the group; the ranks share the cores of the machine."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // int(os.environ["LOCAL_WORLD_SIZE"])))
    try:
        result = function(*args)
    finally:
        leave_group()
    return _finished(result)


def _finished(result: Any) -> Any:
    """Call what is to be called after the group is closed."""
    return result() if callable(result) else result


@LAUNCHERS.register("torchrun")
def torchrun(function: Callable[..., Any], *args: Any, ranks: int, restarts: int, folder: Path | None = None) -> Any:
    """The processes that `torchrun` started, of which this is one; `torchrun` restarts them.

    >>> torchrun(abs, -3, ranks=2, restarts=0)
    Traceback (most recent call last):
    fgai.errors.SettingError: the engine torchrun needs processes that torchrun started; run, for example, ...
    """
    started = os.environ.get("WORLD_SIZE")
    if started is None:
        raise SettingError(
            "the engine torchrun needs processes that torchrun started; run, for example, "
            "torchrun --nproc-per-node 2 --no-python fgai fit ... --engine torchrun --ranks 2"
        )
    if int(started) != ranks:
        raise SettingError(f"torchrun started {started} processes, but there are to be {ranks} ranks; give {started}")
    return _run_rank(function, *args)


@LAUNCHERS.register("ray")
def ray(function: Callable[..., Any], *args: Any, ranks: int, restarts: int, folder: Path | None = None) -> Any:
    """Workers of Ray Train, on the cluster that `RAY_ADDRESS` names, else on this machine. Ray opens ports.

    Raises:
        MissingExtraError: Ray is not installed.

    >>> ray(abs, -3, ranks=2, restarts=0)  # doctest: +SKIP
    3
    """
    place = None if folder is None else folder.absolute()
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    with ray_cluster(ranks), tempfile.TemporaryDirectory(dir=place, prefix=".ray-train-") as storage:
        from ray.train import FailureConfig, RunConfig, ScalingConfig  # pyright: ignore[reportMissingImports]
        from ray.train.torch import TorchConfig, TorchTrainer  # pyright: ignore[reportMissingImports]

        trainer = TorchTrainer(
            _run_ray_rank,
            train_loop_config={"function": function, "args": args, "cwd": os.getcwd()},
            torch_config=TorchConfig(backend(), timeout_s=int(PATIENCE.total_seconds())),
            scaling_config=ScalingConfig(num_workers=ranks, use_gpu=torch.cuda.is_available()),
            run_config=RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=restarts)),
        )
        try:
            return trainer.fit().return_value
        except Exception as error:
            failed = sorted(getattr(error, "worker_failures", {}).items())
            number, cause = failed[0] if failed else (0, error)
            last = str(getattr(cause, "cause", cause)).strip().splitlines()[-1]
            raise RankError(f"rank {number} crashed {restarts + 1} times, the last time with: {last}") from error


def _run_ray_rank(job: dict[str, Any]) -> Any:
    """Run the function in the group that Ray Train has joined, in the folder where the launch was called."""
    with suppress(OSError):  # a machine without that folder needs absolute paths
        os.chdir(job["cwd"])
    return _run_in_group(job["function"], *job["args"])


@contextmanager
def ray_cluster(cpus: int) -> Iterator[Any]:
    """Yield Ray, connected to the cluster of `RAY_ADDRESS`, else to one of this machine that ends with the block."""
    try:
        import ray as cluster  # pyright: ignore[reportMissingImports], an extra
    except ImportError as error:
        raise MissingExtraError("the ray engine needs Ray; install it with: pip install 'fgai[ray]'") from error
    started = not cluster.is_initialized()
    if started:
        settings: dict[str, Any] = {"num_cpus": cpus, "_node_ip_address": "127.0.0.1", "include_dashboard": False}
        cluster.init(**({} if os.environ.get(ADDRESS) else settings), log_to_driver=False)
    try:
        yield cluster
    finally:
        if started:
            cluster.shutdown()
