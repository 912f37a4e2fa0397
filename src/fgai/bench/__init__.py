"""The experiments: what is run, and the rows in which every figure that is shown is kept."""

from fgai.bench.results import Row, read_rows, write_rows

__all__ = ["Row", "read_rows", "write_rows"]
