"""Node ids of tables: positions as they are, or numbered in their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fgai.errors import DataError
from fgai.large.columns import Attribute, refuse_missing
from fgai.large.database import INTEGERS, Database, quoted


@dataclass(frozen=True)
class NodeIds:
    """How the node ids of the tables `edges` and `nodes` become positions."""

    ends: tuple[str, str]  # columns of source and target
    column: str  # of the ids in `nodes`; empty without a table of nodes
    kind: str  # BIGINT, or VARCHAR for text
    numbered: bool  # the table `ids` has the position of each id; else the ids are the positions
    nodes: int  # 0 if only the edges tell
    edges: int
    smallest: int = 0  # id in the edges, if the ids are positions
    largest: int = -1

    @classmethod
    def of(cls, database: Database, ends: tuple[str, str], node_id: str, map_ids: bool) -> NodeIds:
        """Check the ids, and number them if they are text or are not positions.

        Args:
            database: A database with the table `edges`, and `nodes` if there is a table of nodes.
            ends: Columns of source and target.
            node_id: The column of the ids in `nodes`; the first one if empty.
            map_ids: Number integer ids in any case.

        Raises:
            DataError: An id is missing, comes twice in `nodes` or only in `edges`, or has a wrong type.
        """
        node_types = database.columns("nodes") if "nodes" in database.paths else {}
        column = node_id or next(iter(node_types), "")
        types = [*(database.columns("edges")[name] for name in ends), *([node_types[column]] if column else [])]
        if wrong := [kind for kind in types if kind not in (*INTEGERS, "VARCHAR", "UUID")]:
            raise DataError(f"a column of node ids has the type {wrong[0]}; give ids that are integers or text")
        kind = "BIGINT" if all(one in INTEGERS for one in types) else "VARCHAR"
        numbered, nodes = map_ids or kind == "VARCHAR", 0
        if column:
            nodes, positions = _count_rows(database, column)
            numbered = numbered or not positions
        if numbered:
            nodes = _number(database, ends, column, kind)
        ids = cls(ends, column, kind, numbered, nodes, *_count_edges(database, ends, numbered))
        ids._refuse_unknown(database)
        return ids

    def _refuse_unknown(self, database: Database) -> None:
        """Raise if an edge has an end that is not in the table of nodes."""
        for name in self.ends if self.column else ():
            end, of_node = f"edges.{quoted(name)}::{self.kind}", f"nodes.{quoted(self.column)}::{self.kind}"
            query = f"SELECT count(*), min({end}) FROM edges ANTI JOIN nodes ON {end} = {of_node}"
            [(count, example)] = database.rows(query)
            if count:
                raise DataError(
                    f"{count:,} edges of {database.paths['edges']} have a {name!r} that is not in "
                    f"{database.paths['nodes']}, such as {example!r:.60}; give a row for each node"
                )

    def sort_edges(self, database: Database, attributes: Sequence[Attribute]) -> None:
        """Create the table `sorted_edges`: source, target and attributes, in the order of the store."""
        keys = ["target", "source", *(field for one in attributes for field in one.fields)]
        given, joins = [f"edges.{quoted(name)}::{self.kind}" for name in self.ends], ""
        if self.numbered:
            joins = f" JOIN ids a ON {given[0]} = a.id JOIN ids b ON {given[1]} = b.id"
            given = ["a.node", "b.node"]
        number = "INTEGER" if max(self.nodes, self.largest) < 2**31 else "BIGINT"
        selected = [f"{given[0]}::{number} AS source", f"{given[1]}::{number} AS target"]
        selected += [column for one in attributes for column in one.selected()]
        query = f"SELECT {', '.join(selected)} FROM edges{joins} ORDER BY {', '.join(keys)}"
        database.run(f"CREATE TABLE sorted_edges AS {query}")
        [(count,)] = database.rows("SELECT count(*) FROM sorted_edges")
        if count != self.edges:
            raise DataError(f"{self.edges:,} edges became {count:,}; do not change the files while they are read")

    def sort_nodes(self, database: Database, attributes: Sequence[Attribute]) -> None:
        """Create the table `sorted_nodes`: the attributes, in the order of the nodes."""
        selected = ", ".join(column for one in attributes for column in one.selected())
        given = f"nodes.{quoted(self.column)}::{self.kind}"
        source, order = ("nodes", given) if not self.numbered else (f"nodes JOIN ids ON {given} = ids.id", "ids.node")
        database.run(f"CREATE TABLE sorted_nodes AS SELECT {selected} FROM {source} ORDER BY {order}")


def _count_rows(database: Database, column: str) -> tuple[int, bool]:
    """Return the number of nodes in the table of nodes, and whether their ids are 0, 1, ..."""
    name = quoted(column)
    query = f"SELECT count(*), count(*) - count({name}), count(DISTINCT {name}), min({name}), max({name}) FROM nodes"
    [(nodes, missing, distinct, first, last)] = database.rows(query)
    refuse_missing(database, "nodes", [column], [missing])
    if nodes != distinct:
        raise DataError(
            f"{database.paths['nodes']} has {nodes:,} rows with {distinct:,} ids in {column!r}; give one row per node"
        )
    return nodes, (first, last) == (0, nodes - 1)


def _number(database: Database, ends: tuple[str, str], column: str, kind: str) -> int:
    """Create the table `ids` with the position of each id in the order of the ids; return their number."""
    tables = [(column, "nodes")] if column else [(name, "edges") for name in ends]
    listed = " UNION ".join(f"SELECT {quoted(name)}::{kind} AS id FROM {table}" for name, table in tables)
    database.run(f"CREATE TABLE ids AS SELECT row_number() OVER (ORDER BY id) - 1 AS node, id FROM ({listed})")
    [(nodes,)] = database.rows("SELECT count(*) FROM ids")
    return nodes


def _count_edges(database: Database, ends: tuple[str, str], numbered: bool) -> tuple[int, int, int]:
    """Return the number of edges, and the smallest and the largest node id if ids are positions; in one pass."""
    names = [quoted(name) for name in ends]
    spans = [] if numbered else [f"{what}({name})" for what in ("min", "max") for name in names]
    query = ", ".join(["count(*)", *(f"count(*) - count({name})" for name in names), *spans])
    [(edges, *values)] = database.rows(f"SELECT {query} FROM edges")
    refuse_missing(database, "edges", ends, values[:2])
    return (edges, 0, -1) if numbered or not edges else (edges, min(values[2:4]), max(values[4:]))
