"""The folder in which datasets are kept, how raw files get there without the network, and the graphs read from them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.torch import save_file
from torch import Tensor
from torch_geometric.data import Data

from fgai.errors import DataError
from fgai.files import atomic_write
from fgai.readers import parse_json, read_header, read_tensors

FORMAT = 1
REMEDY = "delete it, it is made again from the raw files"


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
    if shelf := os.environ.get("FGAI_RAW"):
        copy_missing(Path(shelf) / raw, root / raw)


def copy_missing(there: Path, here: Path) -> None:
    """Copy the files of a folder that another does not have, each whole or not at all."""
    for source in there.iterdir() if there.is_dir() else ():
        if source.is_file() and not (here / source.name).exists():
            with atomic_write(here / source.name) as half:
                shutil.copyfile(source, half)


def digests(raw: Path) -> dict[str, str]:
    """The SHA-256 of each file of a folder, by name."""
    found = {}
    for path in sorted(raw.iterdir()) if raw.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def keep(path: Path, data: Data, raw: Mapping[str, str]) -> None:
    """Write the tensors of a graph, with the digests of the raw files that it was read from."""
    tensors = {name: value.contiguous() for name, value in data.to_dict().items() if isinstance(value, Tensor)}
    with atomic_write(path) as half:
        save_file(tensors, str(half), {"fgai": json.dumps({"format": FORMAT, "raw": dict(raw)})})


def kept(path: Path, raw: Mapping[str, str]) -> Data | None:
    """The graph that `keep` wrote, if it was read from raw files of these digests and is whole."""
    if not raw or not path.exists():
        return None
    try:
        about = parse_json(read_header(path, REMEDY).metadata.get("fgai", "{}"), path, REMEDY)
        if about != {"format": FORMAT, "raw": dict(raw)}:
            return None
        tensors, _ = read_tensors(path, REMEDY)
    except DataError:
        return None  # it is made again
    return Data.from_dict(tensors) if _is_graph(tensors) else None


def _is_graph(tensors: Mapping[str, Tensor]) -> bool:
    x, edges, y = (tensors.get(name, torch.empty(0)) for name in ("x", "edge_index", "y"))
    nodes = len(x)
    shaped = x.dim() == 2 and x.is_floating_point() and y.shape == (nodes,) and y.dtype == edges.dtype == torch.long
    inside = edges.dim() == 2 and len(edges) == 2 and (not edges.numel() or (edges.min() >= 0 and edges.max() < nodes))
    return shaped and bool(inside)
