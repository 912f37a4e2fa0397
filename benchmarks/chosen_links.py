"""Tables of the attackers who choose their links: what each method withstands. Used by `pages.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

from fgai.bench.plan import Plan
from fgai.bench.results import CellStore
from fgai.bench.tables import grid

RESULTS = Path(__file__).parent.parent / "results"
OURS = ("fgai", "fgai:chosen-links")


def shown(value: float | None) -> str:
    """A value of a table; a dash stands for what has not run."""
    return "-" if value is None else f"{value:.3f}"


def metric(plan: Plan, dataset: str, backbone: str, method: str, name: str = "f1") -> dict[str, float]:
    """A metric of the one cell of a method in a plan, by attack."""
    (cell,), store = plan.cells_of(dataset, backbone, method), CellStore(RESULTS / "chosen-links")
    return {row.attack: float(row.metrics[name] or 0) for row in store.rows(cell) if not row.error}


def withstood(attack: str) -> str:
    """F1 of each method under an attacker who chooses its links, one line per dataset and backbone; best in bold."""
    plan, body = Plan.read("chosen-links"), []
    for dataset, backbone in product(plan.seeds, plan.backbones):
        f1 = {method: metric(plan, dataset, backbone, method) for method in plan.methods}
        values = [f1[method].get(attack) for method in f1]
        best = max((value for value in values if value is not None), default=0.0)
        if {*values} != {None}:
            marked = [f"**{shown(value)}**" if value == best else shown(value) for value in values]
            body.append([dataset, backbone, shown(f1["vanilla"].get("none")), *marked])
    return grid(["dataset", "backbone", "vanilla, clean", *(f"`{method}`" for method in plan.methods)], body)


def explained() -> str:
    """g-JSD and V_5 of the attention of the last layer and along the tree, each under an attack on it."""
    plan, body = Plan.read("chosen-links"), []
    attacks = ("explanation", "explanation:tree")
    for line in plan.lines():
        divergence, overlap = (metric(plan, *line, name) for name in ("g_jsd", "overlap"))
        if {*attacks} <= divergence.keys():
            values = [(f"{divergence[attack]:.1e}", f"{overlap[attack]:.3f}") for attack in attacks]
            body.append([*line[:2], f"`{line[2]}`", *values[0], *values[1]])
    return grid(["dataset", "backbone", "method", "g-JSD, last", "V_5, last", "g-JSD, tree", "V_5, tree"], body)


def goals() -> str:
    """What was asked of FGAI under these attackers and what it reaches; a cross marks what falls short."""
    plan, body = Plan.read("chosen-links"), []
    for dataset, backbone, method in product(plan.seeds, plan.backbones, OURS):
        own, plain = (metric(plan, dataset, backbone, name) for name in (method, "vanilla"))
        rivals = [metric(plan, dataset, backbone, name).get("strongest") for name in plan.methods if name not in OURS]
        against = [value for value in rivals if value is not None]
        if not {"strongest", "realistic"} <= own.keys() or "strongest" not in plain:
            continue
        differences = [own[attack] - plain["none"] for attack in ("none", "strongest", "realistic")]
        pairs = zip([*differences, own["strongest"] - max(against)], (-0.01, -0.05, -0.015, 0.0), strict=True)
        marks = [f"{value:+.3f}{'' if value >= least else ' ✗'}" for value, least in pairs]
        body.append([dataset, backbone, f"`{method}`", *marks, str(len(against))])
    head = [
        "clean (≥ -.01)",
        "strongest (≥ -.05)",
        "realistic (≥ -.015)",
        "strongest - best rival's (≥ 0)",
        "rivals",
    ]
    return grid(["dataset", "backbone", "method", *head], body)


def inductive() -> str:
    """F1 of models that were trained without the test nodes, and of those that were trained on the whole graph."""
    hidden, transductive, body = Plan.read("inductive"), Plan.read("chosen-links"), []
    for dataset, backbone, method in hidden.lines():
        pair = [metric(one, dataset, backbone, method) for one in (hidden, transductive)]
        if all(pair):
            values = [" / ".join(f"{f1[attack]:.3f}" for f1 in pair) for attack in ("none", *hidden.attacks)]
            body.append([dataset, backbone, f"`{method}`", *values])
    return grid(["dataset", "backbone", "method", "clean", *hidden.attacks], body)


def defences() -> str:
    """F1 of defences and of a robust aggregation, clean and under attackers who choose their links."""
    plan, body = Plan.read("defences"), []
    attacks = ("none", *plan.attacks)
    for dataset, backbone, method in plan.lines():
        f1 = metric(plan, dataset, backbone, method)
        if {*attacks} <= f1.keys():
            body.append([dataset, backbone, f"`{method}`", *(shown(f1[attack]) for attack in attacks)])
    return grid(["dataset", "backbone", "method", "clean", *plan.attacks], body)


def independent() -> str:
    """F1 of models under `strongest`, and under the script that shares no attack with it, by its choice of links."""
    plan, rows = Plan.read("chosen-links"), json.loads((RESULTS / "independent.json").read_text())
    own = {(row["model"], row["links"]): row["f1"] for row in rows}
    body, choices = [], ("degree", "cover", "chance")
    for line in plan.lines():
        (cell,) = plan.cells_of(*line)
        theirs = [own.get((cell.name, links)) for links in choices]
        if any(value is not None for value in theirs):
            strongest = metric(plan, *line).get("strongest")
            body.append([*line[:2], f"`{line[2]}`", *map(shown, (strongest, *theirs))])
    return grid(["dataset", "backbone", "method", "`strongest`", *(f"script, by {name}" for name in choices)], body)


def reach() -> str:
    """The largest row of the box [-1, 1] and the median row of each dataset, as sums of absolute values."""
    rows = json.loads((RESULTS / "box.json").read_text())
    body = [[row["dataset"], f"{row['features']:,}", f"{row['median']:g}", f"{row['ratio']:g}"] for row in rows]
    return grid(["dataset", "largest row of the box", "median row of the data", "ratio"], body)


FIGURES: dict[str, Callable[[], str]] = {
    **{f"withstood-{name}": partial(withstood, name) for name in ("strongest", "realistic")},
    "withstood-explanation": explained,
    "chosen-goals": goals,
    "inductive": inductive,
    "defences": defences,
    "independent": independent,
    "reach": reach,
}
