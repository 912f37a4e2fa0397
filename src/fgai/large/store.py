"""A graph on disk behind PyG's `FeatureStore` and `GraphStore`: arrays are mapped, only what is asked for is read."""

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
EDGES = ("start", "source", "edge")  # the arrays that a store keeps its edges in
ATTRIBUTES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
PIECE = 1_000_000  # entries of an array that are checked at a time
REMEDY = "`fgai convert` writes a store"


@dataclass(frozen=True)
class About:
    """What the manifest of a store says: its arrays, and the dataset and the seed of its split, if it knows them."""

    arrays: tuple[str, ...]
    format: int
    origin: Mapping[str, str | int] = field(default_factory=dict)


class DiskGraph(FeatureStore, GraphStore):
    """A folder that `write_store` made: a CSC graph and one array per attribute of a node, memory-mapped.

    Give it to `Loader`, or to PyG's own as `(store, store)`. It is read only.

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
            raise DataError(f"{folder} holds no whole graph store (no {MANIFEST}); `fgai convert` writes one")
        raw = read_json(self.folder / MANIFEST, REMEDY)
        if isinstance(raw, dict) and raw.get("format") != FORMAT:
            raise DataError(
                f"{folder} has format {raw.get('format')!s:.20}, and this fgai reads {FORMAT}; convert it again"
            )
        about = record(About, raw, self.folder / MANIFEST, REMEDY)
        if wrong := [name for name in about.arrays if not is_name(name)]:
            raise DataError(f"{folder} names an array {wrong[0]!r:.60}, which is no name; {REMEDY}")
        if missing := {*EDGES} - {*about.arrays}:
            raise DataError(f"{folder} has no {', '.join(sorted(missing))}, which hold its edges; {REMEDY}")
        arrays = {name: _mapped(self.folder / f"{name}.npy") for name in about.arrays}
        self.origin = about.origin
        self.columns = CSC(arrays.pop("start"), arrays.pop("source"), arrays.pop("edge"))
        self._check(arrays)
        self._arrays, self.num_nodes, self.num_edges = arrays, self.columns.num_nodes, self.columns.source.numel()

    def _check(self, arrays: Mapping[str, Tensor]) -> None:
        """Refuse arrays that do not fit each other: sizes, types, and ids; entries are read piece by piece."""
        start, source, edge = self.columns.start, self.columns.source, self.columns.edge
        assert edge is not None
        nodes, count = start.numel() - 1, source.numel()
        if any(
            array.dim() != 1 or array.is_floating_point() or array.dtype == torch.bool
            for array in (start, source, edge)
        ):
            raise self._broken("its edges are no lists of integers")
        if start.dtype != torch.long or nodes < 0 or edge.numel() != count:
            raise self._broken(f"{start.numel()} starts of {start.dtype}, {count} sources and {edge.numel()} edges")
        if int(start[0]) != 0 or int(start[-1]) != count or not _rising(start):
            raise self._broken(f"its starts do not rise from 0 to {count}")
        if not _within(source, nodes) or not _within(edge, count):
            raise self._broken(f"its edges name others than {nodes} nodes and {count} edges")
        for name, array in arrays.items():
            if array.dim() < 1 or len(array) != nodes:
                raise self._broken(f"`{name}` has the shape {list(array.shape)}, and there are {nodes} nodes")
            if array.dtype == torch.bool and not _within(array.view(torch.uint8), 2):
                raise self._broken(f"`{name}` holds what is neither true nor false")
            if not _can_be(name, array):
                raise self._broken(f"`{name}` is {array.dtype} of shape {list(array.shape)}")

    def _broken(self, why: str) -> DataError:
        return DataError(f"{self.folder} holds no whole graph store ({why}); convert it again")

    @property
    def names(self) -> list[str]:
        """The attributes of a node."""
        return list(self._arrays)

    def whole(self, name: str) -> Tensor:
        """An attribute of all nodes, still on disk."""
        if name not in self._arrays:
            raise DataError(f"{self.folder} has no `{name}`, only {sorted(self._arrays)}; convert a graph that has it")
        return self._arrays[name]

    def _get_tensor(self, attr: TensorAttr) -> Tensor | None:
        array, index = self._arrays.get(str(attr.attr_name)), attr.index
        if array is None or index is None or (isinstance(index, slice) and index == slice(None)):
            return array
        return array[index] if isinstance(index, slice) else array.index_select(0, torch.as_tensor(index))

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...]:
        return tuple(self._arrays[str(attr.attr_name)].shape)

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """What a batch is filled with."""
        return [TensorAttr(group_name=None, attr_name=name) for name in self._arrays]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> Any:
        return (self.columns.source, self.columns.start) if edge_attr.layout == EdgeLayout.CSC else None

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """One kind of edge, as columns."""
        size = (self.num_nodes, self.num_nodes)
        return [EdgeAttr(cast(Any, None), EdgeLayout.CSC, is_sorted=True, size=size)]

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        raise self._refusal()

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        raise self._refusal()

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise self._refusal()

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise self._refusal()

    def _refusal(self) -> DataError:
        return DataError(f"{self.folder} is read only; `fgai convert` writes a new store")


def is_name(name: str) -> bool:
    """Whether an array may be called so: a word, which names a file in the folder of its store and no other.

    >>> is_name("train_mask"), is_name("../x"), is_name("/x")
    (True, False, False)
    """
    return name.isidentifier() and len(name.encode()) <= 200


def _mapped(path: Path) -> Tensor:
    """An array on disk as a tensor; pages are read as they are touched, and writing to it would not reach the disk."""
    array: Any = read_array(path, REMEDY, mode="c")
    if array.dtype.name not in ATTRIBUTES:
        raise DataError(f"{path} holds {array.dtype}, and a store keeps {', '.join(ATTRIBUTES)}; {REMEDY}")
    if array.size and hasattr(mmap, "MADV_RANDOM"):
        array._mmap.madvise(mmap.MADV_RANDOM)  # nodes are asked for in no order: reading ahead would be wasted
    return torch.from_numpy(array)


def _can_be(name: str, array: Tensor) -> bool:
    """Whether this can be the features [N, F], the labels [N] or a mask [N], if it is called so."""
    if name == "x":
        return array.is_floating_point() and array.dim() == 2
    if name == "y":
        return not array.is_floating_point() and array.dtype != torch.bool and array.dim() == 1
    return not name.endswith("_mask") or (array.dtype == torch.bool and array.dim() == 1)


def _rising(start: Tensor) -> bool:
    pieces = (start[first : first + PIECE + 1] for first in range(0, max(start.numel() - 1, 1), PIECE))
    return all(bool((piece.diff() >= 0).all()) for piece in pieces)


def _within(array: Tensor, size: int) -> bool:
    """Whether every entry is one of 0 ... size - 1."""
    pieces = array.split(PIECE) if array.numel() else ()
    return all(int(piece.min()) >= 0 and int(piece.max()) < size for piece in pieces)
