"""How far the box [-1, 1] of the injected features reaches beyond the rows of each dataset: results/box.json.

python benchmarks/box.py
"""

from __future__ import annotations

from pathlib import Path

import typer

from fgai import datasets
from fgai.bench.plan import Plan
from fgai.files import write_json
from fgai.graph import require

RESULTS = Path("results/box.json")


def main() -> None:
    """Compare the largest row of the box with the median row, by the sum of their absolute values."""
    rows = []
    for dataset in Plan.read("chosen-links").seeds:
        data = datasets.load(dataset)
        x = require(data, "x")
        sums = (x.to_dense() if x.is_sparse else x).abs().sum(1)
        values = {"features": x.size(1), "median": round(float(sums.median()), 3)}
        rows.append({"dataset": dataset, **values, "ratio": round(x.size(1) / float(sums.median()), 1)})
        print(rows[-1], flush=True)
    write_json(RESULTS, rows)


if __name__ == "__main__":
    typer.run(main)
