"""A graph on disk with the interfaces of PyG's `FeatureStore` and `GraphStore`; its arrays are memory-mapped."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch_geometric.data import FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from fgai.errors import DataError
from fgai.large.sampler import CSC
from fgai.readers import read_array, read_json
from fgai.records import record

MANIFEST = "store.json"
FORMAT = 1
EDGES = ("start", "source", "edge")  # the arrays of the edges; without `edge`, ids are positions
ATTRIBUTES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
PIECE = 1_000_000  # entries of an array that are checked at a time
REMEDY = "write a store with `fgai convert`"


@dataclass(frozen=True)
class About:
    """The manifest of a store: its arrays, and the dataset and the seed of its split, if known."""

    arrays: tuple[str, ...]
    format: int
    edge_arrays: tuple[str, ...] = ()
    origin: Mapping[str, str | int] = field(default_factory=dict)


class DiskGraph(FeatureStore, GraphStore):
    """A graph in a folder that `write_store` wrote: its edges as CSC and one array per node attribute, memory-mapped.

    Give it to `Loader`, or to PyG's loaders as `(store, store)`. It is read only.

    Args:
        folder: The folder of the store.

    Raises:
        DataError: If the folder holds no complete, consistent store.

    >>> import tempfile
    >>> from fgai import datasets
    >>> from fgai.large.convert import convert
    >>> folder = Path(tempfile.mkdtemp()) / "graph"
    >>> store = convert(datasets.load("synthetic"), folder)
    >>> store.num_nodes, store.num_edges, sorted(store.names)
    (1000, 10000, ['test_mask', 'train_mask', 'val_mask', 'x', 'y'])
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        GraphStore.__init__(self)
        self.folder = Path(folder)
        if not (self.folder / MANIFEST).exists():
            raise DataError(f"{folder} holds no complete graph store (no {MANIFEST}); {REMEDY}")
        raw = read_json(self.folder / MANIFEST, REMEDY)
        if isinstance(raw, dict) and raw.get("format") != FORMAT:
            raise DataError(
                f"{folder} has format {raw.get('format')!s:.20}, but this version reads {FORMAT}; convert it again"
            )
        about = record(About, raw, self.folder / MANIFEST, REMEDY)
        if wrong := [name for name in (*about.arrays, *about.edge_arrays) if not is_name(name)]:
            raise DataError(f"{folder} has an array {wrong[0]!r:.60}, which is not a valid name; {REMEDY}")
        if missing := {*EDGES[:2]} - {*about.arrays}:
            raise DataError(f"{folder} lacks {', '.join(sorted(missing))}, which hold the edges; {REMEDY}")
        arrays = {name: _map_array(self.folder / f"{name}.npy") for name in about.arrays}
        self.origin = about.origin
        self.columns = CSC(arrays.pop("start"), arrays.pop("source"), arrays.pop("edge", None))
        self._edge_arrays = {name: _map_array(self.folder / f"{name}.npy") for name in about.edge_arrays}
        self._check(arrays)
        self._arrays, self.num_nodes, self.num_edges = arrays, self.columns.num_nodes, self.columns.source.numel()

    def _check(self, arrays: Mapping[str, Tensor]) -> None:
        """Check sizes, types and ids of the arrays; entries are read piece by piece."""
        start, source, edge = self.columns.start, self.columns.source, self.columns.edge
        nodes, count = start.numel() - 1, source.numel()
        lists = (start, source) if edge is None else (start, source, edge)
        if any(array.dim() != 1 or array.is_floating_point() or array.dtype == torch.bool for array in lists):
            raise self._invalid("the arrays of its edges are not lists of integers")
        if start.dtype != torch.long or nodes < 0 or lists[-1].numel() != count:
            raise self._invalid(f"{start.numel()} starts of {start.dtype}, {count} sources, {lists[-1].numel()} edges")
        if int(start[0]) != 0 or int(start[-1]) != count or not _is_increasing(start):
            raise self._invalid(f"its starts do not increase from 0 to {count}")
        if not _in_range(source, nodes) or (edge is not None and not _in_range(edge, count)):
            raise self._invalid(f"its edges have ids outside of {nodes} nodes and {count} edges")
        sized = [(*one, nodes, "nodes") for one in arrays.items()]
        sized += [(*one, count, "edges") for one in self._edge_arrays.items()]
        for name, array, rows, what in sized:
            if array.dim() < 1 or len(array) != rows:
                raise self._invalid(f"`{name}` has the shape {list(array.shape)}, but there are {rows} {what}")
            if array.dtype == torch.bool and not _in_range(array.view(torch.uint8), 2):
                raise self._invalid(f"`{name}` holds values other than true and false")
            if not _has_type_of(name, array):
                raise self._invalid(f"`{name}` is {array.dtype} of shape {list(array.shape)}")

    def _invalid(self, why: str) -> DataError:
        return DataError(f"{self.folder} holds no complete graph store ({why}); convert it again")

    @property
    def names(self) -> list[str]:
        """The names of the node attributes."""
        return list(self._arrays)

    def attribute(self, name: str) -> Tensor:
        """Return an attribute of all nodes, memory-mapped."""
        if name not in self._arrays:
            raise DataError(f"{self.folder} has no `{name}`, only {sorted(self._arrays)}; convert a graph with it")
        return self._arrays[name]

    @property
    def edge_names(self) -> list[str]:
        """The names of the edge attributes."""
        return list(self._edge_arrays)

    def edge_attribute(self, name: str) -> Tensor:
        """Return an attribute of all edges, by edge id, memory-mapped."""
        if name not in self._edge_arrays:
            raise DataError(f"{self.folder} has no `{name}` of edges, only {self.edge_names}; convert a graph with it")
        return self._edge_arrays[name]

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        array, index = self._arrays.get(str(attr.attr_name)), attr.index
        if array is None or index is None or (isinstance(index, slice) and index == slice(None)):
            return array
        return array[index] if isinstance(index, slice) else array.index_select(0, torch.as_tensor(index))

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        return tuple(self._arrays[str(attr.attr_name)].shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Return the attributes to load into a batch."""
        return [TensorAttr(group_name=None, attr_name=name) for name in self._arrays]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> Any:
        return (self.columns.source, self.columns.start) if edge_attr.layout == EdgeLayout.CSC else None

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Return the one edge type, in CSC layout."""
        size = (self.num_nodes, self.num_nodes)
        return [EdgeAttr(cast(Any, None), EdgeLayout.CSC, is_sorted=True, size=size)]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise self._read_only()

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise self._read_only()

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise self._read_only()

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise self._read_only()

    def _read_only(self) -> DataError:
        return DataError(f"{self.folder} is read only; write a new store with `fgai convert`")


def is_name(name: str) -> bool:
    """Return whether an array can have this name: an identifier, which is also a safe file name.

    >>> is_name("train_mask"), is_name("../x"), is_name("/x")
    (True, False, False)
    """
    return name.isidentifier() and len(name.encode()) <= 200


def _map_array(path: Path) -> Tensor:
    """Return an array on disk as a memory-mapped tensor; writing to it does not change the file."""
    array: Any = read_array(path, REMEDY, mode="c")
    if array.dtype.name not in ATTRIBUTES:
        raise DataError(f"{path} holds {array.dtype}, but a store holds {', '.join(ATTRIBUTES)}; {REMEDY}")
    if array.size and hasattr(mmap, "MADV_RANDOM"):
        array._mmap.madvise(mmap.MADV_RANDOM)  # access is random: read-ahead would be wasted
    return torch.from_numpy(array)


def _has_type_of(name: str, array: Tensor) -> bool:
    """Return whether an array named `x`, `y` or `..._mask` can be features [N, F], labels [N] or a mask [N]."""
    if name == "x":
        return array.is_floating_point() and array.dim() == 2
    if name == "y":
        return not array.is_floating_point() and array.dtype != torch.bool and array.dim() == 1
    return not name.endswith("_mask") or (array.dtype == torch.bool and array.dim() == 1)


def _is_increasing(start: Tensor) -> bool:
    pieces = (start[first : first + PIECE + 1] for first in range(0, max(start.numel() - 1, 1), PIECE))
    return all(bool((piece.diff() >= 0).all()) for piece in pieces)


def _in_range(array: Tensor, size: int) -> bool:
    """Return whether all entries are in 0 ... size - 1."""
    pieces = array.split(PIECE) if array.numel() else ()
    return all(int(piece.min()) >= 0 and int(piece.max()) < size for piece in pieces)
