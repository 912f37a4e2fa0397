"""Conversion of tables to graph stores: Parquet, CSV and text, sorted by DuckDB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fgai.errors import DataError
from fgai.files import atomic_folder, scratch, write_json
from fgai.large.columns import VALUES, Attribute, rows_from
from fgai.large.convert import (
    check_ids,
    check_names,
    create_array,
    first_edges,
    integer_type,
    map_arrays,
    no_edges,
    plausible_count,
    slices,
    write_attribute,
    write_manifest,
)
from fgai.large.database import Database, literal
from fgai.large.node_ids import NodeIds
from fgai.large.store import DiskGraph
from fgai.progress import progress

Columns = Mapping[str, Sequence[str]]  # the columns of each attribute
NONE: Columns = {}


def convert_tables(
    edges: str | Path,
    folder: str | Path,
    *,
    ends: Sequence[str] = (),
    edge_columns: Columns = NONE,
    node_table: str | Path | None = None,
    node_id: str = "",
    node_columns: Columns = NONE,
    arrays: Mapping[str, str | Path] = {},
    nodes: int | None = None,
    map_ids: bool = False,
) -> DiskGraph:
    r"""Write the graph of a table of edges, and of a table of nodes if there is one, to a store.

    Edges are sorted by target, then by source and by their attributes, so the store does not depend on the order of the
    rows or of the files. The id of an edge is its position in this order. Node ids that are text are numbered in their
    order, and so are integers with `map_ids`, or if the ids of the table of nodes are not 0, 1, ...; `ids.parquet` in
    the store then has the id of each node. A column of text becomes numbers in the order of its names, which
    `categories.json` lists.

    Args:
        edges: A Parquet, CSV or text file, a folder of Parquet or CSV files, a pattern such as `"edges/*.parquet"`, or
            a URL that DuckDB can read.
        folder: The new folder; it must not exist.
        ends: Names of the columns of source and target; the first two columns by default.
        edge_columns: Columns of each edge attribute, such as `{"edge_attr": ["amount", "time"]}`.
        node_table: A table with a row per node.
        node_id: Name of the column of its ids; the first column by default.
        node_columns: Columns of each node attribute, such as `{"x": ["age", "income"], "y": ["label"]}`. A column may
            hold lists of numbers of one length.
        arrays: `.npy` files with one row per node, by attribute name; only if node ids are kept.
        nodes: Number of nodes, if node ids are kept; by default from the arrays, else the largest id plus 1.
        map_ids: Number integer ids in their order, instead of using them as positions.

    Returns:
        The graph on disk.

    Raises:
        DataError: A table cannot be read, lacks a column or a value, or ids do not fit together.
        MissingExtraError: DuckDB is not installed.

    >>> import tempfile
    >>> home = Path(tempfile.mkdtemp())
    >>> _ = (home / "edges.csv").write_text("payer,payee,amount\nann,bob,5\ncid,bob,2\nbob,ann,1\n")
    >>> store = convert_tables(home / "edges.csv", home / "graph", edge_columns={"edge_attr": ["amount"]})
    >>> store.columns.source.tolist(), store.edge_attribute("edge_attr").flatten().tolist()
    ([1, 0, 2], [1.0, 5.0, 2.0])
    """
    check_names([*edge_columns, *node_columns, *arrays])
    place, mapped = Path(folder), map_arrays(arrays)
    with (
        atomic_folder(place) as temporary,
        scratch(place) as work,
        Database(work) as database,
        progress(f"writing {folder}", 4 + len(arrays)) as advance,
    ):
        database.open("edges", edges, [*ends, *_flat(edge_columns)])
        if node_table is not None:
            database.open("nodes", node_table, [*([node_id] if node_id else []), *_flat(node_columns)])
        elif node_columns or node_id:
            raise DataError(f"{', '.join([*node_columns]) or node_id} needs a table of nodes; give its path as well")
        ids = NodeIds.of(database, _two_ends(database, ends), node_id, map_ids)
        if ids.numbered and (mapped or nodes is not None):
            raise DataError(
                "node ids are numbered anew, so arrays and a number of nodes have no meaning; give a table of nodes, "
                "or the ids 0, 1, ... without `map_ids`"
            )
        if ids.numbered or node_table is not None:
            nodes = ids.nodes
        elif nodes is None:
            rows = max(map(len, mapped.values())) if mapped else None
            nodes = rows if rows is not None else plausible_count(edges, ids.largest, ids.edges)
        if not ids.numbered and ids.edges:
            check_ids(ids.smallest, ids.largest, nodes)
        if ids.numbered:
            database.run(f"COPY (SELECT * FROM ids ORDER BY node) TO {literal(str(temporary / 'ids.parquet'))}")
        advance("ids")
        of_edges = [Attribute.of(database, "edges", name, columns) for name, columns in edge_columns.items()]
        of_nodes = [Attribute.of(database, "nodes", name, columns) for name, columns in node_columns.items()]
        ids.sort_edges(database, of_edges)
        advance("sorted")
        _write_edges(temporary, database, nodes, ids.edges, of_edges)
        advance("edges")
        if of_nodes:
            ids.sort_nodes(database, of_nodes)
            for one in of_nodes:
                write_attribute(
                    temporary / f"{one.name}.npy", one.name, nodes, one.pieces(database, "sorted_nodes", nodes)
                )
        advance("nodes")
        for name, array in mapped.items():
            write_attribute(temporary / f"{name}.npy", name, nodes, slices(array))
            advance(name)
        if names := {one.name: one.categories for one in (*of_edges, *of_nodes) if one.categories}:
            write_json(temporary / "categories.json", names)
        write_manifest(temporary, ["start", "source", *node_columns, *arrays], [*edge_columns])
    return DiskGraph(folder)


def _two_ends(database: Database, ends: Sequence[str]) -> tuple[str, str]:
    """Return the columns of source and target: those that were named, or the first two."""
    named = [*(ends or database.columns("edges"))][: len(ends) or 2]
    if len(named) != 2:
        raise DataError(f"{database.paths['edges']}: {named} are not two columns; name those of source and target")
    return named[0], named[1]


def _write_edges(folder: Path, database: Database, nodes: int, edges: int, attributes: Sequence[Attribute]) -> None:
    """Write the sources of the edges, where those of each node start, and the attributes of the edges."""
    source = create_array(folder / "source.npy", integer_type(nodes), (edges,))
    degree, last = no_edges(nodes), 0
    for first in range(0, edges, VALUES):
        query = f"SELECT source, target FROM sorted_edges WHERE {rows_from(first, VALUES)}"
        source[first : first + VALUES], target = database.arrays(query)
        if int(target[0]) < last or (target[1:] < target[:-1]).any():
            raise DataError(f"{database.paths['edges']} was not sorted; this is an error of fgai, please report it")
        low, last = int(target[0]), int(target[-1])
        degree[low : last + 1] += np.bincount(target - low, minlength=last + 1 - low)
    np.save(folder / "start.npy", first_edges(degree))
    for one in attributes:
        write_attribute(
            folder / f"{one.name}.npy", one.name, edges, one.pieces(database, "sorted_edges", edges), "edges"
        )


def _flat(columns: Columns) -> list[str]:
    return [name for names in columns.values() for name in names]
