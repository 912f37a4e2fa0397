"""From Parquet to a store, beside a bare DuckDB sort of the same file: results/scale.json.

python benchmarks/ingest.py --folder tables --edges 100000000   # 10^8 edges of 10^7 nodes: about 10 GB of disk
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import duckdb
import typer

from fgai.bench.results import Cost, write_costs
from fgai.large import DiskGraph
from fgai.large.database import MEMORY

COMMAND = "python benchmarks/ingest.py"
KILLS = 10  # moments at which a conversion is killed
SORT = """
import duckdb, sys
table, out, home, memory = sys.argv[1:]
database = duckdb.connect(home)
for setting, value in {"threads": 1, "memory_limit": memory, "temp_directory": f"{home}.tmp"}.items():
    database.execute(f"SET {setting} = '{value}'")
database.execute("SET enable_progress_bar = false")
database.execute(f"COPY (SELECT * FROM '{table}' ORDER BY target, source) TO '{out}'")
"""
CONVERT = """
import sys, torch
torch.set_num_threads(1)
from fgai.large import convert_tables
print(convert_tables(sys.argv[1], sys.argv[2]).num_edges)
"""


def measured(code: str, *words: str) -> tuple[float, float]:
    """Run Python code in a process of its own; return its seconds on the wall, and its peak memory in MB."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", code, *words])
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the process ended with status {status}")
    return time.perf_counter() - start, used.ru_maxrss / 1024


def killed(table: Path, folder: Path, seconds: float, edges: int) -> int:
    """Kill conversions at random moments, then convert; return the number of incomplete stores and left-over files."""
    wrong = 0
    for draw in range(KILLS):
        process = subprocess.Popen([sys.executable, "-c", CONVERT, str(table), str(folder)])
        time.sleep(random.Random(draw).uniform(0.02, 0.95) * seconds)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if folder.exists():  # the conversion ended before the kill
            wrong += DiskGraph(folder).num_edges != edges
            shutil.rmtree(folder)
            print(f"kill {draw}: the conversion was complete", flush=True)
    measured(CONVERT, str(table), str(folder))
    left = [path.name for path in folder.parent.iterdir() if path.name.startswith(f".{folder.name}.")]
    print(f"{KILLS} kills, then a conversion of {DiskGraph(folder).num_edges:,} edges; left over: {left}", flush=True)
    return wrong + len(left)


def main(
    folder: Annotated[Path, typer.Option(help="Where the table and the store are written.")],
    edges: Annotated[int, typer.Option(help="Number of edges; a tenth as many nodes.")] = 10**8,
    kill: Annotated[bool, typer.Option(help="Also kill conversions at ten moments.")] = False,
) -> None:
    """Generate a table of random edges, sort it with DuckDB alone, and convert it."""
    folder.mkdir(parents=True, exist_ok=True)
    table, store, dataset = folder / "edges.parquet", folder / "store", f"generated, 10^{math.log10(edges):g} edges"
    if not table.exists():
        pair = f"(hash(i) % {edges // 10})::INTEGER AS source, (hash(i + {edges}) % {edges // 10})::INTEGER AS target"
        duckdb.sql(f"COPY (SELECT {pair} FROM range({edges}) r(i)) TO '{table}'")
    shutil.rmtree(store, ignore_errors=True)
    bare, _ = measured(SORT, str(table), str(folder / "sorted.parquet"), str(folder / "sort.duckdb"), MEMORY)
    for name in ("sorted.parquet", "sort.duckdb"):
        (folder / name).unlink()
    ours, memory = measured(CONVERT, str(table), str(store))
    rows = {
        "Parquet to store, seconds": ours,
        "Parquet to store, over a bare DuckDB sort of the file": ours / bare,
        "Parquet to store, most memory, MB": memory,
    }
    if kill:
        shutil.rmtree(store)
        wrong = killed(table, store, ours, edges)
        rows[f"Parquet to store, {KILLS} kills: incomplete stores and left-over files"] = wrong
    print(json.dumps(rows))
    write_costs(
        "results/scale.json", [Cost(what, dataset, "-", round(value, 3), COMMAND) for what, value in rows.items()]
    )


if __name__ == "__main__":
    typer.run(main)
