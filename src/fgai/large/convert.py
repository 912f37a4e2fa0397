"""Conversion to graph stores, piece by piece: neither features nor edges need to fit into memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
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
MAX_ID = 1_000_000, 100  # without `nodes`, ids are below the first plus the second times the number of edges
REMEDY = "give .npy files that numpy.save wrote"


def write_store(
    folder: str | Path,
    nodes: int,
    edges: Edges,
    arrays: Mapping[str, Pieces],
    edge_arrays: Mapping[str, Pieces] = {},
    origin: Mapping[str, Any] | None = None,
) -> DiskGraph:
    """Write a graph store from pieces of edges and attributes; memory holds one piece at a time.

    The edges are grouped by target with a counting sort in two passes. The folder appears when it is complete.

    Args:
        folder: The new folder; it must not exist.
        nodes: Number of nodes.
        edges: A function that returns pieces of the edges, [2, n] each: source and target. It is called twice.
        arrays: Pieces of each node attribute, by name; together they have one row per node.
        edge_arrays: Pieces of each edge attribute, by name, in the order of the edges.
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
    check_names([*arrays, *edge_arrays])
    steps = 2 + len(arrays) + len(edge_arrays)
    with atomic_folder(Path(folder)) as temporary, progress(f"writing {folder}", steps) as advance:
        start = _starts(nodes, edges)
        np.save(temporary / "start.npy", start)
        advance("degrees")
        _group_by_target(temporary, start, edges)
        advance("edges")
        for what, count, named in (("nodes", nodes, arrays), ("edges", int(start[-1]), edge_arrays)):
            for name, pieces in named.items():
                write_attribute(temporary / f"{name}.npy", name, count, pieces, what)
                advance(name)
        write_manifest(temporary, [*EDGES, *arrays], [*edge_arrays], origin)
    return DiskGraph(folder)


def check_names(names: Sequence[str]) -> None:
    """Raise unless arrays can have these names, each once."""
    if wrong := sorted(name for name in names if name in EDGES or not is_name(name)):
        raise DataError(
            f"{wrong} cannot be names of arrays; give names that are Python identifiers other than {', '.join(EDGES)}"
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{twice} are names of two arrays; give each its own name")


def write_manifest(
    folder: Path, arrays: Sequence[str], edge_arrays: Sequence[str], origin: Mapping[str, Any] | None = None
) -> None:
    """Write the manifest, which completes a store."""
    about = {"format": FORMAT, "arrays": arrays, "edge_arrays": edge_arrays, "origin": dict(origin or {})}
    (folder / MANIFEST).write_text(json.dumps(about) + "\n")


def convert(graph: Data, folder: str | Path, origin: Mapping[str, Any] | None = None) -> DiskGraph:
    """Write a PyG graph to a store: its edges, and all tensors with one row per node or edge.

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
    tensors.pop("edge_index")
    if half := sorted(name for name, value in tensors.items() if value.dtype == torch.bfloat16):
        raise DataError(f"{', '.join(half)}: bfloat16 has no form on disk; convert a graph with .float() features")
    arrays, edge_arrays = (
        {
            name: [(value.to_dense() if value.is_sparse else value).cpu().numpy()]
            for name, value in tensors.items()
            if belongs(name)
        }
        for belongs in (graph.is_node_attr, graph.is_edge_attr)
    )
    return write_store(folder, nodes, lambda: [ends], arrays, edge_arrays, origin)


def convert_arrays(
    edges: str | Path, folder: str | Path, arrays: Mapping[str, str | Path] = {}, nodes: int | None = None
) -> DiskGraph:
    """Write the graph of `.npy` files to a store.

    Args:
        edges: An `.npy` file of integers of shape [2, E]: source and target.
        folder: The new folder; it must not exist.
        arrays: `.npy` files with one row per node, by attribute name.
        nodes: Number of nodes. By default the number of rows of the arrays, else the largest node id plus 1; an id far
            larger than the number of edges is then an error.

    Returns:
        The graph on disk.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> np.save(folder / "edges.npy", [[0, 2], [1, 1]])
    >>> convert_arrays(folder / "edges.npy", folder / "graph").columns.source.tolist()
    [0, 2]
    """
    mapped, pieces = map_arrays(arrays), _edge_pieces(Path(edges))
    if nodes is None:
        nodes = max(map(len, mapped.values())) if mapped else _count_nodes(edges, pieces)
    return write_store(folder, nodes, pieces, {name: slices(array) for name, array in mapped.items()})


def map_arrays(arrays: Mapping[str, str | Path]) -> dict[str, np.ndarray]:
    """Return `.npy` files with one row per node, memory-mapped."""
    mapped = {name: read_array(file, REMEDY) for name, file in arrays.items()}
    for name, array in mapped.items():
        if array.ndim < 1 or array.dtype.name not in ATTRIBUTES:
            raise DataError(
                f"{arrays[name]} holds {array.dtype} of shape {list(array.shape)}; give `{name}` one row per node, of "
                f"type {', '.join(ATTRIBUTES)}"
            )
    return mapped


def _count_nodes(path: str | Path, pieces: Edges) -> int:
    """Return the largest node id plus 1."""
    largest, count = -1, 0
    for piece in pieces():
        largest, count = max(largest, int(piece.max(initial=-1))), count + piece.shape[1]
    return plausible_count(path, largest, count)


def plausible_count(path: str | Path, largest: int, edges: int) -> int:
    """Return the largest node id plus 1; raise if it is implausibly large for the number of edges."""
    if largest >= MAX_ID[0] + MAX_ID[1] * edges:
        raise DataError(
            f"{path} has the node id {largest}, but only {edges} edges; number nodes from 0 without large gaps, or "
            "give their number with `nodes`"
        )
    return largest + 1


def _starts(nodes: int, edges: Edges) -> np.ndarray:
    """Return where the edges of each node begin; [N + 1]."""
    degree = no_edges(nodes)
    for piece in edges():
        if piece.size:
            check_ids(int(piece.min()), int(piece.max()), nodes)
        target, count = np.unique(piece[1], return_counts=True)
        degree[target] += count
    return first_edges(degree)


def no_edges(nodes: int) -> np.ndarray:
    """Return a degree of 0 for each node."""
    try:
        return np.zeros(nodes, dtype=np.int64)
    except (MemoryError, ValueError) as error:  # also for a negative number
        raise DataError(f"{nodes} nodes do not fit into memory; give the number of nodes of the graph") from error


def first_edges(degree: np.ndarray) -> np.ndarray:
    """Return where the edges of each node begin, if they are grouped by node; [N] -> [N + 1]."""
    return np.concatenate([np.zeros(1, np.int64), degree.cumsum()])


def check_ids(smallest: int, largest: int, nodes: int) -> None:
    """Raise unless the node ids of edges are positions of nodes."""
    if not 0 <= smallest <= largest < nodes:
        raise DataError(
            f"the edges have node ids from {smallest} to {largest}, but there are {nodes} nodes; number nodes from 0, "
            "and give each array one row per node"
        )


def _group_by_target(folder: Path, start: np.ndarray, edges: Edges) -> None:
    """Write the source of each edge and its index in the input, grouped by target."""
    count, free, number = int(start[-1]), start[:-1].copy(), 0
    source = create_array(folder / "source.npy", integer_type(len(free)), (count,))
    edge = create_array(folder / "edge.npy", integer_type(count), (count,))
    for piece in edges():
        order = np.argsort(piece[1], kind="stable")
        target, first, size = np.unique(piece[1][order], return_index=True, return_counts=True)
        position = np.repeat(free[target] - first, size) + np.arange(len(order))
        source[position], edge[position] = piece[0][order], number + order
        free[target] += size
        number += len(order)


def write_attribute(path: Path, name: str, count: int, pieces: Pieces, of: str = "nodes") -> None:
    """Write the pieces of an attribute of nodes or edges; together they must have `count` rows."""
    array, row = None, 0
    for piece in pieces:
        array = create_array(path, piece.dtype, (count, *piece.shape[1:])) if array is None else array
        array[row : row + len(piece)] = piece[: max(count - row, 0)]
        row += len(piece)
    if row != count:
        raise DataError(f"`{name}` has {row} rows, but there are {count} {of}; give one row for each")


def create_array(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """Create an array on disk and reserve its space; an empty array cannot be mapped."""
    if not np.prod(shape):
        np.save(path, array := np.empty(shape, dtype))
        return array
    array = open_memmap(path, "w+", dtype, shape)
    reserve(path, path.stat().st_size)
    return array


def integer_type(below: int) -> Any:
    """Return the smaller of int32 and int64 that holds all numbers below `below`."""
    return np.int32 if below <= np.iinfo(np.int32).max else np.int64


def _edge_pieces(path: Path) -> Edges:
    """Return a function that yields the edges of an `.npy` file in pieces."""
    ends = read_array(path, REMEDY)
    if ends.ndim != 2 or len(ends) != 2 or ends.dtype.kind not in "iu":
        why = f"an array of {ends.dtype} of shape {list(ends.shape)}, but integers of [2, E] are required"
        raise refusal(path, why, REMEDY)
    return lambda: (_int64(path, ends[:, first : first + PIECE]) for first in range(0, ends.shape[1], PIECE))


def _int64(path: Path, piece: np.ndarray) -> np.ndarray:
    if piece.dtype == np.uint64 and piece.size and int(piece.max()) > np.iinfo(np.int64).max:
        raise refusal(path, f"it has the node id {int(piece.max())}", REMEDY)
    return piece.astype(np.int64)


def slices(array: np.ndarray) -> Pieces:
    """Return the rows of an array in pieces."""
    return (array[first : first + 100_000] for first in range(0, len(array), 100_000))
