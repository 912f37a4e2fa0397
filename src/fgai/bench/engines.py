"""Where cells run: in this process, in a pool of processes, or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, Protocol

import torch

from fgai.bench.plan import Cell
from fgai.errors import RankError
from fgai.launchers import ray_cluster
from fgai.registry import Registry

Work = Callable[[Cell], None]
RETRIES = 2  # of a cell whose worker process died


class Engine(Protocol):
    """Runs cells in any order, and yields each when it is done."""

    def __call__(self, work: Work, cells: Sequence[Cell], workers: int) -> Iterator[Cell]:
        """Yield each cell when its work is done."""
        ...


ENGINES: Registry[Engine] = Registry("engine")


@ENGINES.register("serial")
def serial(work: Work, cells: Sequence[Cell], workers: int) -> Iterator[Cell]:
    """One after the other, in this process.

    >>> [cell.name for cell in serial(lambda cell: None, [Cell("synthetic", "gat", "vanilla", seed=0)], workers=1)]
    ['synthetic-gat-vanilla-0']
    """
    for cell in cells:
        work(cell)
        yield cell


@ENGINES.register("pool")
def pool(work: Work, cells: Sequence[Cell], workers: int) -> Iterator[Cell]:
    """In parallel, each cell in its own process with one thread; a cell whose process died runs again.

    >>> list(pool(id, [], workers=2))  # no cells, no processes
    []
    """
    remaining = list(cells)
    for _ in range(RETRIES + 1):
        done: list[Cell] = []
        try:
            with ProcessPoolExecutor(workers, get_context("spawn"), _one_thread, max_tasks_per_child=1) as processes:
                waiting = {processes.submit(work, cell): cell for cell in remaining}
                for future in as_completed(waiting):
                    future.result()
                    done.append(waiting[future])
                    yield done[-1]
        except BrokenProcessPool:
            remaining = [cell for cell in remaining if cell not in done]
            continue
        return
    names = ", ".join(cell.name for cell in remaining)
    raise RankError(f"workers died {RETRIES + 1} times; unfinished: {names}. Give fewer --workers if memory is short")


@ENGINES.register("ray")
def ray(work: Work, cells: Sequence[Cell], workers: int) -> Iterator[Cell]:
    """On a Ray cluster, one CPU per cell; a cell whose worker died runs again.

    It is the cluster that `RAY_ADDRESS` names, else one that is started on this machine only. Ray opens ports.

    Raises:
        MissingExtraError: Ray is not installed.

    >>> [cell.name for cell in ray(id, [Cell("synthetic", "gat", "vanilla", seed=0)], workers=1)]  # doctest: +SKIP
    ['synthetic-gat-vanilla-0']
    """
    with ray_cluster(workers) as cluster:
        task: Any = cluster.remote(num_cpus=1, max_retries=RETRIES)(_run_single_threaded)
        waiting = {task.remote(work, cell): cell for cell in cells}
        while waiting:
            ready, _ = cluster.wait(list(waiting))
            for reference in ready:
                cluster.get(reference)
                yield waiting.pop(reference)


def default_workers() -> int:
    """One process per core."""
    return max(len(os.sched_getaffinity(0)), 1)


def _one_thread() -> None:
    torch.set_num_threads(1)


def _run_single_threaded(work: Work, cell: Cell) -> None:
    _one_thread()
    work(cell)
