"""The folder in which datasets are kept, and how raw files get there without the network."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock


def cache(root: str | Path | None = None) -> Path:
    """The cache folder: `root`, else `$FGAI_DATA`, else `~/.cache/fgai`; made if it is not there."""
    folder = Path(root or os.environ.get("FGAI_DATA") or Path.home() / ".cache" / "fgai").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def locked(root: Path, name: str) -> FileLock:
    """Two processes that open one dataset for the first time do so one after the other."""
    return FileLock(root / f".{name}.lock")


def bring(raw: str, root: Path) -> None:
    """Copy the folder `raw` from `$FGAI_RAW` into the cache, whole or not at all, if it is not there yet."""
    shelf = os.environ.get("FGAI_RAW")
    if not shelf or (root / raw).exists() or not (Path(shelf) / raw).is_dir():
        return
    (root / raw).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as half:
        copied = Path(half) / "raw"
        shutil.copytree(Path(shelf) / raw, copied, copy_function=shutil.copyfile)
        copied.chmod(0o755)  # a read-only shelf makes read-only copies
        copied.rename(root / raw)
