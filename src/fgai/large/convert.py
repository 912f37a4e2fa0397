"""Conversion to graph stores, piece by piece: neither features nor edges need to fit into memory."""

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
from fgai.files import atomic_folder, reserve
from fgai.graph import require
from fgai.items import refuse_graphs
from fgai.large.store import ATTRIBUTES, EDGES, FORMAT, MANIFEST, DiskGraph, is_name
from fgai.progress import progress
from fgai.readers import read_array, refusal

Edges = Callable[[], Iterable[np.ndarray]]  # pieces of shape [2, n], source and target; called twice
Pieces = Iterable[np.ndarray]  # rows of an array, one piece after another
PIECE = 1_000_000  # edges of an array that are read at a time
BYTES = 16 * 2**20  # of an edge list that are read at a time; a line must be shorter
MAX_ID = 1_000_000, 100  # without `nodes`, ids are below the first plus the second times the number of edges
REMEDY = "give lines of two node ids, or .npy files that numpy.save wrote"


def write_store(
    folder: str | Path, nodes: int, edges: Edges, arrays: Mapping[str, Pieces], origin: Mapping[str, Any] | None = None
) -> DiskGraph:
    """Write a graph store from pieces of edges and attributes; memory holds one piece at a time.

    The edges are grouped by target with a counting sort in two passes. The folder appears when it is complete.

    Args:
        folder: The new folder; it must not exist.
        nodes: Number of nodes.
        edges: A function that returns pieces of the edges, [2, n] each: source and target. It is called twice.
        arrays: Pieces of each node attribute, by name; together they have one row per node.
        origin: Where the graph comes from; saved with it.

    Returns:
        The graph on disk.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "graph"
    >>> pieces = [np.array([[0], [1]]), np.array([[2], [1]])]
    >>> store = write_store(folder, 3, lambda: pieces, {"x": [np.ones((3, 4), np.float32)]})
    >>> store.num_nodes, store.num_edges, store.names
    (3, 2, ['x'])
    """
    if wrong := sorted(name for name in arrays if name in EDGES or not is_name(name)):
        raise DataError(
            f"{wrong} cannot be names of arrays; give names that are Python identifiers other than {', '.join(EDGES)}"
        )
    with atomic_folder(Path(folder)) as temporary, progress(f"writing {folder}", 2 + len(arrays)) as advance:
        start = _starts(nodes, edges)
        np.save(temporary / "start.npy", start)
        advance("degrees")
        _group_by_target(temporary, start, edges)
        advance("edges")
        for name, pieces in arrays.items():
            _write_attribute(temporary / f"{name}.npy", name, nodes, pieces)
            advance(name)
        about = {"format": FORMAT, "arrays": [*EDGES, *arrays], "origin": dict(origin or {})}
        (temporary / MANIFEST).write_text(json.dumps(about) + "\n")
    return DiskGraph(folder)


def convert(graph: Data, folder: str | Path, origin: Mapping[str, Any] | None = None) -> DiskGraph:
    """Write a PyG graph to a store: its edges, and all tensors with one row per node.

    Args:
        graph: The graph.
        folder: The new folder; it must not exist.
        origin: Where the graph comes from; saved with it.

    Returns:
        The graph on disk.

    >>> import tempfile
    >>> from fgai import datasets
    >>> convert(datasets.load("synthetic"), Path(tempfile.mkdtemp()) / "graph").num_edges
    10000
    """
    graph = one_graph(graph)
    refuse_graphs(graph, "A graph store", "keep the batch in memory")
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
    r"""Write the graph of an edge list to a store.

    Args:
        path: A text file with a source and a target per line, or an `.npy` file of shape [2, E].
        folder: The new folder; it must not exist.
        arrays: `.npy` files with one row per node, by attribute name.
        nodes: Number of nodes. By default the number of rows of the arrays, else the largest node id plus 1; an id far
            larger than the number of edges is then an error.

    Returns:
        The graph on disk.

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
                f"{arrays[name]} holds {array.dtype} of shape {list(array.shape)}; give `{name}` one row per node, of "
                f"type {', '.join(ATTRIBUTES)}"
            )
    pieces = _edge_pieces(Path(path))
    if nodes is None:
        nodes = max(map(len, mapped.values())) if mapped else _count_nodes(path, pieces)
    return write_store(folder, nodes, pieces, {name: _slices(array) for name, array in mapped.items()})


def _count_nodes(path: str | Path, pieces: Edges) -> int:
    """Return the largest node id plus 1; refuse an id that is implausibly large."""
    largest, count = -1, 0
    for piece in pieces():
        largest, count = max(largest, int(piece.max(initial=-1))), count + piece.shape[1]
    if largest >= MAX_ID[0] + MAX_ID[1] * count:
        raise DataError(
            f"{path} has the node id {largest}, but only {count} edges; number nodes from 0 without large gaps, or "
            "give their number with `nodes`"
        )
    return largest + 1


def _starts(nodes: int, edges: Edges) -> np.ndarray:
    """Return where the edges of each node begin; [N + 1]."""
    try:
        degree = np.zeros(nodes, dtype=np.int64)
    except (MemoryError, ValueError) as error:  # also for a negative number
        raise DataError(f"{nodes} nodes do not fit into memory; give the number of nodes of the graph") from error
    for piece in edges():
        if piece.size and not 0 <= int(piece.min()) <= int(piece.max()) < nodes:
            raise DataError(
                f"the edges have node ids from {int(piece.min())} to {int(piece.max())}, but there are {nodes} nodes; "
                "number nodes from 0, and give each array one row per node"
            )
        target, count = np.unique(piece[1], return_counts=True)
        degree[target] += count
    return np.concatenate([np.zeros(1, np.int64), degree.cumsum()])


def _group_by_target(folder: Path, start: np.ndarray, edges: Edges) -> None:
    """Write the source of each edge and its index in the input, grouped by target."""
    count, free, number = int(start[-1]), start[:-1].copy(), 0
    source = _create_array(folder / "source.npy", _integer_type(len(free)), (count,))
    edge = _create_array(folder / "edge.npy", _integer_type(count), (count,))
    for piece in edges():
        order = np.argsort(piece[1], kind="stable")
        target, first, size = np.unique(piece[1][order], return_index=True, return_counts=True)
        position = np.repeat(free[target] - first, size) + np.arange(len(order))
        source[position], edge[position] = piece[0][order], number + order
        free[target] += size
        number += len(order)


def _write_attribute(path: Path, name: str, nodes: int, pieces: Pieces) -> None:
    array, row = None, 0
    for piece in pieces:
        array = _create_array(path, piece.dtype, (nodes, *piece.shape[1:])) if array is None else array
        array[row : row + len(piece)] = piece[: max(nodes - row, 0)]
        row += len(piece)
    if row != nodes:
        raise DataError(f"`{name}` has {row} rows, but there are {nodes} nodes; give one row per node")


def _create_array(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Create an array on disk and reserve its space; an empty array cannot be mapped."""
    if not np.prod(shape):
        np.save(path, array := np.empty(shape, dtype))
        return array
    array = open_memmap(path, "w+", dtype, shape)
    reserve(path, path.stat().st_size)
    return array


def _integer_type(below: int) -> Any:
    """Return the smaller of int32 and int64 that holds all numbers below `below`."""
    return np.int32 if below <= np.iinfo(np.int32).max else np.int64


def _edge_pieces(path: Path) -> Edges:
    """Return a function that yields the edges of a file in pieces."""
    if path.suffix != ".npy":
        return lambda: _read_lines(path)
    ends = read_array(path, REMEDY)
    if ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
        why = f"an array of {ends.dtype} of shape {list(ends.shape)}, but integers of [2, E] are required"
        raise refusal(path, why, REMEDY)
    return lambda: (_int64(path, ends[:, first : first + PIECE]) for first in range(0, ends.shape[1], PIECE))


def _int64(path: Path, piece: np.ndarray) -> np.ndarray:
    if piece.dtype == np.uint64 and piece.size and int(piece.max()) > np.iinfo(np.int64).max:
        raise refusal(path, f"it has the node id {int(piece.max())}", REMEDY)
    return piece.astype(np.int64)


def _read_lines(path: Path) -> Iterator[np.ndarray]:
    """Yield the edges of a text file, 16 MB at a time."""
    rest = b""
    try:
        with path.open("rb") as file:
            while block := file.read(BYTES):
                text, end, rest = (rest + block).rpartition(b"\n")
                if len(rest) >= BYTES:
                    raise ValueError(f"a line of more than {BYTES} bytes")
                yield from _parse_edges(text + end)
        yield from _parse_edges(rest)
    except (OSError, ValueError, OverflowError) as error:  # also text that is not UTF-8
        raise refusal(path, error, REMEDY) from error


def _parse_edges(text: bytes) -> Iterator[np.ndarray]:
    lines = [line for line in text.decode("utf-8").splitlines() if line.partition("#")[0].strip()]
    if lines:
        yield np.loadtxt(lines, dtype=np.int64, ndmin=2, usecols=(0, 1)).T


def _slices(array: np.ndarray) -> Pieces:
    return (array[first : first + 100_000] for first in range(0, len(array), 100_000))
