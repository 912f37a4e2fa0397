"""Generated graphs whose true reasons are known: which edges make a node what it is.

`ba-shapes` (houses), `ba-grids` and `ba-cycles` hang motifs on a Barabasi-Albert graph; a node of a motif is labelled
by its place there, and its reasons are the edges of its own motif. In `infection` a node is labelled by its distance
from the infected, and its reasons are the edges of the shortest paths. PyG's generators make the graphs. They have no
features or constant ones, of which attention can make nothing, so nodes of motif graphs get their degree, one-hot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import ExplainerDataset, InfectionDataset
from torch_geometric.datasets.graph_generator import BAGraph, ERGraph
from torch_geometric.datasets.motif_generator import CycleMotif, GridMotif, HouseMotif, MotifGenerator

from fgai.datasets.catalogue import DATASETS
from fgai.datasets.split import split_nodes
from fgai.errors import DataError
from fgai.graph import degree, require
from fgai.seeding import seeded

DEGREES = 16  # degrees from here on are one column
TRAIN, VAL = 0.6, 0.2  # these graphs are small


def motifs(motif: MotifGenerator, count: int = 80, nodes: int = 300, links: int = 5, seed: int = 0) -> Data:
    """A Barabasi-Albert graph with motifs: `edge_mask` are their edges, `motif` [N] numbers them, -1 for none."""
    with seeded(seed):
        made: Any = ExplainerDataset(BAGraph(nodes, links), motif, num_motifs=count)[0]
    edges, inside = require(made, "edge_index"), require(made, "edge_mask") > 0
    x = torch.nn.functional.one_hot(degree(edges[1], int(made.num_nodes or 0)).clamp(max=DEGREES), DEGREES + 1)
    data = Data(x=x.float(), edge_index=edges, y=require(made, "y"), edge_mask=inside)
    data.motif = torch.where(require(made, "node_mask") > 0, _components(edges[:, inside], len(x)), -1)
    return data


def infection(nodes: int = 1000, infected: int = 50, mean_degree: float = 4.0, far: int = 2, seed: int = 0) -> Data:
    """A random graph with infected nodes; `y` is the distance from them up to `far`, or more."""
    with seeded(seed):
        made: Any = InfectionDataset(ERGraph(nodes, mean_degree / nodes), infected, far)[0]
    return Data(x=require(made, "x"), edge_index=require(made, "edge_index"), y=require(made, "y"), max_distance=far)


def true_edges(data: Data, node: int, hop: Tensor) -> Tensor:
    """The edges that make `node` what it is, among those of its computation graph; [E].

    `hop` [E] says how far from the node each edge ends, 1 for its own incoming ones, 0 for edges outside.
    """
    edges = require(data, "edge_index")
    if "motif" in data:
        own = require(data, "motif")[node]
        return (hop > 0) & require(data, "edge_mask") & (require(data, "motif")[edges[0]] == own) & (own >= 0)
    if "max_distance" in data:
        y = require(data, "y")
        return (hop > 0) & (y[edges[0]] + hop == y[node]) & (y[node] <= data.max_distance)
    raise DataError(f"this graph says no reasons, only {sorted(data.keys())}; load 'ba-shapes', 'infection', ...")


def _components(edge_index: Tensor, nodes: int) -> Tensor:
    """The number of the connected component of each node; [N]."""
    source, target = edge_index.numpy()
    matrix = coo_matrix(([1] * len(source), (source, target)), shape=(nodes, nodes))
    return torch.from_numpy(connected_components(matrix, directed=False)[1]).long()


def _split(make: Callable[..., Data], root: Path, seed: int) -> Data:
    return split_nodes(make(seed=seed), seed, TRAIN, VAL)


for _name, _motif, _shape in (
    ("ba-shapes", HouseMotif(), "80 houses"),
    ("ba-grids", GridMotif(), "80 grids of 3 x 3"),
    ("ba-cycles", CycleMotif(6), "80 cycles of 6"),
):
    about = f"generated: {_shape} on a Barabasi-Albert graph of 300 nodes; each node's true edges are known"
    DATASETS.add(_name, partial(_split, partial(motifs, _motif)), about)
DATASETS.add(
    "infection",
    partial(_split, infection),
    "generated: 1,000 nodes labelled by their distance from the infected; each node's true edges are known",
)
