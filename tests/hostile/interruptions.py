"""Commands that are killed at any moment, or whose disk is full: what they leave must be whole, old or not there.

Commands run in forks of this process, which has imported everything already, so that a moment costs no start.
"""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from campaign import Finding, lasting

import fgai
from fgai import cli, saved
from fgai import launchers as launch
from fgai.bench import run
from fgai.bench.results import read_rows
from fgai.bench.run import Settings
from fgai.cli import loading as loading
from fgai.errors import FGAIError
from fgai.large import DiskGraph
from loose import loose

for _name in fgai.__all__:
    getattr(fgai, _name)  # imports it
FAST = Settings(("injection-20x20",), epochs=2)
LONGEST = 120.0  # seconds, after which a command hangs
PAGE, ROOMY = 4_096, 2**20
PLAN = """title = "A table"
backbones = ["gat"]
methods = ["vanilla"]
seeds = { synthetic = 1 }
columns = [{ heading = "F1", metric = "f1", attack = "none" }]
"""


@dataclass(frozen=True)
class Action:
    """A command, what it makes in a folder, and how that is opened: a record of it that two runs share."""

    name: str
    words: Callable[[Path], list[str]]
    made: str
    opened: Callable[[Path], Any]
    leaves: tuple[str, ...] = ()  # other files that a killed run may leave, and a finished one takes away


def _model(path: Path) -> str:
    saved.load(path)
    return hashlib.sha256((path / "weights.safetensors").read_bytes()).hexdigest()


def _graph(path: Path) -> dict[str, str]:
    DiskGraph(path)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(path.iterdir())}


def _cells(path: Path) -> list[Any]:
    rows = [row for file in sorted(path.glob("*.json")) for row in read_rows(file)]
    if wrong := [row.error for row in rows if row.error]:
        raise FGAIError(f"a cell failed: {wrong[0].splitlines()[0]}")
    return [(row.key, row.metrics) for row in rows]


@cache
def start() -> Path:
    """A trained model, and a plan, that the commands begin from."""
    home = lasting("start")
    (home / "plan.toml").write_text(PLAN)
    code, said = forked(["train", "--data", "synthetic", "--out", str(home / "model"), "--epochs", "3"], home)
    assert code == 0, said
    return home


def _ranks(folder: Path) -> list[str]:
    size = ["--epochs", "3", "--batch", "256", "--fanout", "5,5"]
    return ["fit", str(start() / "model"), "--out", str(folder / "made"), "--ranks", "2", *size]


ACTIONS = [
    Action(
        "train",
        lambda folder: ["train", "--data", "synthetic", "--out", str(folder / "made"), "--epochs", "6"],
        "made",
        _model,
    ),
    Action(
        "fit",
        lambda folder: [
            *("fit", str(start() / "model"), "--out", str(folder / "made"), "--epochs", "12"),
            *("--checkpoint", str(folder / "run")),
        ],
        "made",
        _model,
        ("run",),
    ),
    Action("convert", lambda folder: ["convert", "synthetic", "--out", str(folder / "made")], "made", _graph),
    Action(
        "bench",
        lambda folder: ["bench", str(start() / "plan.toml"), "--out", str(folder / "made")],
        "made",
        _cells,
    ),
    Action("a fit on two ranks", _ranks, "made", _model, ("made.run",)),
]


def begin(words: list[str], folder: Path) -> int:
    """Start a command in a fork and a session of its own; its process id. What it says is in `folder/said`."""
    child = os.fork()
    if child:
        return child
    try:
        os.setsid()
        said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1), os.dup2(said, 2)
        os.environ["FGAI_DATA"] = str(folder)
        torch.set_num_threads(1)
        _quick()
        cli.app(words, prog_name="fgai")
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def _quick() -> None:
    """Few epochs and one attack in the bench; ranks are forks as well."""
    plain: Any = launch.LaunchConfig
    launch.LaunchConfig = lambda **given: plain(**{**given, "start_method": "fork"})
    run_plan: Any = run.run
    loose(run).run = lambda *args, **given: run_plan(*args, **{**given, "settings": FAST})


def ended(child: int, seconds: float) -> int | None:
    """The exit code of a process, or None if it still runs after so long."""
    until = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.002)


def stop(child: int) -> None:
    """`kill -9` of a process and of all that it started."""
    os.kill(child, signal.SIGKILL)  # at once: what it writes takes milliseconds
    for entry in Path("/proc").iterdir():  # ranks may have left its group, not its session
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[3]) == child:
                os.kill(int(entry.name), signal.SIGKILL)
        except (OSError, ValueError):
            continue
    os.waitpid(child, 0)


def forked(
    words: list[str], folder: Path, meanwhile: Callable[[int], Any] = lambda child: None
) -> tuple[int | None, str]:
    """Run a command to its end: its exit code, None if it hangs, and what it said."""
    talk = Path(tempfile.mkdtemp(prefix="hostile-talk"))
    try:
        child = begin(words, talk)
        meanwhile(child)
        code = ended(child, LONGEST)
        if code is None:
            stop(child)
        return code, (talk / "said").read_text(errors="replace") if (talk / "said").exists() else ""
    finally:
        shutil.rmtree(talk, ignore_errors=True)


@cache
def undisturbed(action: Action) -> tuple[Any, float, int]:
    """What a run makes that nobody disturbs, how long it takes, and how many bytes it writes."""
    with tempfile.TemporaryDirectory(prefix="hostile-whole") as name:
        since = time.monotonic()
        code, said = forked(action.words(Path(name)), Path(name))
        took = time.monotonic() - since
        assert code == 0, said
        size = sum(-(-file.stat().st_size // PAGE) * PAGE for file in Path(name).rglob("*") if file.is_file())
        return action.opened(Path(name) / action.made), took, size


@dataclass(frozen=True)
class Interruption:
    """An action that is interrupted `count` times, each at another moment or with another size of disk."""

    name: str
    action: Action
    once: Callable[[Action, random.Random], tuple[str, str]]

    def run(self, count: int) -> tuple[Counter[str], list[Finding]]:
        """What came of each."""
        counts: Counter[str] = Counter()
        findings = []
        for seed in range(count):
            outcome, said = self.once(self.action, random.Random(f"{self.name}/{seed}"))
            counts[outcome] += 1
            if outcome not in ("worked", "refused"):
                findings.append(Finding(self.name, seed, outcome, said))
        return counts, findings


def kill_once(action: Action, rng: random.Random) -> tuple[str, str]:
    """Kill a run, look at what it left, run it again: the same bits, and no file too many."""
    whole, took, _ = undisturbed(action)
    with tempfile.TemporaryDirectory(prefix="hostile-kill") as name, tempfile.TemporaryDirectory() as talk:
        folder = Path(name)
        older = _older(action, folder) if rng.random() < 0.5 else None
        child = begin(action.words(folder), Path(talk))
        if _moment(child, folder, rng, took * 1.1):
            stop(child)
        if left := _half(action, folder, (None, older, whole)):
            return "silent", left
        if action.made == "made" and action.name == "convert" and (folder / "made").exists():
            shutil.rmtree(folder / "made")  # it writes to a new folder only
        code, said = forked(action.words(folder), folder)
        if code != 0:
            return ("hung" if code is None else "raw"), f"the rerun: {said[-200:]!r}"
        if action.opened(folder / action.made) != whole:
            return "silent", "the rerun ended with other bits"
        extra = [str(file.relative_to(folder)) for file in folder.rglob(".*") if file.suffix != ".lock"]
        return ("silent", f"temporary files stay: {extra}") if extra else ("worked", "")


def _moment(child: int, folder: Path, rng: random.Random, longest: float) -> bool:
    """Wait for the moment to kill: any one, or one at which the run is writing; False if it has ended before."""
    if rng.random() < 0.5:
        return ended(child, rng.random() * longest) is None
    seen, changes, until = _files(folder), rng.randrange(1, 5), time.monotonic() + longest
    while changes and time.monotonic() < until:
        if (now := _files(folder)) != seen:
            seen, changes = now, changes - 1
        if ended(child, 0) is not None:
            return False
    return ended(child, rng.choice((0.0, 0.0, 0.002))) is None


def _files(folder: Path) -> list[str]:
    return [name for root, _, names in os.walk(folder) for name in (root, *names)]


def _older(action: Action, folder: Path) -> Any:
    """An older model where the new one will be."""
    if action.opened is not _model:
        return None
    shutil.copytree(start() / "model", folder / action.made)
    return action.opened(folder / action.made)


def _half(action: Action, folder: Path, allowed: tuple[Any, ...]) -> str:
    """What is wrong with what a killed run left, if it can be opened or cannot."""
    place = folder / action.made
    if not place.exists():
        return ""
    try:
        found = action.opened(place)
    except FGAIError as error:
        return f"neither the old nor the new one is there: {error}" if allowed[1] is not None else ""
    except Exception as error:
        return f"{type(error).__name__} in opening what was left: {error}"
    if action.opened is _cells:
        return "" if all(row in allowed[2] for row in found) else "rows that no whole run has"
    return "" if found in allowed else "neither the old nor the new one opens"


@contextmanager
def small_disk(size: int) -> Iterator[Path]:
    """A folder that holds so many bytes and no more."""
    with tempfile.TemporaryDirectory(prefix="hostile-disk") as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", name], check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "-l", name], check=True)


def _fill(child: int, folder: Path, later: float, pages: int) -> None:
    """After a while all of the disk but a few pages is taken by someone else."""
    until = time.monotonic() + later
    while time.monotonic() < until and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.002)
    with suppress(OSError), (folder / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(PAGE)) == PAGE:
            continue
    os.truncate(folder / "filler", max(0, (folder / "filler").stat().st_size - pages * PAGE))


def fill_once(action: Action, rng: random.Random) -> tuple[str, str]:
    """A run on a disk that is too small, or that fills up meanwhile, ends in a sentence, and leaves nothing half."""
    whole, took, size = undisturbed(action)
    pages = rng.randrange(1, max(2, int(size / PAGE * 1.1) + 2))
    later = rng.random() * took if rng.random() < 0.6 else None
    with small_disk(pages * PAGE if later is None else ROOMY + 2 * size) as folder:
        code, said = forked(action.words(folder), folder, lambda child: later and _fill(child, folder, later, pages))
        if code is None:
            return "hung", said[-200:]
        if "Traceback" in said or code < 0:
            return "raw" if code >= 0 else "crashed", (said.strip().splitlines() or [str(code)])[-1][:200]
        if code == 0:
            return ("worked", "") if action.opened(folder / action.made) == whole else ("silent", "it is not whole")
        if left := _half(action, folder, (None, None, whole)):
            return "silent", left
        return ("refused", "") if said.strip() else ("raw", "it said nothing")


KILL = [Interruption(f"kill -9 during {action.name}", action, kill_once) for action in ACTIONS]
DISK = [Interruption(f"disk full during {action.name}", action, fill_once) for action in ACTIONS]
