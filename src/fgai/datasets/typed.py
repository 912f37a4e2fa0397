"""Datasets with several types of nodes and edges, each a PyG `HeteroData`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_geometric.datasets import IMDB

from fgai.datasets.cache import copy_raw
from fgai.datasets.catalogue import DATASETS, read_raw


@dataclass(frozen=True)
class TypedSource:
    """A typed graph that a PyG class reads from `folder/raw`, with its own split."""

    reader: Callable[[str], Any]
    folder: str
    class_names: tuple[str, ...]

    def __call__(self, root: Path, seed: int) -> Any:
        """Return the `HeteroData`; its split does not depend on the seed."""
        copy_raw(f"{self.folder}/raw", root)
        data = read_raw(root / self.folder / "raw", lambda folder, _: self.reader(folder)[0], self.folder, "")
        data.class_names = list(self.class_names)
        return data


DATASETS.add(
    "imdb",
    TypedSource(IMDB, "IMDB", ("action", "comedy", "drama")),
    "4,278 movies in 3 genres, 2,081 directors and 5,257 actors, as a `HeteroData` with its own split",
)
