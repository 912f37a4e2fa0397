"""Attributes of nodes and edges from the columns of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fgai.errors import DataError
from fgai.large.database import INTEGERS, Database, literal, quoted

VALUES = 4_000_000  # numbers that are in memory at a time
CATEGORIES = 10_000  # the most names that a column of text may have
MATRICES = ("x", "edge_attr")  # float32 of two dimensions, also if there is one column
SQL_TYPES = {"float32": "FLOAT", "float64": "DOUBLE", "int64": "BIGINT", "bool": "BOOLEAN"}


@dataclass(frozen=True)
class Attribute:
    """An attribute of nodes or edges, and the columns that it comes from."""

    name: str
    table: str
    columns: tuple[str, ...]
    dtype: str
    width: int = 0  # numbers per row; 0 for an attribute of one dimension
    lists: bool = False  # whether the one column holds lists
    categories: tuple[str, ...] = ()  # names of a column of text; their positions are the values

    @classmethod
    def of(cls, database: Database, table: str, name: str, columns: Sequence[str]) -> Attribute:
        """Check the columns of an attribute: their types, and that no value is missing."""
        refuse_missing(database, table, columns, count_missing(database, table, columns))
        types = [database.columns(table)[column] for column in columns]
        about, where = (name, table, tuple(columns)), f"`{name}` of {database.paths[table]}"
        if len(columns) == 1 and types[0].endswith("]"):
            column = quoted(columns[0])
            [(least, most)] = database.rows(f"SELECT min(len({column})), max(len({column})) FROM {table}")
            if table == "edges" or least != most or not least:
                raise DataError(f"{where} holds lists of {least} to {most} numbers; give nodes lists of one length")
            return cls(*about, _dtype(name, [types[0].partition("[")[0]], where), least, lists=True)
        if types == ["VARCHAR"] and name not in MATRICES:
            return cls(*about, "int64", categories=_categories(database, table, columns[0], where))
        width = len(columns) if len(columns) > 1 or name in MATRICES else 0
        return cls(*about, _dtype(name, types, where), width)

    @property
    def fields(self) -> list[str]:
        """Names of the columns in a sorted table."""
        return [quoted(f"{self.name} {number}") for number in range(len(self.columns))]

    def selected(self) -> list[str]:
        """Return the columns as a query selects them, in their type."""
        kind = SQL_TYPES[self.dtype] + "[]" * self.lists
        given = [f"{self.table}.{quoted(column)}" for column in self.columns]
        if self.categories:
            names = ", ".join(literal(name) for name in self.categories)
            given = [f"list_position([{names}], {given[0]}) - 1"]
        return [f"({column})::{kind} AS {field}" for column, field in zip(given, self.fields, strict=True)]

    def pieces(self, database: Database, table: str, count: int) -> Iterator[np.ndarray]:
        """Yield the rows of the attribute in a sorted table, piece by piece."""
        rows = max(VALUES // max(self.width, 1), 1)
        selected = f"unnest({self.fields[0]})" if self.lists else ", ".join(self.fields)
        for first in range(0, max(count, 1), rows):
            columns = database.arrays(f"SELECT {selected} FROM {table} WHERE {rows_from(first, rows)}")
            if self.lists:
                yield columns[0].reshape(-1, self.width)
            else:
                yield np.stack(columns, axis=1) if self.width else columns[0]


def rows_from(first: int, count: int) -> str:
    """Return the condition for some rows of a sorted table; DuckDB returns them in their order."""
    return f"rowid >= {first} AND rowid < {first + count}"


def count_missing(database: Database, table: str, columns: Sequence[str]) -> Sequence[int]:
    """Return in how many rows each column has no value."""
    counts = ", ".join(f"count(*) - count({quoted(name)})" for name in columns)
    return database.rows(f"SELECT {counts} FROM {table}")[0]


def refuse_missing(database: Database, table: str, columns: Sequence[str], counts: Sequence[int]) -> None:
    """Raise if a column has rows without a value."""
    for name, missing in zip(columns, counts, strict=True):
        if missing:
            raise DataError(f"{database.paths[table]}: {missing:,} rows have no {name!r}; fill them in, or remove them")


def _categories(database: Database, table: str, column: str, where: str) -> tuple[str, ...]:
    """Return the names in a column of text, sorted."""
    query = f"SELECT DISTINCT {quoted(column)} AS name FROM {table} ORDER BY name LIMIT {CATEGORIES + 1}"
    names = tuple(name for (name,) in database.rows(query))
    if len(names) > CATEGORIES:
        raise DataError(f"{where} is text of more than {CATEGORIES:,} different values; give numbers")
    return names


def _dtype(name: str, types: Sequence[str], where: str) -> str:
    """Return the type of an attribute: float32 for features, bool for masks, integers for labels, else the column's."""
    if wrong := [kind for kind in types if kind not in (*INTEGERS, "FLOAT", "DOUBLE", "BOOLEAN")]:
        if all(kind.startswith("DECIMAL") for kind in wrong):
            return "float32" if name in MATRICES else "float64"
        raise DataError(f"{where} has a column of type {wrong[0]}; give columns of numbers")
    floats = [kind for kind in types if kind in ("FLOAT", "DOUBLE")]
    if floats and (name == "y" or name.endswith("_mask")):
        raise DataError(f"{where} has a column of type {floats[0]}; give integers, or true and false")
    if name in MATRICES:
        return "float32"
    if name.endswith("_mask") or (name != "y" and {*types} == {"BOOLEAN"}):
        return "bool"
    return "float64" if "DOUBLE" in floats else "float32" if floats else "int64"
