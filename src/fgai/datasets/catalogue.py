"""The datasets by name, each a PyG `Data` with its split.

The classes of PyG and OGB read the raw files. Everything is stored in a cache folder: the `root` argument, else
`$FGAI_DATA`, else `~/.cache/fgai`. Raw files under `$FGAI_RAW` (the same layout, may be read-only) are copied there
first; PyG downloads the others. PyG saves processed graphs as pickles, which can run code. Here it does so in a private
folder that is deleted, and the cache holds safetensors with the SHA-256 of the raw files instead. OGB's loader keeps
its own pickles in the cache, so nobody else should be able to write there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

from torch_geometric.data import Data, Dataset
from torch_geometric.datasets import Amazon, Coauthor

from fgai.datasets.cache import (
    CheckedPlanetoid,
    cache,
    check_published,
    copy_missing,
    copy_raw,
    digests,
    load_graph,
    locked,
    save_graph,
)
from fgai.datasets.split import by_index, split_links, split_nodes
from fgai.datasets.synthetic import synthetic, synthetic_words
from fgai.errors import DataError, MissingExtraError
from fgai.files import scratch
from fgai.registry import Registry
from fgai.settings import check_seed

DatasetReader = Callable[[Path, int], Data]
DATASETS: Registry[DatasetReader] = Registry("dataset")


@dataclass(frozen=True)
class PyGSource:
    """A dataset that a PyG class reads from `folder/part/raw`."""

    reader: Callable[[str, str], Dataset]
    folder: str
    part: str
    split: Callable[[Data, int], Data] = split_nodes

    def __call__(self, root: Path, seed: int) -> Data:
        """Return the graph with the split of the paper."""
        raw = root / self.folder / self.part / "raw"
        copy_raw(f"{self.folder}/{self.part}/raw", root)
        known, path = digests(raw), raw.with_name("graph.safetensors")
        if self.folder == "Planetoid":
            check_published(raw, known)
        data = load_graph(path, known)
        if data is None:
            data = read_raw(raw, lambda folder, part: self.reader(folder, part)[0], self.folder, self.part)
            save_graph(path, data, digests(raw))
        return self.split(data, seed)


def read_raw(raw: Path, reader: Callable[[str, str], Any], folder: str, part: str) -> Any:
    """Let PyG read or download `folder/part` in a new folder, so that it unpickles no existing file."""
    try:
        with scratch(raw.with_name("reading")) as temporary:
            own = temporary / folder / part / "raw"
            copy_missing(raw, own)
            data = reader(str(temporary / folder), part)
            copy_missing(own, raw)
    except (URLError, OSError) as error:
        raise DataError(
            f"{folder} {part}: no raw files in {raw}, and PyG could not download them ({error}); set FGAI_RAW to a "
            f"folder that has {folder}/{part}/raw"
        ) from error
    except DataError:
        raise
    except Exception as error:  # of any kind that PyG, numpy or zipfile raises
        raise DataError(f"{raw} holds files that PyG cannot read ({error!r:.300}); delete them") from error
    return data


@DATASETS.register("synthetic")
def _synthetic(root: Path, seed: int) -> Data:
    """A generated power-law community graph; `fgai.datasets.synthetic` generates any size.

    >>> _synthetic(Path("data"), seed=0).num_nodes
    1000
    """
    return split_nodes(synthetic(seed=seed), seed)


@DATASETS.register("synthetic-words")
def _synthetic_words(root: Path, seed: int) -> Data:
    """A generated community graph whose features are words, for `fgai demo`.

    >>> _synthetic_words(Path("data"), seed=0).num_features
    200
    """
    return split_nodes(synthetic_words(seed=seed), seed)


@DATASETS.register("synthetic-links")
def _synthetic_links(root: Path, seed: int) -> Data:
    """The same graph for link prediction.

    >>> _synthetic_links(Path("data"), seed=0).edge_label_index.shape[0]
    2
    """
    return split_links(synthetic(seed=seed), seed)


@DATASETS.register("ogbn-arxiv")
def _arxiv(root: Path, seed: int) -> Data:
    """169,343 papers, 1,166,243 citations, 40 subjects; OGB's own split.

    >>> _arxiv(Path("data"), seed=0).num_nodes  # doctest: +SKIP
    169343
    """
    try:
        from ogb.nodeproppred import PygNodePropPredDataset  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("ogbn-arxiv needs OGB's loader; install it with: pip install 'fgai[ogb]'") from error
    dataset = PygNodePropPredDataset("ogbn-arxiv", str(root))
    data, parts = dataset[0], dataset.get_idx_split()
    data.y = data.y.flatten()
    return by_index(data, parts["train"], parts["valid"], parts["test"])


for _name, _reader, _folder, _part, _about in (
    ("amazon-photo", Amazon, "Amazon", "Photo", "7,650 products bought together, 8 kinds"),
    ("amazon-computers", Amazon, "Amazon", "Computers", "13,752 products bought together, 10 kinds"),
    ("coauthor-cs", Coauthor, "Coauthor", "CS", "18,333 authors, 15 fields"),
    ("coauthor-physics", Coauthor, "Coauthor", "Physics", "34,493 authors, 5 fields"),
    ("cora", CheckedPlanetoid, "Planetoid", "Cora", "2,708 papers and their citations, 7 subjects"),
    ("citeseer", CheckedPlanetoid, "Planetoid", "CiteSeer", "3,327 papers and their citations, 6 subjects"),
    ("pubmed", CheckedPlanetoid, "Planetoid", "PubMed", "19,717 papers and their citations, 3 subjects"),
):
    DATASETS.add(_name, PyGSource(_reader, _folder, _part), _about)
    if _folder == "Planetoid":
        about = f"link prediction on {_name}, for the backbones that end in -links"
        DATASETS.add(f"{_name}-links", PyGSource(_reader, _folder, _part, split_links), about)


def load(name: str, *, seed: int = 0, root: str | Path | None = None) -> Data:
    """Return a dataset for node classification, for link prediction if its name ends in `-links`, or of graphs.

    The split is that of the paper: 10 / 10 / 80 % of the nodes at random; ogbn-arxiv keeps OGB's split. Of links, 5 %
    are for validation and 10 % for test, and labels and masks are of node pairs (`datasets.split.split_links`). Graphs
    (`mutag`, `mutagenicity`, `benzene`, `ba-2motifs`) are one PyG `Batch` with a split of 70 / 10 / 20 %. `imdb` is a
    `HeteroData` with its own split.

    Args:
        name: One of `DATASETS`.
        seed: Random seed of the split.
        root: The cache folder; by default `$FGAI_DATA`, else `~/.cache/fgai`.

    Returns:
        The graph, or the batch of graphs, with `train_mask`, `val_mask` and `test_mask`.

    >>> data = load("synthetic", seed=0)
    >>> [int(mask.sum()) for mask in (data.train_mask, data.val_mask, data.test_mask)]
    [100, 100, 800]
    """
    check_seed(seed)
    source, root = DATASETS[name], cache(root)
    with locked(root, name):
        return source(root, seed)
