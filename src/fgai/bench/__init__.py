"""The experiments: plans, how they run, and the result rows behind every published number."""

from fgai.bench.results import Row, read_rows, write_rows

__all__ = ["Row", "read_rows", "write_rows"]
