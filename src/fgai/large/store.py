"""A graph on disk behind PyG's `FeatureStore` and `GraphStore`: arrays are mapped, only what is asked for is read."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import FeatureStore, GraphStore, TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout

from fgai.errors import DataError
from fgai.large.sampler import CSC

MANIFEST = "store.json"
FORMAT = 1


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
        try:
            about = json.loads((self.folder / MANIFEST).read_text())
            arrays = {name: _mapped(self.folder / f"{name}.npy") for name in about["arrays"]}
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} holds no whole graph store ({error!r}); `fgai convert` writes one") from error
        if about.get("format") != FORMAT:
            raise DataError(
                f"{folder} has format {about.get('format')}, and this fgai reads {FORMAT}; convert it again"
            )
        self.origin: Mapping[str, Any] = about.get("origin", {})  # the dataset and the seed of its split, if it says so
        self.columns = CSC(arrays.pop("start"), arrays.pop("source"), arrays.pop("edge"))
        self._arrays, self.num_nodes, self.num_edges = arrays, self.columns.num_nodes, self.columns.source.numel()

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


def _mapped(path: Path) -> Tensor:
    """An array on disk as a tensor; pages are read as they are touched, and writing to it would not reach the disk."""
    array: Any = np.load(path, mmap_mode="c", allow_pickle=False)
    if array.size and hasattr(mmap, "MADV_RANDOM"):
        array._mmap.madvise(mmap.MADV_RANDOM)  # nodes are asked for in no order: reading ahead would be wasted
    return torch.from_numpy(array)
