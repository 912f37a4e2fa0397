"""Runs random committed cells again with `fgai.bench.verify`: results/verified.json.

The cells are drawn with a seed. Those of coauthor-physics and Pro-GNN are left out: one takes a quarter of an hour or
more. A cell with a row in the file is not run again.

python benchmarks/verified.py
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from fgai.bench.results import read_rows
from fgai.bench.verify import Verification, verify
from resumable import keep, rows_in

CELLS, RESULTS = Path("results/cells"), Path("results/verified.json")
SEED, DRAWN = 26, 10
LEFT_OUT = ("coauthor-physics", "pro-gnn")


def sample(seed: int = SEED, count: int = DRAWN) -> list[str]:
    """The names of random cells, the fastest first."""
    names = [path.stem for path in sorted(CELLS.glob("*.json")) if not any(part in path.stem for part in LEFT_OUT)]
    return sorted(random.Random(seed).sample(names, count), key=_seconds)


def _seconds(name: str) -> float:
    return sum(one.seconds for one in read_rows(CELLS / f"{name}.json"))


def row(done: Verification) -> dict[str, Any]:
    """A row of the file: how many numbers agree, and the F1 of each attack."""
    f1 = {one.attack: [round(value, 5) for value in (one.committed, one.again, one.allowed)] for one in done.comparisons
          if one.metric == "f1"}  # fmt: skip
    outside = [f"{one.attack} {one.metric}: {one.committed:.5g} -> {one.again:.5g}, allowed {one.allowed:.2g}"
               for one in done.comparisons if not one.ok]  # fmt: skip
    return {
        "cell": done.name,
        "seeds": done.seeds,
        "numbers": len(done.comparisons),
        "within": sum(one.ok for one in done.comparisons),
        "equal": sum(one.equal for one in done.comparisons),
        "f1": f1,
        "outside": outside,
        "differences": list(done.differences),
        "seconds": round(done.seconds),
    }


def main(count: Annotated[int, typer.Option(help="Number of cells.")] = DRAWN) -> None:
    """Verify the cells that have no row yet."""
    torch.set_num_threads(1)
    for name in sample(count=count):
        if not any(one["cell"] == name for one in rows_in(RESULTS)):
            keep(RESULTS, ("cell",), [row(verify(name, CELLS))])


if __name__ == "__main__":
    typer.run(main)
