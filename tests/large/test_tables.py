import json
import random

import duckdb
import numpy as np
import pytest
import torch

from fgai import datasets
from fgai.errors import DataError
from fgai.large import DiskGraph, Loader, convert, convert_tables
from loose import loose

GRAPH = loose(datasets.load("synthetic"))
PAYMENTS = [("ann", "bob", 5.0, "cash"), ("cid", "bob", 2.0, "card"), ("bob", "ann", 1.0, "card")]
PEOPLE = [("cid", 1.5, True, [3.0, 4.0]), ("ann", 0.5, False, [1.0, 2.0]), ("bob", 1.0, True, [5.0, 6.0])]


def write(path, rows, columns):
    """Write rows to a Parquet or CSV file; `columns` are names with SQL types."""
    fields = ", ".join(f"unnest(?::{kind}[]) AS {name}" for name, kind in columns.items())
    with duckdb.connect() as database:
        database.execute(f"CREATE TABLE t AS SELECT {fields}", [list(column) for column in zip(*rows, strict=True)])
        database.execute(f"COPY t TO '{path}'")
    return path


def payments(path, rows=PAYMENTS):
    return write(path, rows, {"payer": "VARCHAR", "payee": "VARCHAR", "amount": "DOUBLE", "kind": "VARCHAR"})


def people(path, rows=PEOPLE):
    return write(path, rows, {"name": "VARCHAR", "age": "FLOAT", "fraud": "BOOLEAN", "words": "FLOAT[]"})


def edge_rows(graph=GRAPH):
    return [tuple(pair) for pair in graph.edge_index.t().tolist()]


def edge_table(path, rows):
    return write(path, rows, {"source": "INTEGER", "target": "INTEGER"})


def edge_index(store):
    """The edges of a store, by edge id."""
    target = torch.arange(store.num_nodes).repeat_interleave(store.columns.start.diff())
    return torch.stack([store.columns.source.long(), target])


@pytest.mark.parametrize("name", ["edges.parquet", "edges.csv", "edges.tsv", "edges.txt"])
def test_a_table_of_edges_is_the_graph_sorted_by_target(tmp_path, name):
    if name == "edges.txt":
        np.savetxt(tmp_path / name, GRAPH.edge_index.numpy().T, fmt="%d")
    else:
        edge_table(tmp_path / name, edge_rows())
    np.save(tmp_path / "x.npy", GRAPH.x.numpy())
    store = convert_tables(tmp_path / name, tmp_path / "store", arrays={"x": tmp_path / "x.npy"})
    expected = np.lexsort(GRAPH.edge_index.numpy())
    assert torch.equal(edge_index(store), GRAPH.edge_index[:, expected])
    assert torch.equal(store.attribute("x"), GRAPH.x) and store.columns.edge is None


def test_the_order_of_rows_and_files_does_not_matter(tmp_path):
    rows = edge_rows()
    random.Random(0).shuffle(rows)
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    edge_table(tmp_path / "parts" / "b.parquet", rows[:3_000])
    edge_table(tmp_path / "parts" / "deep" / "a.parquet", rows[3_000:])
    one = convert_tables(edge_table(tmp_path / "one.parquet", edge_rows()), tmp_path / "one")
    for number, given in enumerate((tmp_path / "parts", f"{tmp_path}/parts/**/*.parquet")):
        parts = convert_tables(given, tmp_path / str(number))
        assert torch.equal(edge_index(one), edge_index(parts))


def test_text_ids_edge_attributes_and_node_attributes_stay_together(tmp_path):
    store = convert_tables(
        payments(tmp_path / "payments.parquet"),
        tmp_path / "store",
        edge_columns={"edge_attr": ["amount"], "edge_type": ["kind"], "both": ["amount", "amount"]},
        node_table=people(tmp_path / "people.parquet"),
        node_columns={"x": ["words"], "y": ["fraud"], "age": ["age"], "train_mask": ["fraud"]},
    )
    ids = duckdb.sql(f"SELECT id FROM '{tmp_path}/store/ids.parquet' ORDER BY node").fetchall()
    names = [name for (name,) in ids]
    assert names == ["ann", "bob", "cid"]
    kinds = json.loads((tmp_path / "store" / "categories.json").read_text())["edge_type"]
    found = [
        (names[source], names[target], amount, kinds[kind])
        for (source, target), amount, kind in zip(
            edge_index(store).t().tolist(),
            store.edge_attribute("edge_attr").flatten().tolist(),
            store.edge_attribute("edge_type").tolist(),
            strict=True,
        )
    ]
    assert sorted(found) == sorted(PAYMENTS)
    about = {name: (age, fraud, words) for name, age, fraud, words in PEOPLE}
    for number, name in enumerate(names):
        age, fraud, words = about[name]
        assert store.attribute("x")[number].tolist() == words and float(store.attribute("age")[number]) == age
        assert int(store.attribute("y")[number]) == fraud and bool(store.attribute("train_mask")[number]) == fraud
    assert store.edge_attribute("both").shape == (3, 2) and store.attribute("x").dtype == torch.float32


def test_ids_are_numbered_only_if_they_are_not_positions(tmp_path):
    far = [(10**12, 7), (7, 8)]
    with pytest.raises(DataError, match="only 2 edges"):
        convert_tables(write(tmp_path / "far.csv", far, {"a": "BIGINT", "b": "BIGINT"}), tmp_path / "no")
    store = convert_tables(tmp_path / "far.csv", tmp_path / "far", map_ids=True)
    assert edge_index(store).tolist() == [[2, 0], [0, 1]]
    near = edge_table(tmp_path / "near.parquet", [(2, 0), (0, 1)])
    positions = write(tmp_path / "positions.csv", [(1, 5), (0, 4), (2, 6)], {"id": "INTEGER", "y": "INTEGER"})
    store = convert_tables(near, tmp_path / "near", node_table=positions, node_columns={"y": ["y"]})
    assert store.attribute("y").tolist() == [4, 5, 6] and not (tmp_path / "near" / "ids.parquet").exists()
    gaps = write(tmp_path / "gaps.csv", [(0, 4), (1, 5), (2, 6), (9, 7)], {"id": "INTEGER", "y": "INTEGER"})
    store = convert_tables(near, tmp_path / "gaps", node_table=gaps, node_columns={"y": ["y"]})
    assert store.num_nodes == 4 and store.attribute("y").tolist() == [4, 5, 6, 7]
    with pytest.raises(DataError, match="numbered anew"):
        convert_tables(near, tmp_path / "no", map_ids=True, nodes=9)


def test_batches_carry_the_attributes_of_their_edges(tmp_path):
    graph = loose(datasets.load("synthetic"))
    graph.edge_attr = torch.rand(graph.num_edges, 3)
    store = convert(graph, tmp_path / "graph")
    for ours, theirs in zip(Loader(graph, (5, 5), batch=64), Loader(store, (5, 5), batch=64), strict=True):
        assert torch.equal(ours.edge_attr, theirs.edge_attr)
    rows = [(*pair, float(number)) for number, pair in enumerate(edge_rows())]
    table = write(tmp_path / "e.parquet", rows, {"s": "INTEGER", "t": "INTEGER", "number": "DOUBLE"})
    store = convert_tables(table, tmp_path / "table", edge_columns={"number": ["number"]})
    batch = next(iter(Loader(store, (5, 5), batch=64)))
    assert torch.equal(graph.edge_index[:, batch.number.long()], batch.n_id[batch.edge_index])


@pytest.mark.parametrize(
    ("rows", "settings", "why"),
    [
        ([("ann", None, 1.0, "a")], {}, "1 rows have no 'payee'"),
        ([("ann", "bob", None, "a")], {"edge_columns": {"edge_attr": ["amount"]}}, "1 rows have no 'amount'"),
        (PAYMENTS, {"ends": ["payer", "shop"]}, "no column 'shop', only"),
        (PAYMENTS, {"ends": ["payer"]}, "not two columns"),
        (PAYMENTS, {"ends": ["payer", "amount"]}, "has the type DOUBLE"),
        (PAYMENTS, {"edge_columns": {"edge_attr": ["kind"]}}, "of type VARCHAR"),
        (PAYMENTS, {"edge_columns": {"source": ["kind"]}}, "cannot be names"),
        (PAYMENTS, {"node_columns": {"x": ["age"]}}, "needs a table of nodes"),
        (PAYMENTS, {"edge_columns": {"y": ["amount"]}, "node_columns": {"y": ["age"]}}, "two arrays"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tmp_path, rows, settings, why):
    with pytest.raises(DataError, match=why):
        convert_tables(payments(tmp_path / "p.parquet", rows), tmp_path / "store", **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]


@pytest.mark.parametrize(
    ("rows", "columns", "why"),
    [
        (PEOPLE[:2], {"x": ["age"]}, "1 edges .* have a 'payer' that is not in .* such as 'bob'"),
        ([*PEOPLE, PEOPLE[0]], {"x": ["age"]}, "4 rows with 3 ids"),
        ([*PEOPLE, ("dan", 1.0, True, [1.0])], {"x": ["words"]}, "lists of 1 to 2 numbers"),
        (PEOPLE, {"y": ["age"]}, "of type FLOAT; give integers"),
    ],
)
def test_a_table_of_nodes_that_does_not_fit_is_refused(tmp_path, rows, columns, why):
    given = payments(tmp_path / "p.parquet")
    with pytest.raises(DataError, match=why):
        convert_tables(given, tmp_path / "s", node_table=people(tmp_path / "n.parquet", rows), node_columns=columns)


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.txt", "folder"])
def test_what_is_no_table_is_refused(tmp_path, name):
    if name == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).write_bytes(b"\x00\xff\xfe no table 1 2")
    for path in (tmp_path / name, tmp_path / f"absent-{name}"):
        with pytest.raises(DataError, match=r"cannot be read|neither Parquet nor CSV"):
            convert_tables(path, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_a_table_without_edges_is_a_graph_without_edges(tmp_path):
    with duckdb.connect() as database:
        database.execute(f"COPY (SELECT 1 AS s, 2 AS t, 0.5::DOUBLE AS w LIMIT 0) TO '{tmp_path}/e.parquet'")
    store = convert_tables(tmp_path / "e.parquet", tmp_path / "s", edge_columns={"edge_attr": ["w"]}, nodes=3)
    assert (store.num_nodes, store.num_edges) == (3, 0)
    assert DiskGraph(tmp_path / "s").edge_attribute("edge_attr").shape == (0, 1)
