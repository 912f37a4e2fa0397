"""Atomic writes: files and folders are written under a temporary name in the same folder, then renamed.

The writer locks its temporary file. The next writer of the same path removes temporary files that no process locks.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fgai.errors import DataError, MissingExtraError, OutputError

SUFFIX = ".half"  # of temporary files
TRIAL = 64 * 2**10  # bytes written to test for free space


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` at the end of the block, unless an error ends it."""
    with _output_errors(path), _temporary(path, folder=False) as temporary:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(path)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` at the end of the block, unless an error ends it."""
    if folder.exists():
        raise DataError(f"{folder} exists already; give a new folder, or delete that one")
    with _output_errors(folder), _temporary(folder, folder=True) as temporary:
        yield temporary
        os.sync()
        temporary.chmod(0o755)
        temporary.rename(folder)


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Yield a private folder beside `folder`; it is deleted at the end of the block."""
    with _temporary(folder, folder=True) as temporary:
        yield temporary


@contextmanager
def locked_folder(folder: Path, *, reading: bool = False) -> Iterator[None]:
    """Lock a folder for one writer, or for any number of readers; other processes wait."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # file systems without locks
            fcntl.flock(handle, fcntl.LOCK_SH if reading else fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def try_output(path: str | Path, *, folder: bool = False) -> None:
    """Raise `OutputError` if a file (or `folder`) cannot be written: wrong kind, no permission, no space.

    It leaves no file behind.

    >>> try_output("/proc/report.html")
    Traceback (most recent call last):
    fgai.errors.OutputError: /proc/report.html cannot be written (...); give another path, or free some space
    """
    path = Path(path)
    with _output_errors(path):
        if path.exists() and path.is_dir() != folder:
            raise OSError(errno.EEXIST, "it is a file" if folder else "it is a folder")
        parent = path if folder and path.exists() else path.parent
        while not parent.exists():
            parent = parent.parent
        with tempfile.TemporaryFile(dir=parent) as trial:
            trial.write(bytes(TRIAL))


def reserve(path: Path, size: int) -> None:
    """Reserve the space of a file before it is mapped, so that a full disk is an error and not a crash."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size)


@contextmanager
def _output_errors(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into an `OutputError`."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OutputError):
            raise
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OutputError(f"{path} cannot be written ({why}); give another path, or free some space") from error


@contextmanager
def _temporary(path: Path, *, folder: bool) -> Iterator[Path]:
    """Yield a new file or folder beside `path`, locked during the block and deleted after it unless renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path)
    temporary, handle = _create_locked(path, folder)
    try:
        yield temporary
    finally:
        _remove(temporary)
        os.close(handle)


def _create_locked(path: Path, folder: bool) -> tuple[Path, int]:
    """Create a temporary file and lock it; create another if a second writer removed it before it was locked."""
    options: dict[str, Any] = {"dir": path.parent, "prefix": f".{path.name[:200]}.", "suffix": SUFFIX}
    while True:
        if folder:
            temporary = Path(tempfile.mkdtemp(**options))
            try:
                handle = os.open(temporary, os.O_RDONLY)
            except FileNotFoundError:  # removed before it was opened
                continue
        else:
            handle, name = tempfile.mkstemp(**options)
            temporary = Path(name)
        fcntl.flock(handle, fcntl.LOCK_EX)
        if temporary.exists() and os.path.samestat(temporary.stat(), os.fstat(handle)):
            return temporary, handle
        os.close(handle)


def _remove_abandoned(path: Path) -> None:
    """Remove the temporary files of `path` that no running process has locked."""
    prefix = f".{path.name[:200]}."
    for file in path.parent.iterdir():
        random = file.name.removeprefix(prefix).removesuffix(SUFFIX)
        if file.name != f"{prefix}{random}{SUFFIX}" or len(random) != 8 or file.is_symlink():
            continue
        try:
            handle = os.open(file, os.O_RDONLY)
        except OSError:  # already removed, or of another user
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(file)
        except OSError:  # its writer is running
            pass
        finally:
            os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def checked_suffix(path: Path, suffixes: Iterable[str], what: str) -> str:
    """Return the suffix of a path; raise `DataError` if `what` cannot be saved with it.

    >>> checked_suffix(Path("curves.svg"), (".svg", ".png"), "a figure")
    '.svg'
    """
    *others, last = suffixes
    if path.suffix not in (*others, last):
        known = f"{', '.join(others)} or {last}" if others else last
        raise DataError(f"{what} is saved as {known}, but {path} ends in {path.suffix or 'nothing'}; give such a name")
    return path.suffix


def jsonable(value: Any) -> Any:
    """Return a value that JSON can hold: numbers that are not finite become None, tuples become lists.

    >>> jsonable({"loss": (1.0, math.nan)})
    {'loss': [1.0, None]}
    """
    if isinstance(value, dict):
        return {name: jsonable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: Any) -> None:
    """Write `content` as JSON, sorted and indented, so that two versions can be compared line by line."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n")


def pandas_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Any:
    """Return a pandas table; pandas is imported when it is needed."""
    try:
        import pandas  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("a table needs pandas; install it with: pip install pandas") from error
    return pandas.DataFrame(rows, columns=list(columns))
