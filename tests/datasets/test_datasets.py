import hashlib
import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from fgai.datasets import DATASETS, compact, fingerprint, load, synthetic
from fgai.datasets.cache import cache
from fgai.errors import DataError, MissingExtraError, SettingError, UnknownNameError
from loose import loose
from strategies import generators

PAPER = {  # train, validation and test nodes
    "amazon-photo": (765, 765, 6_120),
    "amazon-computers": (1_375, 1_375, 11_002),
    "coauthor-cs": (1_833, 1_833, 14_667),
    "coauthor-physics": (3_449, 3_449, 27_595),
}
NAMES = [*PAPER, "cora", "citeseer", "pubmed"]


def masks(data):
    return torch.stack([data.train_mask, data.val_mask, data.test_mask])


def pairs(edge_index):
    return list(map(tuple, edge_index.t().tolist()))


def shelve(shelf, root, part="Planetoid/Cora/raw"):
    shutil.copytree(shelf / part, root / part, copy_function=shutil.copyfile)
    (root / part).chmod(0o755)  # the shelf may be read-only
    return root / part


@pytest.fixture(name="offline")
def _offline(monkeypatch):
    def refuse(*_, **__):
        raise socket.gaierror("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")


@pytest.fixture(scope="session", name="cora_links")
def _cora_links(shelf, data_root):
    before = generators()
    data = load("cora-links", seed=0, root=data_root)
    assert generators() == before
    return data


@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_has_the_size_that_its_source_states(name, facts, shelf):
    row = re.compile(r"\| `\w+\('(\w+)', '(\w+)'\)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|")
    stated = {(f, p): sizes for f, p, *sizes in row.findall((shelf / "SOURCES.md").read_text())}
    source = loose(DATASETS[name])
    expected = [int(size.replace(",", "")) for size in stated[source.folder, source.part]]
    assert len(stated) == len(NAMES)
    assert list(facts(name)[:4]) == expected


@pytest.mark.parametrize("name", NAMES)
def test_every_node_is_in_exactly_one_part_of_the_papers_size(name, facts):
    split = facts(name).masks
    tenth = facts(name).nodes // 10
    assert bool((split.sum(0) == 1).all())
    assert tuple(split.sum(1).tolist()) == PAPER.get(name, (tenth, tenth, facts(name).nodes - 2 * tenth))


def test_a_seed_decides_the_split_in_every_process(facts, data_root):
    code = "import sys; from fgai.datasets import load; from hashlib import sha256; d = load('cora', seed=4)"
    code += "; print(*(sha256(m.numpy().tobytes()).hexdigest() for m in (d.train_mask, d.val_mask, d.test_mask)))"
    run = [sys.executable, "-c", code]
    there = subprocess.run(
        run, env=os.environ | {"FGAI_DATA": str(data_root)}, capture_output=True, check=True, text=True
    )
    before = generators()
    here, again = (masks(load("cora", seed=4, root=data_root)) for _ in range(2))
    assert generators() == before
    assert torch.equal(here, again)
    assert there.stdout.split() == [hashlib.sha256(mask.numpy().tobytes()).hexdigest() for mask in here]
    assert not torch.equal(here, facts("cora").masks)


def test_the_link_split_has_the_papers_sizes(cora_links):
    sizes = [(int(mask.sum()), int(cora_links.y[mask].sum())) for mask in masks(cora_links)]
    assert sizes == [(2 * 4_488, 4_488), (526, 263), (1_054, 527)]
    assert cora_links.num_edges == 2 * 4_488
    assert (masks(cora_links).sum(0) == 1).all()


def test_links_to_predict_are_hidden_and_negative_ones_do_not_exist(cora_links, shelf, data_root):
    real, told = (set(pairs(data.edge_index)) for data in (load("cora", root=data_root), cora_links))
    asked = pairs(cora_links.edge_label_index)
    assert [link in real for link in asked] == cora_links.y.bool().tolist()
    assert told < real
    for link, known in zip(asked, cora_links.train_mask.tolist(), strict=True):
        assert known or not told.intersection((link, link[::-1]))


def test_a_seed_decides_the_link_split(cora_links, data_root):
    again, other = (loose(load("cora-links", seed=seed, root=data_root)) for seed in (0, 1))
    assert torch.equal(cora_links.edge_index, again.edge_index)
    assert torch.equal(cora_links.edge_label_index, again.edge_label_index)
    tested = [set(pairs(data.edge_label_index[:, data.test_mask])) for data in (again, other)]
    assert tested[0] != tested[1]


@pytest.mark.parametrize("name", ["x", "graph", "test.index"])
def test_a_raw_file_with_one_changed_byte_is_refused(name, shelf, tmp_path):
    path = shelve(shelf, tmp_path) / f"ind.cora.{name}"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(str(path)) + ".*SHA-256"):
        load("cora", root=tmp_path)
    assert not list((tmp_path / "Planetoid/Cora/processed").glob("*.pt"))


class Burglar:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_a_raw_file_is_not_unpickled_before_it_is_known(shelf, tmp_path):
    for path in shelve(shelf, tmp_path).glob("ind.cora.*"):
        path.write_bytes(pickle.dumps(Burglar(str(tmp_path / path.suffix[1:]))))
    with pytest.raises(DataError, match="could run code"):
        load("cora", root=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".cora.lock", "Planetoid"]


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["cora", "amazon-photo"])
def test_missing_raw_files_without_network_are_answered_with_where_to_put_them(name, tmp_path, monkeypatch):
    monkeypatch.delenv("FGAI_RAW", raising=False)
    source = loose(DATASETS[name])
    folder = f"{source.folder}/{source.part}/raw"
    with pytest.raises(DataError, match=f"set FGAI_RAW to a folder that has {folder}"):
        load(name, root=tmp_path)


@pytest.mark.usefixtures("offline")
def test_the_advice_to_set_fgai_raw_works_after_a_failed_download(shelf, tmp_path, monkeypatch):
    monkeypatch.delenv("FGAI_RAW")
    with pytest.raises(DataError):
        load("cora", root=tmp_path)
    monkeypatch.setenv("FGAI_RAW", str(shelf))
    assert load("cora", root=tmp_path).num_nodes == 2_708


@pytest.mark.usefixtures("offline")
def test_a_read_only_folder_is_read_and_left_as_it_was(shelf, tmp_path, monkeypatch):
    own, root = tmp_path / "shelf", tmp_path / "cache"
    raw = shelve(shelf, own)
    folders = [raw, *(folder for folder in raw.parents if folder.is_relative_to(own))]
    for path in (*raw.iterdir(), *folders):
        path.chmod(0o555)
    monkeypatch.setenv("FGAI_RAW", str(own))
    assert load("cora", root=root).num_nodes == 2_708
    assert sorted(own.rglob("*")) == sorted([*raw.iterdir(), *folders[:-1]])
    assert all(path.stat().st_mode & 0o200 for path in root.rglob("*"))
    for folder in folders:
        folder.chmod(0o755)


def test_the_cache_is_the_argument_else_the_variable_else_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("FGAI_DATA", str(tmp_path / "variable"))
    assert cache(tmp_path / "argument") == tmp_path / "argument"
    assert cache() == tmp_path / "variable"
    monkeypatch.delenv("FGAI_DATA")
    assert cache() == Path.home() / ".cache" / "fgai"
    assert all((tmp_path / name).is_dir() for name in ("argument", "variable", ".cache/fgai"))


def test_arxiv_without_ogb_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb", None)
    monkeypatch.delitem(sys.modules, "ogb.nodeproppred", raising=False)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'fgai[ogb]'")):
        load("ogbn-arxiv", root=tmp_path)


def test_an_unknown_dataset_is_answered_before_a_folder_is_made(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'cora'"):
        load("croa", root=tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("stored", "sparse"), [(0, True), (49, True), (50, False), (100, False)])
def test_features_become_sparse_under_half(stored, sparse):
    data = loose(Data(x=(torch.arange(100) < stored).float().view(10, 10), y=torch.arange(10)))
    small = loose(compact(data))
    assert small.x.is_sparse is sparse
    assert not data.x.is_sparse
    assert torch.equal(small.x.to_dense(), data.x)
    assert torch.equal(small.y, data.y)
    assert compact(small) is small


def test_a_graph_without_features_is_compact_already():
    data = Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2)
    assert compact(data) is data


def test_a_fingerprint_sees_features_edges_and_labels_but_not_how_features_are_stored():
    def graph(x=1.0, source=0, label=1, **more):
        return Data(x=torch.eye(30) * x, edge_index=torch.tensor([[source], [2]]), y=torch.tensor([0, label]), **more)

    mark = fingerprint(graph())
    assert re.fullmatch("[0-9a-f]{64}", mark)
    assert mark == fingerprint(compact(graph())) == fingerprint(graph(train_mask=torch.ones(30)))
    assert len({mark, *map(fingerprint, (graph(x=2.0), graph(source=1), graph(label=2)))}) == 4


def test_a_fingerprint_does_not_see_stored_zeros():
    ends, values = torch.tensor([[0, 0, 1], [0, 1, 1]]), torch.tensor([1.0, 0.0, 1.0])
    stored = torch.sparse_coo_tensor(ends, values, (2, 2), check_invariants=True)
    assert fingerprint(Data(x=torch.eye(2))) == fingerprint(Data(x=stored.coalesce()))


@given(st.integers(20, 60), st.integers(1, 40), st.integers(1, 4), st.floats(0, 0.9), st.integers(0, 9))
def test_a_generated_graph_is_simple_undirected_and_has_the_edges_asked_for(nodes, half, classes, homophily, seed):
    data = synthetic(nodes, 2 * half, features=3, classes=classes, homophily=homophily, seed=seed)
    edges = pairs(data.edge_index)
    assert len(edges) == len(set(edges)) == 2 * half
    assert all(a != b and (b, a) in edges for a, b in edges)
    assert data.x.shape == (nodes, 3)
    assert set(loose(data).y.tolist()) <= set(range(classes))
    assert {node for edge in edges for node in edge} <= set(range(nodes))


def test_a_generated_graph_follows_its_seed_and_no_global_generator():
    before = generators()
    one, same, other = (synthetic(100, 600, seed=seed) for seed in (1, 1, 2))
    assert generators() == before
    assert fingerprint(one) == fingerprint(same)
    assert all(not torch.equal(one[name], other[name]) for name in ("x", "edge_index", "y"))


@pytest.mark.parametrize("homophily", [0.0, 0.5, 0.9])
def test_the_share_of_edges_inside_a_community_is_near_the_setting(homophily):
    data = loose(synthetic(4_000, 40_000, classes=8, homophily=homophily, seed=5))
    inside = float((data.y[data.edge_index[0]] == data.y[data.edge_index[1]]).float().mean())
    assert inside == pytest.approx(homophily + (1 - homophily) / 8, abs=0.03)  # one in eight by chance


def test_degrees_of_a_generated_graph_have_a_heavy_tail():
    degrees = torch.bincount(synthetic(4_000, 40_000, seed=6).edge_index[1], minlength=4_000).double()
    assert float(degrees.mean()) == 10
    assert float(degrees.var()) > 5 * 10  # a Poisson's is its mean
    assert float(degrees.max()) > scipy.stats.poisson(10).isf(1e-12)


def test_features_of_a_generated_graph_tell_its_communities_apart():
    data = loose(synthetic(2_000, 8_000, features=32, classes=2, signal=2.0, seed=7))
    centres = torch.stack([data.x[data.y == label].mean(0) for label in (0, 1)])
    nearest = torch.cdist(data.x, centres).argmin(1)
    assert float((nearest == data.y).float().mean()) > 0.99


@pytest.mark.parametrize("edges", [0, -2, 31, 96])
def test_a_number_of_edges_that_cannot_be_is_refused(edges):
    with pytest.raises(SettingError, match=f"edges={edges} for nodes=20"):
        synthetic(nodes=20, edges=edges)


@pytest.mark.parametrize(
    "setting", [{"homophily": 1.5}, {"homophily": -0.1}, {"exponent": 1.0}, {"classes": 0}], ids=str
)
def test_other_settings_that_cannot_be_are_refused(setting):
    with pytest.raises(SettingError):
        synthetic(nodes=20, edges=30, **setting)


@pytest.mark.parametrize("name", ["cora", "amazon-photo"])
def test_the_cache_holds_what_pyg_reads_bit_by_bit(name, shelf, tmp_path):
    source = loose(DATASETS[name])
    folder = shelve(shelf, tmp_path / "pyg", f"{source.folder}/{source.part}/raw").parents[1]
    theirs = source.reader(str(folder), source.part)[0]
    for _ in range(2):  # read, then found in the cache
        ours = load(name, root=tmp_path / "ours")
        assert fingerprint(ours) == fingerprint(theirs)
        for part in ("x", "edge_index", "y"):
            assert ours[part].dtype == theirs[part].dtype and torch.equal(ours[part], theirs[part])


def test_nothing_that_lies_in_the_cache_is_unpickled(shelf, tmp_path):
    load("cora", root=tmp_path)
    home = tmp_path / "Planetoid" / "Cora"
    (home / "graph.safetensors").unlink()
    (home / "processed").mkdir()
    for name in ("data.pt", "pre_transform.pt", "pre_filter.pt"):
        (home / "processed" / name).write_bytes(pickle.dumps(Burglar(str(tmp_path / f"ran {name}"))))
    assert load("cora", root=tmp_path).num_nodes == 2_708
    assert not list(tmp_path.glob("ran *"))
    assert sorted(path.name for path in home.iterdir()) == ["graph.safetensors", "processed", "raw"]


@pytest.mark.parametrize("damage", ["cut", "changed", "swapped", "garbage", "other raw files"])
def test_a_broken_cache_is_made_again(shelf, tmp_path, damage):
    whole = fingerprint(load("cora", root=tmp_path))
    path = tmp_path / "Planetoid" / "Cora" / "graph.safetensors"
    content = path.read_bytes()
    damaged = {
        "cut": content[:-1_000],
        "changed": content.replace(b'"format', b'"tamrof', 1),
        "swapped": content.replace(b'"x"', b'"z"', 1),
        "garbage": b"\x00" * 100,
        "other raw files": content.replace(b"ind.cora.x", b"ind.cora.q", 1),
    }[damage]
    assert damaged != content
    path.write_bytes(damaged)
    assert fingerprint(load("cora", root=tmp_path)) == whole
    assert path.read_bytes() == content
