"""Tables of docs/graphs.md, from results/graph_reasons.json."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

from fgai.bench.tables import grid
from fgai.intervals import Interval
from prose import paragraphs

ROOT = Path(__file__).parent.parent
METHODS = ("plain", "vanilla", "ln", "at", "fgai")
EXPLANATIONS = ("tree", "last", "first", "GNNExplainer", "integrated gradients", "random")
PAIRS = (("vanilla", "plain", "clean"), ("fgai", "vanilla", "clean"), ("fgai", "at", "attacked"))
CELLS = 18
NOT_RUN = "Not run yet.\n"
Rows = list[dict[str, Any]]
Cell = tuple[str, str]  # dataset, backbone


def _rows(name: str) -> Rows:
    path = ROOT / f"results/{name}.json"
    return json.loads(path.read_text()) if path.exists() else []


def _cells() -> dict[Cell, dict[tuple[str, str], Rows]]:
    """Return the rows of each dataset and backbone, by method and graph, of the seeds that all methods ran with."""
    rows = _rows("graph_reasons")
    methods: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for row in rows:
        methods[row["dataset"], row["backbone"], row["seed"]].add(row["method"])
    cells: dict[Cell, dict[tuple[str, str], Rows]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if methods[row["dataset"], row["backbone"], row["seed"]] >= {*METHODS}:
            cells[row["dataset"], row["backbone"]][row["method"], row["graph"]].append(row)
    return cells


def _mean(rows: Rows, name: str) -> float:
    return mean(row[name] for row in rows)


def _auroc(rows: Rows, explanation: str) -> float | None:
    values = [row["auroc"][explanation] for row in rows if row["auroc"].get(explanation) is not None]
    return mean(values) if values else None


def accuracy() -> str:
    """Accuracy and attention, clean and attacked, by method."""
    body = []
    for cell, at in _cells().items():
        for method in METHODS:
            clean, attacked = at[method, "clean"], at.get((method, "attacked"), [])
            figures = [f"{_mean(clean, 'f1'):.3f}"]
            figures += [f"{_mean(attacked, name):.3f}" if attacked else "-" for name in ("f1", "g_tvd", "overlap")]
            body.append([*cell, method, str(len(clean)), *figures])
    if not body:
        return NOT_RUN
    return grid(["dataset", "backbone", "method", "seeds", "accuracy", "attacked", "TVD", "V_5"], body)


def known_reasons() -> str:
    """AUROC of the known reasons by explanation, for vanilla and FGAI, clean and attacked."""
    body = []
    for cell, at in _cells().items():
        for name in EXPLANATIONS:
            values = [
                _auroc(at[method, graph], name) for method in ("vanilla", "fgai") for graph in ("clean", "attacked")
            ]
            if any(value is not None for value in values):
                body.append([*cell, name, *("-" if value is None else f"{value:.3f}" for value in values)])
    head = ["dataset", "backbone", "explanation", "vanilla", "vanilla, attacked", "FGAI", "FGAI, attacked"]
    return grid(head, body) if body else NOT_RUN


def _goals(at: dict[tuple[str, str], Rows]) -> dict[str, tuple[float, bool]]:
    """Return the figure of each goal of one cell, and whether it is reached."""
    f1 = {key: _mean(rows, "f1") for key, rows in at.items()}
    tree = {key: _auroc(rows, "tree") or 0.0 for key, rows in at.items() if key[0] in ("vanilla", "fgai")}
    plain, clean = f1["vanilla", "clean"] - f1["plain", "clean"], f1["fgai", "clean"] - f1["vanilla", "clean"]
    lost, less = (f1[m, "clean"] - f1[m, "attacked"] for m in ("vanilla", "fgai"))
    share = less / lost if lost > 0 else 0.0
    clean_auroc, attacked_auroc = (tree["fgai", graph] - tree["vanilla", graph] for graph in ("clean", "attacked"))
    return {
        "vanilla - plain (≥ 0)": (plain, plain >= 0),
        "FGAI - vanilla (≥ -.01)": (clean, clean >= -0.01),
        "loss under attack / vanilla's (≤ .5)": (share, share <= 0.5),
        "AUROC of `tree` - vanilla's (≥ 0)": (clean_auroc, clean_auroc >= 0),
        "the same, attacked (≥ .05)": (attacked_auroc, attacked_auroc >= 0.05),
    }


def goals() -> str:
    """What was asked of FGAI and what it reaches; a cross marks what falls short."""
    goals = {cell: _goals(at) for cell, at in _cells().items()}
    if not goals:
        return NOT_RUN
    names = list(next(iter(goals.values())))
    body = [
        [*cell, *(f"{value:+.3f}{'' if reached else ' ✗'}" for value, reached in figures.values())]
        for cell, figures in goals.items()
    ]
    counts = [f"{name}: {sum(figures[name][1] for figures in goals.values())}" for name in names]
    sentence = f"Goals reached, of {len(goals)} pairs of dataset and backbone: {'; '.join(counts)}."
    return f"{grid(['dataset', 'backbone', *names], body)}\n{paragraphs(sentence, '', *map(_paired, PAIRS))}"


def _paired(pair: tuple[str, str, str]) -> str:
    """A sentence about the difference of accuracy of two methods, paired by dataset, backbone and seed."""
    one, other, graph = pair
    differences = [
        row["f1"] - against["f1"]
        for at in _cells().values()
        for row, against in zip(at[one, graph], at[other, graph], strict=True)
    ]
    interval = Interval.of(differences)
    return (
        f"- {graph.capitalize()} accuracy, {one} - {other}: {100 * interval.mean:+.1f} points over {len(differences)} "
        f"cells (95 % interval {100 * interval.low:+.1f} to {100 * interval.high:+.1f})."
    )


def setting() -> str:
    """The settings of the rows."""
    used = next((row["settings"] for row in _rows("graph_reasons")), None)
    if used is None:
        return NOT_RUN
    sentence = (
        f"From each dataset a fixed random sample of {used['graphs']:,} molecules with at most {used['atoms at most']} "
        f"atoms, in proportion to the classes; 60 / 15 / 25 % of each class for training, validation and test, by "
        f"seed. Batches of {used['batch']} graphs, Adam with a rate of {used['lr']}, {used['epochs']} epochs; AT and "
        f"FGAI start from the vanilla model and take {used['tuned']} more."
    )
    done = sum(len(at["vanilla", "clean"]) for at in _cells().values())
    return paragraphs(f"{sentence} {done} of {CELLS} cells (dataset, backbone, seed) have run.")


def trials() -> str:
    """FGAI's settings on validation graphs."""
    rows = {(row["dataset"], row["trial"], row["graph"]): row for row in _rows("graph_trials")}
    body = []
    for dataset, trial in sorted({key[:2] for key in rows}, key=lambda key: (key[0], key[1] != "vanilla", key[1])):
        clean, attacked = (rows[dataset, trial, graph] for graph in ("clean", "attacked"))
        figures = [f"{clean[name]:.3f} / {attacked[name]:.3f}" for name in ("f1", "auc")]
        figures += [f"{attacked['overlap']:.3f}", f"{clean['auroc']['tree']:.3f} / {attacked['auroc']['tree']:.3f}"]
        body.append([dataset, trial, *figures])
    return grid(["dataset", "setting", "accuracy", "ROC-AUC of the classes", "V_5", "AUROC of `tree`"], body)


FIGURES = {
    "molecule-trials": trials,
    "molecules": accuracy,
    "molecule-reasons": known_reasons,
    "molecule-goals": goals,
    "molecule-setting": setting,
}
