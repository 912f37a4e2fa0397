"""Tables of proofs: certified shares with their baselines, and certified items under attack. Used by `pages.py`."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

from fgai.bench.tables import grid

RESULTS = Path(__file__).parent.parent / "results"
COUNTS = ("items", "certified", "fell", "violations", "lost_members")
Row = dict[str, Any]


def _rows(file: str) -> list[Row]:
    path = RESULTS / file
    return json.loads(path.read_text()) if path.exists() else []


def certified(against: str) -> str:
    """Shares certified and right of each model beside its accuracies, mean over seeds; for injections also V_5."""
    rows = [row for row in _rows("certified.json") if row["against"] == against]
    budgets = sorted({row["budget"] for row in rows})
    models: dict[tuple[str, str, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        models[row["dataset"], row["backbone"], row["method"], row["groups"]].append(row)
    names = ["certified_and_right", *(["overlap"] if against.startswith("injection") else [])]
    voting, body = against == "links", []
    for (dataset, backbone, method, groups), own in models.items():
        about = [dataset, backbone, method, str(len({row["seed"] for row in own})), *([str(groups)] if voting else [])]
        accuracies = [f"{mean(row[name] for row in own):.3f}" for name in ("accuracy", "plain", "without_links")]
        body.append([*about, *accuracies, *(_mean_at(own, budget, name) for name in names for budget in budgets)])
    letter = {"links": "e", "deletions": "q"}.get(against, "m")
    head = ["dataset", "backbone", "method", "seeds", *(["T"] if voting else []), "accuracy", "plain", "without links"]
    heads = [f"{'' if name != 'overlap' else 'V_5, '}{letter} = {budget}" for name in names for budget in budgets]
    return grid([*head, *heads], body)


def _calibrated(links: int) -> dict[tuple[str, ...], list[Row]]:
    """The rows of votes with the T that certifies most validation nodes as right, a row per seed, by model."""
    options: dict[tuple[str, str, str, int], list[Row]] = defaultdict(list)
    for row in _rows("certified.json"):
        if row["against"] == "links" and row["budget"] == links and "validation" in row:
            options[row["dataset"], row["backbone"], row["method"], row["seed"]].append(row)
    models: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for (*about, _), rows in options.items():
        rows.sort(key=lambda row: row["groups"])
        models[*map(str, about)].append(max(rows, key=lambda row: (row["validation"], row["validation_accuracy"])))
    return models


def chosen(links: int = 5) -> str:
    """Votes with the T that validation nodes choose: shares of test nodes."""
    body = []
    for about, own in _calibrated(links).items():
        right, accuracy, plain, bare = (
            mean(row[name] for row in own) for name in ("certified_and_right", "accuracy", "plain", "without_links")
        )
        groups = ", ".join(str(count) for count in sorted({row["groups"] for row in own}))
        figures = [f"{value:.3f}" for value in (right, bare, right - bare, accuracy, plain, accuracy - plain)]
        body.append([*about, str(len(own)), groups, *figures])
    head = ["dataset", "backbone", "method", "seeds", "T", f"certified and right, e = {links}", "without links"]
    return grid([*head, "difference", "accuracy", "plain", "difference"], body)


def ahead(backbone: str = "gat") -> str:
    """How much more is certified and right than the model without links has right, by the number of links."""
    columns = {links: _calibrated(links) for links in (1, 2, 5, 10)}
    body = []
    for about in columns[1]:
        if about[1:] in ((backbone, "vanilla"), (backbone, "fgai")):
            own = [columns[links][about] for links in columns]
            gains = [mean(row["certified_and_right"] - row["without_links"] for row in rows) for rows in own]
            body.append([about[0], about[2], *(f"{gain:+.3f}" for gain in gains)])
    return grid(["dataset", f"method, {backbone.upper()}", *(f"e = {links}" for links in columns)], body)


def training() -> str:
    """Certified training and its trials: accuracy, shares certified and right, and what became of the attention."""
    threats = ("injection-20x20", "realistic")
    body = [
        [
            row["dataset"],
            row["trial"],
            f"{row['f1']:.3f}",
            *(f"{row[f'certified_and_right {m}']:.3f}" for m in (1, 2, 5)),
            *(f"{row[f'f1 {threat}']:.3f}" for threat in threats),
            *(f"{row[f'overlap {threat}']:.2f}" for threat in threats),
            f"{row['nonuniformity']:.3f}",
            row["last_faithful"],
        ]
        for row in _rows("certified_training.json")
    ]
    attacked = [f"{name}, {threat}" for name in ("F1", "V_5") for threat in threats]
    head = ["dataset", "training", "F1", "m = 1", "m = 2", "m = 5", *attacked, "distance from 1/degree", "`last`"]
    return grid(head, body)


def intercepted() -> str:
    """Interception beside votes: shares certified and right over the budget."""
    sums: dict[tuple[str, ...], dict[int, Row]] = defaultdict(dict)
    for row in _rows("interception.json"):
        about = (row["dataset"], row["model"], row["against"], row["method"], str(row["groups"] or "-"))
        sums[about][row["budget"]] = row
    budgets = sorted({budget for rows in sums.values() for budget in rows if budget})
    body = []
    for about, rows in sorted(sums.items(), key=lambda item: (*item[0][:3], int(item[0][4].replace("-", "0")))):
        one = rows[0]
        right = [f"{rows[b]['certified_and_right']:.3f}" if b in rows else "-" for b in (0, *budgets)]
        body.append([*about, f"{one['passes']:,}", f"{one['accuracy']:.3f}", *right])
    head = ["dataset", "model", "attacker", "method", "T", "passes", "accuracy", "no abstention and right"]
    return grid([*head, *(f"budget {budget}" for budget in budgets)], body)


def _mean_at(rows: Iterable[Row], budget: int, name: str) -> str:
    """The mean of a column over the seeds at one budget, or a dash."""
    values = [row[name] for row in rows if row["budget"] == budget and row.get(name) is not None]
    return f"{mean(values):.3f}" if values else "-"


def attacked() -> str:
    """Items attacked, certified ones, those that fell, and violations; summed over budgets and seeds."""
    sums: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for row in _rows("attacked_certificates.json"):
        about = tuple(str(row[part]) for part in ("dataset", "backbone", "method", "against", "attacker"))
        sums[about].update({name: row[name] or 0 for name in COUNTS})
    body = [[*about, *(f"{count[name]:,}" for name in COUNTS)] for about, count in sums.items()]
    total = [f"{sum(count[name] for count in sums.values()):,}" for name in COUNTS]
    head = ["dataset", "model", "method", "against", "attacker", "attacked", "certified", "fell", "violations"]
    return grid([*head, "of the top 5"], [["**in all**", *[""] * 4, *total], *body])


def targeted() -> str:
    """The share of nodes that new neighbours make fall, and the share that is certified: the model, and its votes."""
    shares: dict[tuple[str, ...], dict[int, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    kinds = {"injection": "[-1, 1]", "injection-realistic": "real-looking", "links": "any, T = 11"}
    for row in _rows("attacked_certificates.json"):
        if row["attacker"] in ("single", "votes"):
            method = f"Voted({row['method']})" if row["attacker"] == "votes" else row["method"]
            about = (row["dataset"], row["backbone"], method, kinds[row["against"]])
            shares[about][row["budget"]].update({name: row[name] or 0 for name in COUNTS})
    budgets = sorted({budget for at in shares.values() for budget in at})
    body = [
        [*about, *(f"{at[budget][name] / at[budget]['items']:.3f}" for name in ("fell", "certified") for budget in at)]
        for about, at in sorted(shares.items())
    ]
    heads = [f"{name}, m = {budget}" for name in ("falls", "certified") for budget in budgets]
    return grid(["dataset", "backbone", "model", "features", *heads], body)
