"""Graph stores written piece by piece, so that neither features nor edges need to fit into memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor
from torch_geometric.data import Data

from fgai.checks import one_graph
from fgai.errors import DataError
from fgai.files import reserve, whole_folder
from fgai.graph import require
from fgai.large.store import ATTRIBUTES, EDGES, FORMAT, MANIFEST, DiskGraph, is_name
from fgai.progress import progress
from fgai.readers import read_array, refusal

Edges = Callable[[], Iterable[np.ndarray]]  # [2, n] a piece, source above target; asked for twice
Pieces = Iterable[np.ndarray]  # rows of an array, one piece after another
PIECE = 1_000_000  # edges of an array, at a time
BYTES = 16 * 2**20  # of an edge list, at a time; a line is shorter
SPARE = 1_000_000, 100  # without `nodes`, ids stay below the first plus the second times the number of edges
REMEDY = "give lines of two node ids, or .npy files that numpy.save wrote"


def write_store(
    folder: str | Path, nodes: int, edges: Edges, arrays: Mapping[str, Pieces], origin: Mapping[str, Any] | None = None
) -> DiskGraph:
    """Write a graph of `nodes` nodes: edges and attributes come in pieces, and a piece is all that memory holds.

    Edges are grouped by target with a counting sort of two passes. The folder appears when all is written. `origin` is
    kept with it.
    """
    if wrong := sorted(name for name in arrays if name in EDGES or not is_name(name)):
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
    graph = one_graph(graph)
    nodes, ends = int(graph.num_nodes or 0), require(graph, "edge_index").cpu().numpy()
    tensors = {name: value for name, value in graph.to_dict().items() if isinstance(value, Tensor)}
    rows = {name: value for name, value in tensors.items() if name != "edge_index" and graph.is_node_attr(name)}
    if half := sorted(name for name, value in rows.items() if value.dtype == torch.bfloat16):
        raise DataError(f"{', '.join(half)}: bfloat16 has no form on disk; convert a graph with .float() features")
    arrays = {name: [(value.to_dense() if value.is_sparse else value).cpu().numpy()] for name, value in rows.items()}
    return write_store(folder, nodes, lambda: [ends], arrays, origin)


def convert_edge_list(
    path: str | Path, folder: str | Path, arrays: Mapping[str, str | Path] = {}, nodes: int | None = None
) -> DiskGraph:
    r"""Write the graph of a text file with a source and a target per line, or of a `.npy` file of shape [2, E].

    `arrays` are `.npy` files with a row per node, by name. There are `nodes` nodes, else as many as the arrays have
    rows, else as many as the edges name; then an id far above the number of edges is refused as a mistake.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "edges.txt").write_text("0 1\n2 1\n")
    >>> convert_edge_list(folder / "edges.txt", folder / "graph").columns.source.tolist()
    [0, 2]
    """
    mapped = {name: read_array(file, REMEDY) for name, file in arrays.items()}
    for name, array in mapped.items():
        if array.ndim < 1 or array.dtype.name not in ATTRIBUTES:
            raise DataError(
                f"{arrays[name]} holds {array.dtype} of shape {list(array.shape)}; give `{name}` a row per node, of "
                f"{', '.join(ATTRIBUTES)}"
            )
    pieces = _pieces(Path(path))
    if nodes is None:
        nodes = max(map(len, mapped.values())) if mapped else _named(path, pieces)
    return write_store(folder, nodes, pieces, {name: _slices(array) for name, array in mapped.items()})


def _named(path: str | Path, pieces: Edges) -> int:
    """As many nodes as edges name, unless the largest id cannot be meant."""
    most, count = -1, 0
    for piece in pieces():
        most, count = max(most, int(piece.max(initial=-1))), count + piece.shape[1]
    if most >= SPARE[0] + SPARE[1] * count:
        raise DataError(
            f"{path} names the node {most}, and has {count} edges; number nodes from 0 without large gaps, or say how "
            "many there are with `nodes`"
        )
    return most + 1


def _starts(nodes: int, edges: Edges) -> np.ndarray:
    """Where each node's edges begin; [N + 1]."""
    try:
        degree = np.zeros(nodes, dtype=np.int64)
    except (MemoryError, ValueError) as error:  # also a negative number, and one that no address has
        raise DataError(f"{nodes} nodes do not fit into memory; give the number of nodes that there are") from error
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
        array[row : row + len(piece)] = piece[: max(nodes - row, 0)]
        row += len(piece)
    if row != nodes:
        raise DataError(f"`{name}` has {row} rows, and there are {nodes} nodes; give one for each")


def _array(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A new array on disk, whose room is taken at once; without entries there is nothing to map."""
    if not np.prod(shape):
        return _saved(path, np.empty(shape, dtype))
    array = open_memmap(path, "w+", dtype, shape)
    reserve(path, path.stat().st_size)
    return array


def _saved(path: Path, array: np.ndarray) -> np.ndarray:
    np.save(path, array)
    return array


def _integers(below: int) -> Any:
    return np.int32 if below <= np.iinfo(np.int32).max else np.int64


def _pieces(path: Path) -> Edges:
    """The edges of a file, a million at a time."""
    if path.suffix != ".npy":
        return lambda: _lines(path)
    ends = read_array(path, REMEDY)
    if ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
        why = f"an array of {ends.dtype} of shape {list(ends.shape)}, and integers of [2, E] are needed"
        raise refusal(path, why, REMEDY)
    return lambda: (_int64(path, ends[:, first : first + PIECE]) for first in range(0, ends.shape[1], PIECE))


def _int64(path: Path, piece: np.ndarray) -> np.ndarray:
    if piece.dtype == np.uint64 and piece.size and int(piece.max()) > np.iinfo(np.int64).max:
        raise refusal(path, f"it names the node {int(piece.max())}", REMEDY)
    return piece.astype(np.int64)


def _lines(path: Path) -> Iterator[np.ndarray]:
    """The edges of a text file, 16 MB at a time."""
    rest = b""
    try:
        with path.open("rb") as file:
            while some := file.read(BYTES):
                text, end, rest = (rest + some).rpartition(b"\n")
                if len(rest) >= BYTES:
                    raise ValueError(f"a line of more than {BYTES} bytes")
                yield from _edges(text + end)
        yield from _edges(rest)
    except (OSError, ValueError, OverflowError) as error:  # also what is not UTF-8
        raise refusal(path, error, REMEDY) from error


def _edges(text: bytes) -> Iterator[np.ndarray]:
    lines = [line for line in text.decode("utf-8").splitlines() if line.partition("#")[0].strip()]
    if lines:
        yield np.loadtxt(lines, dtype=np.int64, ndmin=2, usecols=(0, 1)).T


def _slices(array: np.ndarray) -> Pieces:
    return (array[first : first + 100_000] for first in range(0, len(array), 100_000))
