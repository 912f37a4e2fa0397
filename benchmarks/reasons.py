"""Tables and the picture of docs/known-reasons.md, from results/known_reasons.json and results/planted.json.

python benchmarks/reasons.py  # draws docs/known-reasons.svg; the tables are written by benchmarks/pages.py
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy import stats

from fgai.bench.tables import grid
from fgai.plots.canvas import canvas, save

ROOT = Path(__file__).parent.parent
EXPLANATIONS = ("tree", "last", "first", "leave-one-out", "GNNExplainer", "integrated gradients", "random")
SHOWN = {  # model and graph: marker
    ("vanilla", "clean"): {"marker": "o", "color": "C0"},
    ("vanilla", "attacked"): {"marker": "o", "color": "C0", "markerfacecolor": "white"},
    ("fgai", "clean"): {"marker": "s", "color": "C1"},
    ("fgai", "attacked"): {"marker": "s", "color": "C1", "markerfacecolor": "white"},
}
AS_GATT = "3 layers, as GAtt"
Key = tuple[str, str, str, str]  # setting, dataset, method, graph


def rows_of(name: str) -> list[dict[str, Any]]:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def by_cell(values: str = "auroc") -> dict[Key, dict[str, list[float]]]:
    """Return the values of each cell and explanation, one per seed."""
    cells: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of("known_reasons"):
        if values in row:
            cells[row["setting"], row["dataset"], row["method"], row["graph"]][row["explanation"]].append(row[values])
    return cells


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of the mean, by Student's t.

    >>> round(half_width([0.5, 0.7]), 3)  # 12.706 x 0.1414 / sqrt(2)
    1.271
    """
    return float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5


def shown(values: Sequence[float]) -> str:
    """Return the mean and half the width of its interval, the value itself if there is one, or a dash."""
    if len(values) < 2:
        return f"{values[0]:.3f}" if values else "-"
    return f"{mean(values):.3f} ± {half_width(values):.3f}"


def known_reasons() -> str:
    """AUROC of the true edges by explanation: mean over seeds, half the width of its 95 % interval."""
    cells, accuracy, body = by_cell(), by_cell("accuracy"), []
    for key, cell in sorted([*cells.items()], key=lambda item: (*item[0][:2], item[0][2] == "fgai", item[0][3])):
        if not key[0].startswith("released") and key[2] != "none":
            baseline = cells[*key[:2], "none", "clean"]["nearest"]
            body.append([*key, str(len(cell["tree"])), f"{mean(accuracy[key]['tree']):.3f}"])
            body[-1] += [shown(values) for values in (*(cell[name] for name in EXPLANATIONS), baseline)]
    return grid(["setting", "dataset", "model", "graph", "seeds", "accuracy", *EXPLANATIONS, "nearest"], body)


def released() -> str:
    """AUROC on the released models of GAtt, and on models that are trained here in the same setting."""
    names, cells, body = ("tree", "mean of the layers", "last", "first", "nearest"), by_cell(), []
    accuracy, nodes = by_cell("accuracy"), by_cell("nodes")
    rows = [row for row in rows_of("known_reasons") if "difference" in row]
    differences = {(row["setting"], row["dataset"]): f"{row['difference']:.0e}" for row in rows}
    for key, cell in cells.items():
        if "tree" in cell and (key[0].startswith("released") or key[0] == AS_GATT):
            aurocs = {**cells.get((*key[:2], "none", "clean"), {}), **cell}
            seeds = "" if key[0].startswith("released") else f", {len(cell['tree'])} seeds"
            body.append([key[1], key[0] + seeds, f"{mean(accuracy[key]['tree']):.3f}", f"{sum(nodes[key]['tree']):,}"])
            body[-1] += [*(shown(aurocs.get(name, [])) for name in names), differences.get(key[:2], "-")]
    head = ["dataset", "models", "accuracy", "nodes", *names, "largest difference of `tree` to GAtt"]
    return grid(head, sorted(body))


def planted() -> str:
    """Measured and expected rates of grades, in percent."""
    words = ("supported", "contradicted", "unknown")
    body = [
        [
            row["planted"],
            f"{row['nodes']:,}",
            f"{row['draws']:,}",
            *(f"{100 * row[word]:.1f} ({100 * row[f'expected_{word}']:.1f})" for word in words),
            f"{100 * row['wrong']:.1f}",
        ]
        for row in sorted(rows_of("planted"), key=lambda row: (row["planted"], row["nodes"]))
    ]
    return grid(["planted", "nodes", "draws", *(f"{word}, %" for word in words), "wrong, %"], body)


def draw() -> Any:
    """Plot the AUROC of each explanation, with the 95 % interval over seeds: a panel per dataset."""
    cells = {key[1:]: cell for key, cell in by_cell().items() if key[0] == "2 layers"}
    figure, (axes,) = canvas(1, 2, width=4.4, height=3.6, sharey=True)
    for axis, dataset in zip(axes, ("ba-shapes", "infection"), strict=True):
        for i, ((method, graph), style) in enumerate(SHOWN.items()):
            cell = cells[dataset, method, graph]
            means, widths = ([f(cell[name]) for name in EXPLANATIONS] for f in (mean, half_width))
            places = [place + 0.18 * (i - 1.5) for place in range(len(EXPLANATIONS))]
            label = f"{method}, {graph}"
            axis.errorbar(means, places, xerr=widths, linestyle="", linewidth=1, markersize=5, label=label, **style)
        nearest = mean(cells[dataset, "none", "clean"]["nearest"])
        axis.axvline(nearest, color="grey", linestyle=":", linewidth=1, label="nearest edges first")
        axis.set(title=dataset, xlabel="AUROC of the true edges", yticks=range(len(EXPLANATIONS)))
        axis.set_yticklabels(EXPLANATIONS)
        axis.grid(axis="x", alpha=0.3)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    save(draw(), ROOT / "docs/known-reasons.svg")
