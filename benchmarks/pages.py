"""Writes the figures of `results/` into the marked places of README and docs; `--check` fails where they have drifted.

    python benchmarks/pages.py

A place is marked `<!-- figures: name -->` ... `<!-- end -->`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from statistics import mean, stdev

from fgai.bench.costs import read_costs
from fgai.bench.rows import read_rows

ROOT = Path(__file__).parent.parent
PLACE = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def spread(values: list[float], digits: int = 3) -> str:
    """Mean and deviation, or the one value there is, or a dash."""
    if not values:
        return "-"
    middle = f"{mean(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ± {stdev(values):.{digits}f}"


def vanilla() -> str:
    """Micro-F1 of plain training, by backbone and dataset, the paper's in brackets."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in read_rows(ROOT / "results/vanilla.json"):
        found[row.backbone, row.dataset].append(float(row.metrics["f1"] or 0))
    cells = tomllib.loads(files("fgai.bench").joinpath("paper/table2.toml").read_text())["cells"]
    paper = {(cell["backbone"], cell["dataset"]): cell["f1"] for cell in cells if cell["method"] == "vanilla"}
    columns = ["amazon-photo", "amazon-computers", "coauthor-cs", "coauthor-physics"]
    return table(
        ["", *columns],
        [
            [name, *(f"{spread(found[name, column])} ({paper[name, column]:.3f})" for column in columns)]
            for name in ("gat", "gatv2", "gt")
        ],
    )


def audit() -> str:
    """Vanilla GAT on Amazon-Photo, by attack."""
    rows = read_rows(ROOT / "results/audit-vanilla.json")
    columns = ["f1", "g_tvd", "g_jsd", "overlap", "f_slope_plus", "f_slope_minus", "nonuniformity"]
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for column in columns:
            found[row.attack][column].append(float(row.metrics[column] or 0))
    attacks = ["none", "injection-20x20", "injection-20x40", "strongest", "explanation"]
    return table(["attack", *columns], [[name, *(spread(found[name][c]) for c in columns)] for name in attacks])


def certificates() -> str:
    """Median certified radius and shares of the vanilla models."""
    rows = [row for row in read_rows(ROOT / "results/certificates.json") if row.attack == "none"]
    columns = ["contested", "median_radius", "share_0.001", "share_0.01", "share_0.05", "share_0.1"]
    body = [[r.dataset, r.backbone, *(f"{float(r.metrics[c] or 0):.2g}" for c in columns)] for r in rows]
    return table(["dataset", "backbone", *columns], body)


def costs(file: str) -> str:
    rows = read_costs(ROOT / "results" / file)
    return table(
        ["what", "dataset", "model", "value", "command"],
        [[cost.what, cost.dataset, cost.backbone, f"{cost.value:g}", f"`{cost.command}`"] for cost in rows],
    )


FIGURES: dict[str, Callable[[], str]] = {
    "vanilla": vanilla,
    "audit": audit,
    "certificates": certificates,
    "speed": lambda: costs("speed.json"),
    "scale": lambda: costs("scale.json"),
}


def filled(text: str) -> str:
    return PLACE.sub(lambda place: place[1] + "\n" + FIGURES[place[2]]() + "\n" + place[3], text)


def main(check: bool) -> int:
    drifted = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        old = page.read_text()
        if (new := filled(old)) != old:
            drifted.append(page.name)
            if not check:
                page.write_text(new)
    print(f"{'drifted' if check else 'written'}: {', '.join(drifted) or 'nothing'}")
    return int(check and bool(drifted))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
