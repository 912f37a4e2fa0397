"""Datasets of graphs with a label each, as one PyG `Batch` with a split: molecules, and generated graphs with motifs.

Where the reasons of a label are known, `edge_mask` [E] marks the edges, or `node_mask` [N] the nodes: the NO2 and NH2
groups of `mutagenicity`, the rings of `benzene`, the motif of `ba-2motifs`. Reports show `class_names`,
`element_names` (the columns of `x`) and `bond_names` (the columns of `edge_attr`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot
from torch_geometric.data import Batch, Data
from torch_geometric.datasets import ExplainerDataset, TUDataset
from torch_geometric.datasets.graph_generator import BAGraph
from torch_geometric.datasets.motif_generator import CycleMotif, HouseMotif

from fgai.datasets.cache import copy_raw, digests, load_graph, save_graph
from fgai.datasets.catalogue import DATASETS, read_raw
from fgai.datasets.reasons import DEGREES
from fgai.datasets.split import split_graphs
from fgai.errors import DataError
from fgai.graph import degree, locate, require
from fgai.seeding import seeded

Graphs = Mapping[str, Tensor]  # a batch by the names of its tensors; `batch` is the graph of each node


@dataclass(frozen=True)
class GraphSource:
    """A dataset of graphs that `reader` reads from the folder `folder/part/raw`, or `folder` without a part."""

    reader: Callable[[Path], Graphs]
    folder: str
    part: str = ""
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of the classes, elements and bonds

    def __call__(self, root: Path, seed: int) -> Data:
        """Return one batch of all graphs, with a seeded split: 70 / 10 / 20 %."""
        place = f"{self.folder}/{self.part}/raw" if self.part else self.folder
        copy_raw(place, root)
        path = (root / place).with_name(f"{self.part or self.folder}-graphs.safetensors")
        batch = load_graph(path, digests(root / place))
        if batch is None:
            batch = Data.from_dict(dict(self.reader(root / place)))
            save_graph(path, batch, digests(root / place))
        return named(split_graphs(separated(batch.to_dict()), seed), **self.names)


def named(data: Data, **names: tuple[str, ...]) -> Data:
    """Return the batch with these names, which reports show."""
    for key, values in names.items():
        data[key] = list(values)
    return data


def separated(graphs: Graphs) -> list[Data]:
    """Return the graphs of a batch whose nodes and edges are sorted by graph.

    >>> both = {"x": torch.ones(3, 1), "edge_index": torch.tensor([[0, 1], [0, 2]]), "y": torch.tensor([0, 1])}
    >>> [graph.edge_index.tolist() for graph in separated({**both, "batch": torch.tensor([0, 1, 1])})]
    [[[0], [0]], [[0], [1]]]
    """
    batch, edges, count = graphs["batch"], graphs["edge_index"], len(graphs["y"])
    nodes = degree(batch, count)
    first, sizes = (nodes.cumsum(0) - nodes).tolist(), nodes.tolist()
    per_edge = degree(batch[edges[0]], count).tolist()
    parts = {"edge_index": edges.split(per_edge, dim=1), "y": graphs["y"].split(1)}
    for name, value in graphs.items():
        if name not in ("batch", "ptr", *parts):
            parts[name] = value.split(sizes if len(value) == len(batch) else per_edge)
    split = [Data(**dict(zip(parts, values, strict=True))) for values in zip(*parts.values(), strict=True)]
    for graph, start in zip(split, first, strict=True):
        graph.edge_index = require(graph, "edge_index") - start
    return split


def _tu(name: str) -> Callable[[Path], Graphs]:
    """Return a reader of a dataset of the TUDataset collection (Morris et al. 2020)."""

    def read(raw: Path) -> Graphs:
        dataset: Any = read_raw(raw, lambda folder, part: list(TUDataset(folder, part)), "TUDataset", name)
        batch: Any = Batch.from_data_list(dataset)
        graphs = {key: batch[key] for key in ("x", "edge_index", "edge_attr", "y", "batch")}
        truth = raw / f"{name}_edge_gt.txt"
        if truth.exists():  # PyG sorts the edges, so the labels of the file are found by the two ends
            ends = torch.from_numpy(np.loadtxt(raw / f"{name}_A.txt", delimiter=",", dtype=np.int64).T) - 1
            labels = torch.from_numpy(np.loadtxt(truth, dtype=np.int64)) > 0
            graphs["edge_mask"] = labels[locate(graphs["edge_index"], ends)]
        return graphs

    return read


def _benzene(folder: Path) -> Graphs:
    """Return the molecules of `benzene.npz` (Sanchez-Lengeling et al. 2020), which holds plain arrays."""
    path = folder / "benzene.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: torch.from_numpy(np.asarray(archive[name])) for name in archive.files}
        atoms, bonds = arrays["atoms"].long(), arrays["bonds"].long()
        start = (atoms.cumsum(0) - atoms).repeat_interleave(bonds)
        return {
            "x": arrays["node"].float(),
            "edge_index": torch.stack([arrays["source"].long() + start, arrays["target"].long() + start]),
            "edge_attr": arrays["edge"].float(),
            "y": arrays["y"].long(),
            "batch": torch.arange(len(atoms)).repeat_interleave(atoms),
            "node_mask": arrays["truth"].bool(),
        }
    except (OSError, EOFError, ValueError, KeyError, RuntimeError, BadZipFile) as error:
        raise DataError(
            f"{path} does not hold the molecules of Benzene ({error!r:.200}); set FGAI_RAW to a folder that has "
            "Benzene/benzene.npz"
        ) from error


@DATASETS.register("ba-2motifs")
def _two_motifs(root: Path, seed: int) -> Data:
    """Generated: 1,000 Barabasi-Albert graphs of 20 nodes with a house or a cycle of 5, with known true edges.

    As BA-2motifs (Luo et al. 2020), but nodes have their degree, one-hot, as a feature.

    >>> _two_motifs(Path("data"), seed=0).num_graphs
    1000
    """
    graphs = []
    with seeded(seed):
        for label, motif in enumerate((HouseMotif(), CycleMotif(5))):
            generated: Any = ExplainerDataset(BAGraph(20, 1), motif, num_motifs=1, num_graphs=500)
            for one in generated:
                edges, inside = require(one, "edge_index"), require(one, "edge_mask") > 0
                x = one_hot(degree(edges[1], int(one.num_nodes or 0)).clamp(max=DEGREES), DEGREES + 1).float()
                graphs.append(Data(x=x, edge_index=edges, y=torch.tensor([label]), edge_mask=inside))
    return named(split_graphs(graphs, seed), class_names=("house", "cycle"))


MUTAG = {
    "class_names": ("not mutagenic", "mutagenic"),
    "element_names": ("C", "N", "O", "F", "I", "Cl", "Br"),
    "bond_names": ("aromatic", "single", "double", "triple"),
}
MUTAGENICITY = {
    "class_names": ("mutagenic", "not mutagenic"),
    "element_names": ("C", "O", "Cl", "H", "N", "F", "Br", "S", "P", "I", "Na", "K", "Li", "Ca"),
    "bond_names": ("single", "double", "triple"),
}
BENZENE = {
    "class_names": ("no benzene ring", "benzene ring"),
    "element_names": ("C", "N", "O", "S", "F", "P", "Cl", "Br", "Na", "Ca", "I", "B", "H", "*"),
    "bond_names": ("single", "double", "triple", "aromatic", "unspecified"),
}
for _name, _source, _about in (
    ("mutag", GraphSource(_tu("MUTAG"), "TUDataset", "MUTAG", MUTAG), "188 molecules, mutagenic or not"),
    (
        "mutagenicity",
        GraphSource(_tu("Mutagenicity"), "TUDataset", "Mutagenicity", MUTAGENICITY),
        "4,337 molecules, mutagenic or not, with known true bonds (NO2, NH2) if the raw files have them",
    ),
    (
        "benzene",
        GraphSource(_benzene, "Benzene", names=BENZENE),
        "12,000 molecules, with a benzene ring or without, known true atoms",
    ),
):
    DATASETS.add(_name, _source, _about)
