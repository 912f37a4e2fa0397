"""Files and folders are written whole or not at all: beside their place first, then renamed into it.

What is half written is locked by its writer. The next writer at the same place takes away what no living process holds.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fgai.errors import DataError, OutputError

HALF = ".half"  # the ending of what is not whole yet
TRIAL = 64 * 2**10  # bytes that are written to see whether there is room


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """A temporary file to write to, which becomes `path` at the end of the block unless an error ends it."""
    with _writing(path), _half(path, folder=False) as half:
        yield half
        half.chmod(0o644)
        half.replace(path)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` at the end of the block, unless an error or a crash ends it."""
    if folder.exists():
        raise DataError(f"{folder} is there already; name a new folder, or take that one away")
    with _writing(folder), _half(folder, folder=True) as half:
        yield half
        os.sync()
        half.chmod(0o755)
        half.rename(folder)


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A private folder beside `folder` that is gone at the end of the block."""
    with _half(folder, folder=True) as half:
        yield half


@contextmanager
def alone(folder: Path, *, reading: bool = False) -> Iterator[None]:
    """In a folder whose files belong together: one writer, or readers, at a time; others wait."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_SH if reading else fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def try_output(path: str | Path, *, folder: bool = False) -> None:
    """Refuse a file (or `folder`) that could not be written: a wrong kind, no permission, no room. Nothing stays.

    >>> try_output("/proc/report.html")
    Traceback (most recent call last):
    fgai.errors.OutputError: /proc/report.html cannot be written (...); name another place, or make room
    """
    path = Path(path)
    with _writing(path):
        if path.exists() and path.is_dir() != folder:
            raise OSError(errno.EEXIST, "it is a file there already" if folder else "it is a folder")
        there = path if folder and path.exists() else path.parent
        while not there.exists():
            there = there.parent
        with tempfile.TemporaryFile(dir=there) as trial:
            trial.write(bytes(TRIAL))


def reserve(path: Path, size: int) -> None:
    """Ask for the room of a file before it is mapped: a full disk is an error now, not a crash later."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """What the system says when it cannot write, in a sentence."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OutputError):
            raise
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OutputError(f"{path} cannot be written ({why}); name another place, or make room") from error


@contextmanager
def _half(path: Path, *, folder: bool) -> Iterator[Path]:
    """A new file or folder beside `path`, locked while the block runs, and gone after it unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path)
    half, handle = _locked(path, folder)
    try:
        yield half
    finally:
        _remove(half)
        os.close(handle)


def _locked(path: Path, folder: bool) -> tuple[Path, int]:
    """A new half of `path` and the handle of its lock; made again if it was swept before it was locked."""
    place: dict[str, Any] = {"dir": path.parent, "prefix": f".{path.name[:200]}.", "suffix": HALF}
    while True:
        if folder:
            half = Path(tempfile.mkdtemp(**place))
            handle = os.open(half, os.O_RDONLY)
        else:
            handle, name = tempfile.mkstemp(**place)
            half = Path(name)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if half.exists() and os.path.samestat(half.stat(), os.fstat(handle)):
            return half, handle
        os.close(handle)


def _sweep(path: Path) -> None:
    """Take away the halves of `path` that no living process has locked."""
    start = f".{path.name[:200]}."
    for half in path.parent.iterdir():
        random = half.name.removeprefix(start).removesuffix(HALF)
        if half.name != f"{start}{random}{HALF}" or len(random) != 8 or half.is_symlink():
            continue
        try:
            handle = os.open(half, os.O_RDONLY)
        except OSError:  # gone, or another user's
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(half)
        except OSError:  # its writer lives
            pass
        finally:
            os.close(handle)


def _remove(half: Path) -> None:
    if half.is_dir():
        shutil.rmtree(half, ignore_errors=True)
    else:
        half.unlink(missing_ok=True)


def checked_suffix(path: Path, endings: Iterable[str], what: str) -> str:
    """The ending of a file's name, if `what` can be saved as such a file; others are refused.

    >>> checked_suffix(Path("curves.svg"), (".svg", ".png"), "a figure")
    '.svg'
    """
    *others, last = endings
    if path.suffix not in (*others, last):
        known = f"{', '.join(others)} or {last}" if others else last
        raise DataError(f"{what} is saved as {known}, and {path} ends in {path.suffix or 'nothing'}")
    return path.suffix


def jsonable(value: Any) -> Any:
    """The same record for JSON: numbers that are not finite become None, tuples lists.

    >>> jsonable({"loss": (1.0, math.nan)})
    {'loss': [1.0, None]}
    """
    if isinstance(value, dict):
        return {name: jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: Any) -> None:
    """`content` as JSON, sorted and indented, so that two versions can be compared line by line."""
    with atomic_write(path) as half:
        half.write_text(json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n")
