"""Which datasets there are, and how a name becomes a PyG `Data` with its split.

PyG's and OGB's own classes read the raw files. Everything happens in a cache folder: the `root` argument, else
`$FGAI_DATA`, else `~/.cache/fgai`. Raw files found under `$FGAI_RAW` (the same layout, may be read-only) are copied
there first; what is not found is downloaded by PyG as usual. PyG keeps what it read as pickles, which can run code: it
does so in a private folder that is deleted, and the cache holds safetensors with the SHA-256 of the raw files instead.
OGB's loader keeps its own pickles in the cache, which is out of reach here: let nobody else write there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

from torch_geometric.data import Data, Dataset
from torch_geometric.datasets import Amazon, Coauthor

from fgai.datasets.cache import bring, cache, copy_missing, digests, keep, kept, locked
from fgai.datasets.planetoid import CheckedPlanetoid, check
from fgai.datasets.split import by_index, split_links, split_nodes
from fgai.datasets.synthetic import synthetic
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
        """The graph with the paper's split."""
        raw = root / self.folder / self.part / "raw"
        bring(f"{self.folder}/{self.part}/raw", root)
        found, place = digests(raw), raw.with_name("graph.safetensors")
        if self.folder == "Planetoid":
            check(raw, found)
        data = kept(place, found)
        if data is None:
            data = self._read(raw)
            keep(place, data, digests(raw))
        return self.split(data, seed)

    def _read(self, raw: Path) -> Data:
        """The graph as PyG reads it, or downloads it, in a folder of our own: nothing that lay there is unpickled."""
        try:
            with scratch(raw.with_name("reading")) as restart_every:
                own = restart_every / self.folder / self.part / "raw"
                copy_missing(raw, own)
                data = self.reader(str(restart_every / self.folder), self.part)[0]
                copy_missing(own, raw)
        except (URLError, OSError) as error:
            raise DataError(
                f"{self.folder} {self.part}: no raw files in {raw}, and PyG could not download them ({error}); set "
                f"FGAI_RAW to a folder that has {self.folder}/{self.part}/raw"
            ) from error
        except DataError:
            raise
        except Exception as error:  # whatever PyG, numpy or a zip file says of broken files
            raise DataError(f"{raw} holds files that PyG cannot read ({error!r:.300}); delete them") from error
        assert isinstance(data, Data)
        return data


@DATASETS.register("synthetic")
def _synthetic(root: Path, seed: int) -> Data:
    """A generated power-law community graph; fgai.datasets.synthetic makes any size.

    >>> _synthetic(Path("data"), seed=0).num_nodes
    1000
    """
    return split_nodes(synthetic(seed=seed), seed)


@DATASETS.register("synthetic-links")
def _synthetic_links(root: Path, seed: int) -> Data:
    """The same graph, and which of its links are missing.

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
        raise MissingExtraError(
            "ogbn-arxiv is read by OGB's loader; install it with: pip install 'fgai[ogb]'"
        ) from error
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
        about = f"which citations are missing among those of {_name}: for the backbones that answer for pairs"
        DATASETS.add(f"{_name}-links", PyGSource(_reader, _folder, _part, split_links), about)


def load(name: str, *, seed: int = 0, root: str | Path | None = None) -> Data:
    """A dataset for node classification or, `...-links`, for link prediction, with masks to train, choose and judge by.

    The split is the paper's, 10 / 10 / 80 % of the nodes at random by `seed`; ogbn-arxiv keeps OGB's own. Of links,
    5 % are for validation and 10 % for test, and labels and masks are of pairs of nodes (`datasets.split.split_links`).

    >>> data = load("synthetic", seed=0)
    >>> [int(mask.sum()) for mask in (data.train_mask, data.val_mask, data.test_mask)]
    [100, 100, 800]
    """
    check_seed(seed)
    source, root = DATASETS[name], cache(root)
    with locked(root, name):
        return source(root, seed)
