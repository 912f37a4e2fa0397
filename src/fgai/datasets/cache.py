"""The folder in which datasets are kept, and how raw files get there without the network."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from filelock import FileLock

from fgai.files import atomic_write


def cache(root: str | Path | None = None) -> Path:
    """The cache folder: `root`, else `$FGAI_DATA`, else `~/.cache/fgai`; made if it is not there."""
    folder = Path(root or os.environ.get("FGAI_DATA") or Path.home() / ".cache" / "fgai").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def locked(root: Path, name: str) -> FileLock:
    """Two processes that open one dataset for the first time do so one after the other."""
    return FileLock(root / f".{name}.lock")


def bring(raw: str, root: Path) -> None:
    """Copy the files of the folder `raw` from `$FGAI_RAW` that the cache does not have, each whole or not at all."""
    shelf = os.environ.get("FGAI_RAW")
    if not shelf or not (Path(shelf) / raw).is_dir():
        return
    for source in (Path(shelf) / raw).iterdir():
        if source.is_file() and not (root / raw / source.name).exists():
            with atomic_write(root / raw / source.name) as half:
                shutil.copyfile(source, half)
