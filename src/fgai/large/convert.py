"""Graph stores written piece by piece, so that neither features nor edges need to fit into memory."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import open_memmap
from torch import Tensor
from torch_geometric.data import Data

from fgai.errors import DataError
from fgai.graph import require
from fgai.large.store import FORMAT, MANIFEST, DiskGraph
from fgai.progress import progress

Edges = Callable[[], Iterable[np.ndarray]]  # [2, n] a piece, source above target; asked for twice
Pieces = Iterable[np.ndarray]  # rows of an array, one piece after another
LINES = 1_000_000  # of an edge list, at a time
EDGES = ("start", "source", "edge")  # the arrays that a store keeps its edges in


def write_store(
    folder: str | Path, nodes: int, edges: Edges, arrays: Mapping[str, Pieces], origin: Mapping[str, Any] | None = None
) -> DiskGraph:
    """Write a graph of `nodes` nodes: edges and attributes come in pieces, and a piece is all that memory holds.

    Edges are grouped by target with a counting sort of two passes. The folder appears when all is written. `origin` is
    kept with it.
    """
    if wrong := sorted(name for name in arrays if name in EDGES or not name.isidentifier()):
        raise DataError(f"{wrong} cannot be names of arrays; {', '.join(EDGES)} hold the edges, name others by a word")
    with whole_folder(Path(folder)) as half, progress(f"writing {folder}", 2 + len(arrays)) as advance:
        start = _starts(nodes, edges)
        np.save(half / "start.npy", start)
        advance("degrees")
        _group(half, start, edges)
        advance("edges")
        for name, pieces in arrays.items():
            _fill(half / f"{name}.npy", name, nodes, pieces)
            advance(name)
        about = {"format": FORMAT, "arrays": [*EDGES, *arrays], "origin": dict(origin or {})}
        (half / MANIFEST).write_text(json.dumps(about) + "\n")
    return DiskGraph(folder)


def convert(graph: Data, folder: str | Path, origin: Mapping[str, Any] | None = None) -> DiskGraph:
    """Write a PyG graph: its edges, every tensor that has a row per node, and where it comes from."""
    nodes, ends = int(graph.num_nodes or 0), require(graph, "edge_index").cpu().numpy()
    tensors = {name: value for name, value in graph.to_dict().items() if isinstance(value, Tensor)}
    rows = {name: value for name, value in tensors.items() if name != "edge_index" and graph.is_node_attr(name)}
    arrays = {name: [(value.to_dense() if value.is_sparse else value).cpu().numpy()] for name, value in rows.items()}
    return write_store(folder, nodes, lambda: [ends], arrays, origin)


def convert_edge_list(path: str | Path, folder: str | Path, arrays: Mapping[str, str | Path] = {}) -> DiskGraph:
    r"""Write the graph of a text file with a source and a target per line, or of a `.npy` file of shape [2, E].

    `arrays` are `.npy` files with a row per node, by name; without one there are as many nodes as the edges name.

    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "edges.txt").write_text("0 1\n2 1\n")
    >>> convert_edge_list(folder / "edges.txt", folder / "graph").columns.source.tolist()
    [0, 2]
    """
    try:
        mapped = {name: np.load(file, mmap_mode="r", allow_pickle=False) for name, file in arrays.items()}
        pieces = _pieces(Path(path))
        most = max((int(piece.max()) for piece in pieces() if piece.size), default=-1)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; give lines of two node ids, or .npy files that numpy reads") from error
    nodes = max([most + 1, *(len(array) for array in mapped.values())])
    return write_store(folder, nodes, pieces, {name: _slices(array) for name, array in mapped.items()})


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` at the end of the block, unless an error or a crash ends it."""
    if folder.exists():
        raise DataError(f"{folder} is there already; name a new folder, or take that one away")
    folder.parent.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        yield half
        os.sync()
        half.chmod(0o755)
        half.rename(folder)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _starts(nodes: int, edges: Edges) -> np.ndarray:
    """Where each node's edges begin; [N + 1]."""
    degree = np.zeros(nodes, dtype=np.int64)
    for piece in edges():
        if piece.size and not 0 <= int(piece.min()) <= int(piece.max()) < nodes:
            raise DataError(
                f"edges name the nodes {int(piece.min())} to {int(piece.max())}, and there are {nodes}; "
                "number nodes from 0, and give every array a row for each"
            )
        target, count = np.unique(piece[1], return_counts=True)
        degree[target] += count
    return np.concatenate([np.zeros(1, np.int64), degree.cumsum()])


def _group(half: Path, start: np.ndarray, edges: Edges) -> None:
    """Put each edge where its target's edges are: its source, and the number it had in the list."""
    count, free, number = int(start[-1]), start[:-1].copy(), 0
    source = _array(half / "source.npy", _integers(len(free)), (count,))
    edge = _array(half / "edge.npy", _integers(count), (count,))
    for piece in edges():
        order = np.argsort(piece[1], kind="stable")
        target, first, many = np.unique(piece[1][order], return_index=True, return_counts=True)
        place = np.repeat(free[target] - first, many) + np.arange(len(order))
        source[place], edge[place] = piece[0][order], number + order
        free[target] += many
        number += len(order)


def _fill(path: Path, name: str, nodes: int, pieces: Pieces) -> None:
    array, row = None, 0
    for piece in pieces:
        array = _array(path, piece.dtype, (nodes, *piece.shape[1:])) if array is None else array
        array[row : row + len(piece)] = piece[: nodes - row]
        row += len(piece)
    if row != nodes:
        raise DataError(f"`{name}` has {row} rows, and there are {nodes} nodes; give one for each")


def _array(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A new array on disk; without entries there is nothing to map."""
    return open_memmap(path, "w+", dtype, shape) if np.prod(shape) else _saved(path, np.empty(shape, dtype))


def _saved(path: Path, array: np.ndarray) -> np.ndarray:
    np.save(path, array)
    return array


def _integers(below: int) -> Any:
    return np.int32 if below <= np.iinfo(np.int32).max else np.int64


def _pieces(path: Path) -> Edges:
    """The edges of a file, a million at a time."""
    if path.suffix == ".npy":
        ends = np.load(path, mmap_mode="r", allow_pickle=False)
        if ends.ndim != 2 or len(ends) != 2 or not np.issubdtype(ends.dtype, np.integer):
            raise ValueError(f"an array of {ends.dtype} of shape {list(ends.shape)}, and integers of [2, E] are needed")
        return lambda: (ends[:, first : first + LINES] for first in range(0, ends.shape[1], LINES))

    def lines() -> Iterator[np.ndarray]:
        with path.open() as file:
            while some := list(itertools.islice(file, LINES)):
                yield np.loadtxt(some, dtype=np.int64, ndmin=2, usecols=(0, 1)).T

    return lines


def _slices(array: np.ndarray) -> Pieces:
    return (array[first : first + 100_000] for first in range(0, len(array), 100_000))
