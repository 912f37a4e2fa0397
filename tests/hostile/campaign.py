"""Runs hostile cases in worker processes that may crash, hang or run out of memory, and counts what came of each.

A target makes a case from a seed: it prepares files or arguments, and returns what to call. What comes of it is one of

- `refused`: an `FGAIError` (at the command line: a sentence and an exit code), `worked`: it returned, soundly;
- `raw`: any other error; `crashed`: a signal ended the process; `hung`: over 5 s of work;
- `memory`: over 1 GB more than before, or an allocation that failed; `silent`: it returned what it should have refused.
"""

import ctypes
import faulthandler
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fgai.errors import FGAIError

OUTCOMES = ("refused", "worked", "raw", "crashed", "hung", "memory", "silent")
BAD = OUTCOMES[2:]
SECONDS, PATIENCE = 5.0, 15.0  # of work, and of waiting where other processes hold the machine
GRACE = 10.0  # beyond which a worker that its own timer cannot stop is killed
MEGABYTES = 1_000
HEADROOM = 3 * 2**30  # beyond which an allocation fails; what was asked for counts as `memory`
ROOM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # files come and go faster in memory
SHORT = (
    "allocate memory",
    "out of memory",
    "bad_alloc",
    "Unable to allocate",
    "invalid buffer size",
    "Cannot allocate",
)


@dataclass(frozen=True)
class Target:
    """Something of the library that reads or is called.

    `prepare(rng, folder)` makes a case and returns what to call; `unsound(result)` says what is wrong with what it
    returned, or "". A case costs `cost` of a cheap one: the campaign gives it so many fewer.
    """

    name: str
    prepare: Callable[[random.Random, Path], Callable[[], Any]]
    unsound: Callable[[Any], str] = field(default=lambda result: "")
    cost: float = 1.0


@dataclass(frozen=True)
class Finding:
    """A case that did not end well: which, how, and the last line of what was raised."""

    what: str
    seed: int
    outcome: str
    said: str


KEPT: list[tempfile.TemporaryDirectory[str]] = []


def lasting(name: str) -> Path:
    """A folder that is there until this process ends."""
    KEPT.append(tempfile.TemporaryDirectory(prefix=f"hostile-{name}", dir=ROOM, ignore_cleanup_errors=True))
    return Path(KEPT[-1].name)


class TookTooLongError(BaseException):
    """Raised inside a case by the timer; no handler of `Exception` takes it."""


class SandboxError(Exception):
    """The harness itself failed while it prepared a case."""


def run_case(target: Target, seed: int, loudly: bool = False) -> tuple[str, str]:
    """One case in this process: its outcome and what was said; `loudly` prints where it was raised."""
    rng = random.Random(f"{target.name}/{seed}")
    folder = Path(tempfile.mkdtemp(prefix="hostile", dir=ROOM))
    torch.manual_seed(0)
    try:
        try:
            call = target.prepare(rng, folder)
        except Exception as error:
            raise SandboxError(f"{target.name} {seed}: {traceback.format_exc()}") from error
        before = _peak(reset=True)
        outcome, said = _called(target, call, loudly)
        grown = (_peak() - before) / 1_024
        return ("memory", f"{grown:.0f} MB; {said}") if grown > MEGABYTES else (outcome, said)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _called(target: Target, call: Callable[[], Any], loudly: bool) -> tuple[str, str]:
    try:
        with _timer():
            result = call()
    except TookTooLongError:
        return "hung", f"over {SECONDS:g} s"
    except FGAIError as error:
        short = _short_of_memory(error)
        return ("memory", short) if short else ("refused", str(error)) if str(error) else ("raw", "an empty message")
    except BaseException as error:
        if loudly:
            traceback.print_exc()
        short = _short_of_memory(error)
        return ("memory", short) if short else ("raw", _last_line(error))
    wrong = target.unsound(result)
    return ("silent", wrong) if wrong else ("worked", "")


class _timer:
    """Five seconds of work for a block. On a busy machine waiting does not count, up to a limit."""

    def __enter__(self) -> None:
        self.wall, self.work = time.monotonic(), time.process_time()
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, *_: object) -> None:
        if time.process_time() - self.work > SECONDS * 0.9 or time.monotonic() - self.wall > PATIENCE:
            raise TookTooLongError
        signal.setitimer(signal.ITIMER_REAL, 1.0)


def _short_of_memory(error: BaseException | None) -> str:
    while error is not None:
        if isinstance(error, MemoryError) or any(words in str(error) for words in SHORT):
            return _last_line(error)
        error = error.__cause__ or error.__context__
    return ""


def _last_line(error: BaseException) -> str:
    """The error, and where in the library it was raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "/fgai/" in f.filename]
    where = f"{frames[-1].filename.rpartition('/fgai/')[2]}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {where}: {str(error).strip()[:160]!r}"


def _peak(reset: bool = False) -> int:
    """The most memory held so far, in kB, or since the last reset."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
        return int(status[status.index("VmHWM:") + 6 :].split(maxsplit=1)[0])
    except (OSError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(target: Target, count: int, first: int = 0) -> tuple[Counter[str], list[Finding]]:
    """`count` cases from the seed `first` on, in a worker that is started again when it dies."""
    _warm(target)
    context = multiprocessing.get_context("fork")
    codes = context.RawArray(ctypes.c_byte, count)
    at = context.RawValue(ctypes.c_long, 0)
    findings: list[Finding] = []
    while at.value < count:
        here, there = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(target, first, count, at, codes, there))
        worker.start()
        there.close()
        said = _watch(worker, here, at)
        for index, outcome, words in said:
            if outcome == "harness":
                raise SandboxError(words)
            findings.append(Finding(target.name, first + index, outcome, words))
        if at.value < count:  # it died in the middle of a case
            hung = worker.exitcode == -signal.SIGKILL
            outcome, words = ("hung", "killed") if hung else ("crashed", f"exit code {worker.exitcode}")
            codes[at.value] = 1 + OUTCOMES.index(outcome)
            findings.append(Finding(target.name, first + at.value, outcome, words))
            at.value += 1
    return Counter(OUTCOMES[code - 1] for code in codes if code), findings


def _warm(target: Target) -> None:
    """What is made once for all cases is made before the workers part."""
    with tempfile.TemporaryDirectory(dir=ROOM) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        target.prepare(random.Random(0), Path(folder))


def _work(target: Target, first: int, count: int, at: Any, codes: Any, pipe: Any) -> None:
    warnings.simplefilter("ignore")
    faulthandler.disable()
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115, for the life of the process
    torch.set_num_threads(1)
    os.sync = lambda: None  # of all disks of the machine: slow, and no part of what is tried
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + HEADROOM, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for index in range(at.value, count):
        at.value = index
        try:
            outcome, said = run_case(target, first + index)
        except SandboxError as error:
            pipe.send((index, "harness", str(error)))
            outcome = "refused"
        else:
            if outcome in BAD:
                pipe.send((index, outcome, said))
        codes[index] = 1 + OUTCOMES.index(outcome)
    at.value = count
    pipe.close()
    os._exit(0)  # no exit handlers of the parent


def _watch(worker: Any, pipe: Any, at: Any) -> list[tuple[int, str, str]]:
    """What the worker reports until it ends; one that does not get on is killed."""
    said, seen, since = [], -1, time.monotonic()
    while True:
        try:
            if pipe.poll(0.5):
                said.append(pipe.recv())
        except EOFError:
            worker.join()
            return said
        if at.value != seen:
            seen, since = at.value, time.monotonic()
        elif time.monotonic() - since > PATIENCE + GRACE:
            os.kill(worker.pid, signal.SIGKILL)
            since = time.monotonic()


def row(what: str, counts: Counter[str], command: str) -> dict[str, Any]:
    """The counts as a row of `results/hostile.json`."""
    return {"what": what, "tried": counts.total(), **{name: counts[name] for name in OUTCOMES}, "command": command}
