import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from fgai import datasets
from fgai.errors import DataError
from fgai.large import DiskGraph, Loader, convert, convert_arrays, convert_tables, write_store
from loose import loose

GRAPH = loose(datasets.load("synthetic"))


def test_batches_from_disk_are_those_from_memory(tmp_path):
    store = convert(GRAPH, tmp_path / "graph")
    for ours, theirs in zip(Loader(GRAPH, (5, 5), batch=64), Loader(store, (5, 5), batch=64), strict=True):
        for name in ("x", "y", "train_mask", "edge_index", "n_id", "e_id"):
            assert torch.equal(ours[name], theirs[name]), name


def test_a_store_written_in_pieces_is_the_same(tmp_path):
    ends, x = GRAPH.edge_index.numpy(), GRAPH.x.numpy()
    whole = convert(GRAPH, tmp_path / "whole")
    pieces = write_store(
        tmp_path / "pieces",
        GRAPH.num_nodes,
        lambda: [ends[:, :37], ends[:, 37:5_000], ends[:, 5_000:]],
        {"x": [x[:999], x[999:]]},
    )
    for name in ("start", "source", "edge"):
        assert torch.equal(getattr(whole.columns, name), getattr(pieces.columns, name)), name
    assert torch.equal(pieces.attribute("x"), GRAPH.x)


def test_arrays_are_converted(tmp_path):
    np.save(tmp_path / "edges.npy", GRAPH.edge_index.numpy())
    np.save(tmp_path / "x.npy", GRAPH.x.numpy())
    store = convert_arrays(tmp_path / "edges.npy", tmp_path / "store", {"x": tmp_path / "x.npy"})
    target = torch.arange(store.num_nodes).repeat_interleave(store.columns.start.diff())
    assert torch.equal(GRAPH.edge_index[:, store.columns.edge.long()], torch.stack([store.columns.source, target]))
    assert torch.equal(store.attribute("x"), GRAPH.x)


@pytest.mark.parametrize("ends", [np.zeros((3, 2), int), np.zeros(4, int), np.zeros((2, 3))])
def test_an_array_that_holds_no_edges_is_refused(tmp_path, ends):
    np.save(tmp_path / "edges.npy", ends)
    with pytest.raises(DataError, match=r"integers of \[2, E\]"):
        convert_arrays(tmp_path / "edges.npy", tmp_path / "store")


@pytest.mark.parametrize("name", ["source", "../x"])
def test_an_attribute_does_not_take_the_place_of_the_edges(tmp_path, name):
    with pytest.raises(DataError, match="names of arrays"):
        write_store(tmp_path / "store", 2, list, {name: [np.zeros(2)]})
    assert not (tmp_path / "store").exists()


def test_pygs_stores_hand_out_what_is_asked(tmp_path):
    store = convert(GRAPH, tmp_path / "graph")
    rows = torch.tensor([5, 3])
    assert torch.equal(loose(store).get_tensor(group_name=None, attr_name="x", index=rows), GRAPH.x[rows])
    assert store.get_tensor_size(group_name=None, attr_name="x") == (1_000, 32)
    source, start = store.get_edge_index(edge_type=None, layout="csc")
    assert len(start) == 1_001 and len(source) == GRAPH.num_edges


def test_a_store_is_read_only(tmp_path):
    store = convert(GRAPH, tmp_path / "graph")
    with pytest.raises(DataError, match="read only"):
        store.put_tensor(GRAPH.x, group_name=None, attr_name="x", index=None)
    store.attribute("x").zero_()  # this process's own copy
    assert torch.equal(DiskGraph(tmp_path / "graph").attribute("x"), GRAPH.x)


def test_what_is_there_is_not_written_over(tmp_path):
    convert(GRAPH, tmp_path / "graph")
    with pytest.raises(DataError, match="exists already"):
        convert(GRAPH, tmp_path / "graph")


def test_an_error_in_the_middle_leaves_nothing(tmp_path):
    ends = GRAPH.edge_index.numpy()
    with pytest.raises(DataError, match="999 rows"):
        write_store(tmp_path / "graph", 1_000, lambda: [ends], {"x": [np.zeros((999, 2))]})
    with pytest.raises(DataError, match="number nodes from 0"):
        write_store(tmp_path / "graph", 10, lambda: [ends], {})
    assert list(tmp_path.iterdir()) == []


SLOW = """
import sys, time
import numpy as np
from fgai.large import write_store
def rows():
    for _ in range(10):
        print("row", flush=True)
        yield np.zeros((100, 4), dtype=np.float32)
        time.sleep(0.5)
write_store(sys.argv[1], 1000, lambda: [np.array([[0], [1]])], {"x": rows()})
"""


def test_a_kill_in_the_middle_leaves_no_store_that_opens(tmp_path):
    writer = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path / "graph")], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    time.sleep(0.1)
    with pytest.raises(DataError, match="no complete graph store"):
        DiskGraph(tmp_path / "graph")
    halves = list(tmp_path.iterdir())
    assert halves, "the writer had begun"
    for half in halves:
        with pytest.raises(DataError, match="no complete graph store"):
            DiskGraph(half)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("0 99999999999", "has the node id 99999999999, but only 2 edges"),
        ("9223372036854775807 0", "has the node id 9223372036854775807"),
        ("9223372036854775808 0", "cannot be read"),
        ("-1 0", "number nodes from 0"),
        ("0", "have no 'target'"),
        ("a b", "cannot be read"),
        ("0 1.5", "cannot be read"),
    ],
)
def test_an_edge_list_that_cannot_be_meant_is_refused(tmp_path, line, why):
    (tmp_path / "edges.txt").write_text(f"0 1\n{line}\n")
    with pytest.raises(DataError, match=why):
        convert_tables(tmp_path / "edges.txt", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_an_explicit_number_of_nodes_is_taken(tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n\n# a remark\n2 1\n")
    assert convert_tables(tmp_path / "edges.txt", tmp_path / "store", nodes=5_000_000).num_nodes == 5_000_000
    with pytest.raises(DataError, match="there are 2"):
        convert_tables(tmp_path / "edges.txt", tmp_path / "few", nodes=2)
    with pytest.raises(DataError, match="do not fit"):
        convert_tables(tmp_path / "edges.txt", tmp_path / "many", nodes=10**18)


def bad_name(folder):
    about = json.loads((folder / "store.json").read_text())
    np.save(folder.parent / "secret.npy", np.zeros(1_000))
    (folder / "store.json").write_text(json.dumps(about | {"arrays": [*about["arrays"], "../secret"]}))


def changed(name, array):
    return lambda folder: np.save(folder / f"{name}.npy", array)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (bad_name, "'../secret', which is not a valid name"),
        (changed("y", np.zeros(7, int)), "`y` has the shape"),
        (changed("y", np.zeros(1_000)), "`y` is torch.float64"),
        (changed("train_mask", np.zeros(1_000, np.int8)), "`train_mask` is torch.int8"),
        (changed("x", np.zeros((1_000, 4), "<u4")), "holds uint32"),
        (changed("start", np.zeros(1_001, int)), "do not increase"),
        (changed("start", np.r_[0, np.full(999, 10_001), 10_000]), "do not increase"),
        (changed("source", np.full(10_000, 1_000, np.int32)), "have ids outside"),
        (changed("source", np.zeros(10_000)), "not lists of integers"),
        (changed("edge", np.zeros(9_999, int)), "9999 edges"),
    ],
)
def test_a_store_whose_arrays_do_not_fit_is_refused_at_opening(tmp_path, damage, why):
    convert(GRAPH, tmp_path / "graph")
    damage(tmp_path / "graph")
    with pytest.raises(DataError, match=why):
        DiskGraph(tmp_path / "graph")
