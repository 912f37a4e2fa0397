import os
from pathlib import Path

import networkx
import numpy as np
import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.datasets import TUDataset
from torch_geometric.utils import to_networkx

from fgai import datasets
from fgai.datasets.graphs import separated
from fgai.errors import DataError
from loose import loose
from strategies import generators
from worlds import molecules

RAW = Path(os.environ.get("FGAI_RAW", ""))
FIGURES = {  # graphs, nodes, directed edges and features, as published
    "mutag": ("TUDataset/MUTAG", 188, 3371, 7442, 7),
    "mutagenicity": ("TUDataset/Mutagenicity", 4337, 131488, 266894, 14),
    "benzene": ("Benzene", 12000, 246993, 523842, 14),
}


def has(name):
    return pytest.mark.skipif(not (RAW / FIGURES[name][0]).is_dir(), reason="no raw files")


@pytest.mark.parametrize(
    "name", ["mutag", *(pytest.param(name, marks=pytest.mark.slow) for name in ("mutagenicity", "benzene"))]
)
def test_molecules_have_the_published_sizes_and_a_seeded_split(name, tmp_path):
    folder, *figures = FIGURES[name]
    if not (RAW / folder).is_dir():
        pytest.skip("no raw files")
    data, again, other = (loose(datasets.load(name, seed=seed, root=tmp_path)) for seed in (0, 0, 1))
    assert [data.num_graphs, data.num_nodes, data.num_edges, data.num_features] == figures
    assert bool(((data.x == 0) | (data.x == 1)).all()) and bool((data.x.sum(1) == 1).all())
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert masks.sum(0).tolist() == [1] * data.num_graphs
    assert masks.sum(1).tolist()[:2] == [
        int(0.7 * data.num_graphs),
        int(0.8 * data.num_graphs) - int(0.7 * data.num_graphs),
    ]
    assert torch.equal(data.test_mask, again.test_mask) and not torch.equal(data.test_mask, other.test_mask)
    assert torch.equal(data.x, again.x) and torch.equal(data.edge_index, again.edge_index)
    assert (len(data.element_names), len(data.bond_names)) == (data.x.size(1), data.edge_attr.size(1))
    assert len(data.class_names) == 2 and most_links(data) == (4, 1), "C and F have at most as many bonds as they can"


def most_links(data):
    """The largest numbers of bonds of carbon and of fluorine, by the names of the columns."""
    links = data.edge_index[1].bincount(minlength=data.num_nodes)
    return tuple(int(links[data.x[:, data.element_names.index(name)] == 1].max()) for name in ("C", "F"))


@has("mutag")
def test_names_of_bonds_and_classes_are_those_of_the_source(data_root):
    data = loose(datasets.load("mutag", root=data_root))
    aromatic = data.edge_index[:, data.edge_attr.argmax(1) == data.bond_names.index("aromatic")].unique()
    inside = [
        int(data.ptr[number]) + node
        for number, one in enumerate(data.to_data_list())
        for part in loose(networkx.biconnected_components(to_networkx(one, to_undirected=True)))
        for node in (part if len(part) > 2 else ())
    ]
    assert {*aromatic.tolist()} <= {*inside} and 2 * len(aromatic) > len({*inside}), "in rings, and in most of them"
    assert int((data.y == data.class_names.index("mutagenic")).sum()) == 125  # of 188 (Debnath et al. 1991)


@has("mutag")
def test_the_cached_graphs_are_those_of_pyg(tmp_path):
    (tmp_path / "own" / "MUTAG").mkdir(parents=True)
    (tmp_path / "own" / "MUTAG" / "raw").symlink_to(RAW / "TUDataset" / "MUTAG" / "raw")
    expected = TUDataset(str(tmp_path / "own"), "MUTAG")
    for _ in range(2):  # from the raw files, and from the cache
        graphs = loose(datasets.load("mutag", root=tmp_path)).to_data_list()
        for one, other in zip(graphs, expected, strict=True):
            for key in ("x", "edge_index", "edge_attr", "y"):
                assert torch.equal(one[key], other[key])


@pytest.mark.slow
@has("mutagenicity")
def test_the_true_bonds_of_mutagenicity_are_those_of_the_file():
    data = loose(datasets.load("mutagenicity"))
    raw = RAW / "TUDataset" / "Mutagenicity" / "raw"
    ends = np.loadtxt(raw / "Mutagenicity_A.txt", delimiter=",", dtype=int) - 1
    truth = np.loadtxt(raw / "Mutagenicity_edge_gt.txt", dtype=int) > 0
    true = {tuple(edge) for edge in ends[truth].tolist()}
    assert {tuple(edge) for edge in data.edge_index[:, data.edge_mask].t().tolist()} == true
    atoms = data.x.argmax(1)[data.edge_index[:, data.edge_mask]]  # C, O, Cl, H, N, ...
    assert set(map(tuple, atoms.t().tolist())) == {(1, 4), (4, 1), (3, 4), (4, 3)}


@pytest.mark.slow
@has("benzene")
def test_the_true_atoms_of_benzene_are_rings_of_six():
    data = loose(datasets.load("benzene"))
    assert bool(data.node_mask[data.y[data.batch] == 0].any()) is False
    for graph in [graph for graph in data.to_data_list()[:200] if int(graph.y) == 1]:
        inside = graph.subgraph(graph.node_mask)
        rings = networkx.minimum_cycle_basis(to_networkx(inside, to_undirected=True))
        assert {node for ring in rings if len(ring) == 6 for node in ring} == set(range(inside.num_nodes))


def test_the_true_edges_of_ba_2motifs_are_a_house_or_a_cycle():
    before = generators()
    data = loose(datasets.load("ba-2motifs", seed=1))
    assert generators() == before and data.num_graphs == 1000 and data.num_nodes == 25_000
    graphs = data.to_data_list()
    for graph in graphs[::100]:
        motif = to_networkx(graph.edge_subgraph(graph.edge_mask), to_undirected=True)
        motif.remove_nodes_from(list(networkx.isolates(motif)))
        house = networkx.Graph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4)])
        assert networkx.is_isomorphic(motif, networkx.cycle_graph(5) if int(graph.y) else house)


def test_a_batch_is_separated_as_pyg_does():
    graphs = molecules(5, edge_attr=None)
    for graph in graphs:
        graph.edge_attr = torch.rand(graph.num_edges, 2)
    batch = loose(Batch.from_data_list(graphs))
    for one, other in zip(separated(batch.to_dict()), graphs, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in ("x", "edge_index", "edge_attr", "y"))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no archive", b"\x93NUMPY"])
def test_a_broken_file_of_molecules_is_refused(tmp_path, monkeypatch, content):
    monkeypatch.delenv("FGAI_RAW", raising=False)
    with pytest.raises(DataError, match="FGAI_RAW"):
        datasets.load("benzene", root=tmp_path)
    (tmp_path / "Benzene").mkdir()
    (tmp_path / "Benzene" / "benzene.npz").write_bytes(content)
    with pytest.raises(DataError, match="does not hold the molecules of Benzene"):
        datasets.load("benzene", root=tmp_path)
