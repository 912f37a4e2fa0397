"""Certified shares of the four methods side by side, from results/cells: docs/certified-methods.png.

python benchmarks/certified_methods.py
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import mean

from fgai.bench.rows import Row
from fgai.bench.run import RADII
from fgai.bench.store import Store
from fgai.plots import certified_curves

CELLS, FIGURE, BACKBONE = Path("results/cells"), Path("docs/certified-methods.png"), "gat"


def main() -> None:
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in Store(CELLS).every():
        if row.attack == "none" and row.backbone == BACKBONE:
            found[row.dataset][row.method].append(row)
    panels = {
        dataset: {
            method: [(r, mean(float(row.metrics[f"share_{r:g}"] or 0) for row in rows)) for r in RADII]
            for method, rows in methods.items()
        }
        for dataset, methods in found.items()
    }
    certified_curves(panels).savefig(FIGURE, dpi=110)


if __name__ == "__main__":
    main()
