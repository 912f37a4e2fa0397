"""The folder of downloaded datasets: raw files, and the graphs read from them as safetensors.

Cora, CiteSeer and PubMed are Python pickles, which can run code: only files with a known SHA-256 are opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.torch import save_file
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid

from fgai.errors import DataError
from fgai.files import atomic_write
from fgai.readers import parse_json, read_header, read_tensors

FORMAT = 1
REMEDY = "delete it; it is written again from the raw files"
KNOWN: dict[str, str] = parse_json(
    files("fgai.datasets").joinpath("planetoid-sha256.json").read_bytes(), "planetoid-sha256.json", "install fgai again"
)


def cache(root: str | Path | None = None) -> Path:
    """Return the cache folder: `root`, else `$FGAI_DATA`, else `~/.cache/fgai`; create it if missing."""
    folder = Path(root or os.environ.get("FGAI_DATA") or Path.home() / ".cache" / "fgai").expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def locked(root: Path, name: str) -> FileLock:
    """Return the lock of a dataset: only one process at a time reads its raw files."""
    return FileLock(root / f".{name}.lock")


def copy_raw(raw: str, root: Path) -> None:
    """Copy the files of the folder `raw` that the cache does not have from `$FGAI_RAW`."""
    if folder := os.environ.get("FGAI_RAW"):
        copy_missing(Path(folder) / raw, root / raw)


def copy_missing(source: Path, target: Path) -> None:
    """Copy the files of one folder that the other does not have, each atomically."""
    for path in source.iterdir() if source.is_dir() else ():
        if path.is_file() and not (target / path.name).exists():
            with atomic_write(target / path.name) as temporary:
                shutil.copyfile(path, temporary)


def digests(raw: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder, by name."""
    by_file = {}
    for path in sorted(raw.iterdir()) if raw.is_dir() else ():
        if path.is_file() and not path.name.startswith("."):
            with path.open("rb") as file:
                by_file[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return by_file


def check_published(raw: Path, known: Mapping[str, str]) -> None:
    """Raise `DataError` if a raw file is not the published one; `known` holds the digests of the files."""
    for name, digest in known.items():
        if name in KNOWN and digest != KNOWN[name]:
            raise DataError(
                f"{raw / name} is not the published file (its SHA-256 differs), and as a pickle it could run code; "
                "delete it and load the dataset again"
            )


class CheckedPlanetoid(Planetoid):
    """PyG's Planetoid with a check that the raw files, which are pickles, are the published ones."""

    def process(self) -> None:
        """Check all raw files, then read them as PyG does."""
        known, raw = digests(Path(self.raw_dir)), Path(self.raw_dir)
        check_published(raw, {Path(path).name: known[Path(path).name] for path in self.raw_paths})
        super().process()


def save_graph(path: Path, data: Data, raw: Mapping[str, str]) -> None:
    """Write the tensors of a graph, with the digests of the raw files that it was read from."""
    tensors = {name: value.contiguous() for name, value in data.to_dict().items() if isinstance(value, Tensor)}
    with atomic_write(path) as temporary:
        save_file(tensors, str(temporary), {"fgai": json.dumps({"format": FORMAT, "raw": dict(raw)})})


def load_graph(path: Path, raw: Mapping[str, str]) -> Data | None:
    """Return the graph that `save_graph` wrote, or None if it is not valid or has other digests.

    With `batch`, the graph of each node, it is a batch of graphs, and `y` has a label for each.
    """
    if not raw or not path.exists():
        return None
    try:
        about = parse_json(read_header(path, REMEDY).metadata.get("fgai", "{}"), path, REMEDY)
        if about != {"format": FORMAT, "raw": dict(raw)}:
            return None
        tensors, _ = read_tensors(path, REMEDY)
    except DataError:
        return None  # it is written again
    # All tensors map the same file; copies of the small ones let go of it when `x` is replaced by sparse features.
    tensors = {name: tensor if name == "x" else tensor.clone() for name, tensor in tensors.items()}
    return Data.from_dict(tensors) if _is_graph(tensors) else None


def _is_graph(tensors: Mapping[str, Tensor]) -> bool:
    x, edges, y = (tensors.get(name, torch.empty(0)) for name in ("x", "edge_index", "y"))
    nodes = len(x)
    labels = len(y) if "batch" in tensors else nodes
    shaped = x.dim() == 2 and x.is_floating_point() and y.shape == (labels,) and y.dtype == edges.dtype == torch.long
    inside = edges.dim() == 2 and len(edges) == 2 and (not edges.numel() or (edges.min() >= 0 and edges.max() < nodes))
    return shaped and bool(inside) and ("batch" not in tensors or _is_batch(tensors, nodes, labels))


def _is_batch(tensors: Mapping[str, Tensor], nodes: int, labels: int) -> bool:
    """Return whether the nodes and edges of a batch are sorted by graph, and other tensors have a row for each."""
    batch, edges = tensors["batch"], tensors["edge_index"]
    if batch.shape != (nodes,) or batch.dtype != torch.long or not len(batch):
        return False
    rows = {len(value) for name, value in tensors.items() if name not in ("edge_index", "y")}
    owner = batch[edges[0]]
    ordered = bool((batch.diff() >= 0).all() and (owner.diff() >= 0).all() and (owner == batch[edges[1]]).all())
    return ordered and int(batch.min()) >= 0 and int(batch.max()) < labels and rows <= {nodes, edges.size(1)}
