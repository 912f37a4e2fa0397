"""Tables in files, read through DuckDB, which works on disk where memory does not suffice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from fgai.errors import DataError, MissingExtraError, OutputError
from fgai.readers import refusal

MEMORY = "1GB"  # of DuckDB's own; it sorts on disk beyond that
PARQUET, CSV = (".parquet", ".pq"), (".csv", ".tsv", ".csv.gz", ".tsv.gz")
INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
REMEDY = "give Parquet, CSV with a header, or text with two node ids per line"
WORD = (  # a word of a line as an integer; a cast alone would round 1.5
    "CASE WHEN {0} IS NULL OR regexp_full_match({0}, '-?[0-9]+') THEN {0}::BIGINT "
    "ELSE error('a node id is ' || {0}) END AS {1}"
)
LINES = (  # a text file as a table of two integers; what follows # is a comment
    f"SELECT {WORD.format('word[1]', 'source')}, {WORD.format('word[2]', 'target')} FROM (SELECT string_split_regex("
    "trim(split_part(line, '#', 1), ' \t\r'), '[ \t]+') AS word FROM read_csv(?, header=false, auto_detect=false, "
    "delim='\x01', quote='', escape='', columns={'line': 'VARCHAR'})) WHERE word[1] <> ''"
)


class Database:
    """A DuckDB database in a folder. It reads tables from files; the errors of DuckDB become `DataError`.

    Args:
        folder: A folder for what does not fit into memory.

    Raises:
        MissingExtraError: DuckDB is not installed.

    >>> import tempfile
    >>> with Database(Path(tempfile.mkdtemp())) as database:
    ...     database.rows("SELECT 1 + 1")
    [(2,)]
    """

    def __init__(self, folder: Path) -> None:
        try:
            import duckdb  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise MissingExtraError(
                "tables are read through DuckDB; install it with: pip install 'fgai[scale]'"
            ) from error
        self.error, self.disk_errors = duckdb.Error, (duckdb.IOException, duckdb.OutOfMemoryException)
        self.connection = duckdb.connect(str(folder / "work.duckdb"))
        self.paths: dict[str, str] = {}
        self.folder = folder
        for setting, value in (
            ("memory_limit", MEMORY),
            ("temp_directory", str(folder)),
            ("threads", torch.get_num_threads()),
            ("preserve_insertion_order", True),
            ("autoinstall_known_extensions", False),
            ("enable_progress_bar", False),
        ):
            self.connection.execute(f"SET {setting} = {literal(str(value))}")

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()

    def open(self, table: str, path: str | Path, needed: Sequence[str]) -> None:
        """Make files readable as a table.

        Args:
            table: Name of the table.
            path: A file, a folder, a pattern, or a URL.
            needed: Columns that the table must have.

        Raises:
            DataError: The files cannot be read, or lack a column.
        """
        pattern, self.paths[table] = _pattern(path), str(path)
        with self._errors(table):
            if "://" in pattern:  # a URL is a request to use the network
                self.connection.execute("SET autoinstall_known_extensions = true")
            if pattern.endswith(PARQUET):
                relation = self.connection.read_parquet(pattern)
            elif pattern.endswith(CSV):
                relation = self.connection.read_csv(pattern)
            else:
                relation = self.connection.sql(LINES, params=[pattern])
                relation = relation.create(f"{table}_lines") or self.connection.table(f"{table}_lines")
            relation.create_view(table)
        if absent := [name for name in needed if name not in self.columns(table)]:
            raise DataError(f"{path} has no column {absent[0]!r}, only {[*self.columns(table)]}; give one of these")

    def columns(self, table: str) -> dict[str, str]:
        """Return the types of the columns of a table, by name."""
        return {name: kind for name, kind, *_ in self.rows(f"DESCRIBE {table}")}

    def run(self, sql: str) -> None:
        """Execute a statement."""
        with self._errors():
            self.connection.execute(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, for small results."""
        with self._errors():
            return self.connection.execute(sql).fetchall()

    def arrays(self, sql: str) -> list[np.ndarray]:
        """Return the columns of a query as arrays."""
        with self._errors():
            return [np.asarray(column) for column in self.connection.execute(sql).fetchnumpy().values()]

    @contextmanager
    def _errors(self, table: str = "") -> Iterator[None]:
        """Turn an error of DuckDB into ours."""
        where = self.paths.get(table) or " and ".join(self.paths.values())
        try:
            yield
        except self.disk_errors as error:
            if table:
                raise refusal(where, error, REMEDY) from error
            raise OutputError(
                f"{self.folder.parent} cannot hold the sorted tables ({error}); free some space"
            ) from error
        except self.error as error:
            raise refusal(where, error, REMEDY) from error


def quoted(name: str) -> str:
    """Return a column name as it is written in SQL.

    >>> quoted("paid to")
    '"paid to"'
    """
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as it is written in SQL.

    >>> literal("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def _pattern(path: str | Path) -> str:
    """Return the pattern of the files: that of the Parquet or CSV files in a folder, else the path itself."""
    if not Path(path).is_dir():
        return str(path)
    for suffix in (*PARQUET, *CSV):
        if next(Path(path).rglob(f"*{suffix}"), None):
            return f"{path}/**/*{suffix}"
    raise DataError(f"{path} holds neither Parquet nor CSV files; {REMEDY}")
