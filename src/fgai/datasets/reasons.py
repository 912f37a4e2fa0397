"""Generated graphs with known true edges: the edges that determine the label of a node.

`ba-shapes` (houses), `ba-grids` and `ba-cycles` attach motifs to a Barabasi-Albert graph. The label of a node of a
motif is its role there, and its true edges are the edges of its own motif. In `infection`, the label of a node is its
distance from the infected nodes, and its true edges are the edges of the shortest paths. The generators of PyG create
the graphs. Nodes of motif graphs have no informative features, so here they get their degree, one-hot.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.datasets import ExplainerDataset, InfectionDataset
from torch_geometric.datasets.graph_generator import BAGraph, ERGraph
from torch_geometric.datasets.motif_generator import CycleMotif, GridMotif, HouseMotif, MotifGenerator

from fgai.datasets.catalogue import DATASETS
from fgai.datasets.split import split_nodes
from fgai.errors import DataError, SettingError
from fgai.graph import degree, require
from fgai.seeding import seeded
from fgai.settings import check_positive, check_seed, check_whole

DEGREES = 16  # larger degrees share one column
TRAIN, VAL = 0.6, 0.2  # these graphs are small


def motifs(motif: MotifGenerator, count: int = 80, nodes: int = 300, links: int = 5, seed: int = 0) -> Data:
    """Generate a Barabasi-Albert graph with motifs.

    Args:
        motif: A motif generator of PyG.
        count: The number of motifs.
        nodes: The number of nodes of the Barabasi-Albert graph.
        links: The number of edges of each of its new nodes.
        seed: Random seed.

    Returns:
        The graph with `edge_mask` [E], the edges of motifs, and `motif` [N], the number of a node's motif or -1.

    >>> data = motifs(HouseMotif(), count=2, nodes=20)
    >>> data.num_nodes, int(data.edge_mask.sum())
    (30, 24)
    """
    check_whole(1, count=count, nodes=nodes, links=links)
    check_seed(seed)
    with seeded(seed):
        generated: Any = ExplainerDataset(BAGraph(nodes, links), motif, num_motifs=count)[0]
    edges, inside = require(generated, "edge_index"), require(generated, "edge_mask") > 0
    x = torch.nn.functional.one_hot(degree(edges[1], int(generated.num_nodes or 0)).clamp(max=DEGREES), DEGREES + 1)
    data = Data(x=x.float(), edge_index=edges, y=require(generated, "y"), edge_mask=inside)
    data.motif = torch.where(require(generated, "node_mask") > 0, _components(edges[:, inside], len(x)), -1)
    return data


def infection(nodes: int = 1000, infected: int = 50, mean_degree: float = 4.0, far: int = 2, seed: int = 0) -> Data:
    """Generate a random graph with infected nodes. Labels are distances from them, `far` + 1 for larger ones.

    Args:
        nodes: The number of nodes.
        infected: The number of infected nodes.
        mean_degree: The mean degree.
        far: The largest distance with a label of its own.
        seed: Random seed.

    Returns:
        The graph; `max_distance` is `far`.

    >>> infection(nodes=100, infected=5).y.unique()
    tensor([0, 1, 2, 3])
    """
    check_whole(1, nodes=nodes, infected=infected, far=far)
    check_positive(mean_degree=mean_degree)
    check_seed(seed)
    if infected > nodes or mean_degree > nodes:
        raise SettingError(f"infected={infected}, mean_degree={mean_degree} for nodes={nodes}; give at most {nodes}")
    with seeded(seed):
        generated: Any = InfectionDataset(ERGraph(nodes, mean_degree / nodes), infected, far)[0]
    x, edges, y = (require(generated, name) for name in ("x", "edge_index", "y"))
    return Data(x=x, edge_index=edges, y=y, max_distance=far)


def true_edges(data: Data, node: int, hop: Tensor) -> Tensor:
    """Return the true edges of a node among the edges of its computation graph; a mask [E].

    Args:
        data: A graph of this module.
        node: The node.
        hop: The hop of each edge, [E]: 1 for edges into the node, 0 for edges outside its computation graph.

    Raises:
        DataError: The true edges of this graph are not known.

    >>> path = Data(edge_index=torch.tensor([[0, 1, 3], [1, 2, 2]]), y=torch.tensor([0, 1, 2, 3]), max_distance=2)
    >>> true_edges(path, node=2, hop=torch.tensor([2, 1, 1]))  # node 0 is infected, 0 -> 1 -> 2 is the shortest path
    tensor([ True,  True, False])
    """
    edges = require(data, "edge_index")
    if "motif" in data:
        own = require(data, "motif")[node]
        return (hop > 0) & require(data, "edge_mask") & (require(data, "motif")[edges[0]] == own) & (own >= 0)
    if "max_distance" in data:
        y = require(data, "y")
        return (hop > 0) & (y[edges[0]] + hop == y[node]) & (y[node] <= data.max_distance)
    raise DataError(
        f"the true edges of this graph are not known, it has only {sorted(data.keys())}; load 'ba-shapes', "
        "'ba-grids', 'ba-cycles' or 'infection'"
    )


@DATASETS.register("ba-shapes")
def _houses(root: Path, seed: int) -> Data:
    """Generated: 80 houses on a Barabasi-Albert graph of 300 nodes, with known true edges.

    >>> _houses(Path("data"), seed=0).num_nodes
    700
    """
    return split_nodes(motifs(HouseMotif(), seed=seed), seed, TRAIN, VAL)


@DATASETS.register("ba-grids")
def _grids(root: Path, seed: int) -> Data:
    """Generated: 80 grids of 3 x 3 on a Barabasi-Albert graph of 300 nodes, with known true edges.

    >>> _grids(Path("data"), seed=0).num_nodes
    1020
    """
    return split_nodes(motifs(GridMotif(), seed=seed), seed, TRAIN, VAL)


@DATASETS.register("ba-cycles")
def _cycles(root: Path, seed: int) -> Data:
    """Generated: 80 cycles of 6 on a Barabasi-Albert graph of 300 nodes, with known true edges.

    >>> _cycles(Path("data"), seed=0).num_nodes
    780
    """
    return split_nodes(motifs(CycleMotif(6), seed=seed), seed, TRAIN, VAL)


@DATASETS.register("infection")
def _infection(root: Path, seed: int) -> Data:
    """Generated: 1,000 nodes labelled by their distance from infected nodes, with known true edges.

    >>> _infection(Path("data"), seed=0).num_nodes
    1000
    """
    return split_nodes(infection(seed=seed), seed, TRAIN, VAL)


def _components(edge_index: Tensor, nodes: int) -> Tensor:
    """Return the number of the connected component of each node; [N]."""
    source, target = edge_index.numpy()
    from scipy.sparse import coo_matrix  # slow to import
    from scipy.sparse.csgraph import connected_components

    matrix = coo_matrix(([1] * len(source), (source, target)), shape=(nodes, nodes))
    return torch.from_numpy(connected_components(matrix, directed=False)[1]).long()
