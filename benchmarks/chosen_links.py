"""Tables of the attackers who choose their links: what each method withstands. Used by `pages.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean

from fgai.bench.plan import Plan
from fgai.bench.results import CellStore
from fgai.bench.tables import grid
from fgai.intervals import Interval

RESULTS = Path(__file__).parent.parent / "results"
OURS = (
    "fgai",
    "fgai:chosen-links",
    "fgai:chosen-links-labels",
    "fgai:bounded",
    "fgai:bounded-labels",
    "fgai:only-prediction",
)
BOUNDED = ("at:bounded", "fgai:bounded", "fgai:bounded-labels")
GOALS = {"none": -0.01, "strongest": -0.05, "realistic": -0.015}  # least F1 minus vanilla's on the clean graph
MIN_SEEDS = 3  # for an interval
BySeed = dict[int, float]


def shown(value: float | None) -> str:
    """A value of a table; a dash stands for what has not run."""
    return "-" if value is None else f"{value:.3f}"


def metric(plan: Plan, dataset: str, backbone: str, method: str, name: str = "f1") -> dict[str, BySeed]:
    """A metric of a method in a plan, by attack and seed.

    Rows that look like the data's lie in the box, so an F1 that `realistic` reaches counts for `strongest` as well.
    """
    values: dict[str, BySeed] = {}
    for cell in plan.cells_of(dataset, backbone, method):
        for row in CellStore(RESULTS / "chosen-links").rows(cell):
            if not row.error:
                values.setdefault(row.attack, {})[cell.seed] = float(row.metrics[name] or 0)
    if name == "f1":
        for seed, lowest in values.get("realistic", {}).items():
            if seed in values.get("strongest", {}):
                values["strongest"][seed] = min(values["strongest"][seed], lowest)
    return values


def common(*values: BySeed) -> list[int]:
    """The seeds that all of them have."""
    return sorted(set.intersection(*map(set, values)))


def over(seeds: list[int], values: BySeed) -> float:
    """The mean over these seeds."""
    return mean(values[seed] for seed in seeds)


def withstood(attack: str) -> str:
    """F1 of each method under an attacker who chooses its links, one line per dataset and backbone.

    The best is in bold, up to the decimals that are shown. Means are over the seeds that all methods of the line have
    which ran at all.
    """
    plan, body = Plan.read("chosen-links"), []
    for dataset, backbone in product(plan.seeds, plan.backbones):
        f1 = {method: metric(plan, dataset, backbone, method) for method in plan.methods}
        values = [f1[method].get(attack) for method in f1]
        ran = [by_seed for by_seed in values if by_seed]
        if not ran:
            continue
        seeds = common(*ran)
        means = [over(seeds, by_seed) if by_seed else None for by_seed in values]
        best = shown(max(value for value in means if value is not None))
        marked = [f"**{best}**" if len(ran) > 1 and shown(value) == best else shown(value) for value in means]
        clean = f1["vanilla"].get("none")
        body.append([dataset, backbone, str(len(seeds)), shown(over(seeds, clean) if clean else None), *marked])
    head = ["dataset", "backbone", "seeds", "vanilla, clean"]
    return grid([*head, *(f"`{method}`" for method in plan.methods)], body)


def explained() -> str:
    """The columns of the plan under attacks on the explanation; a dash stands for what has not run."""
    plan, body = Plan.read("chosen-links"), []
    columns = [column for column in plan.columns if column.attack.startswith("explanation")]
    formats = {"g_jsd": ".1e", "overlap": ".3f"}
    for line in plan.lines():
        values = {name: metric(plan, *line, name) for name in formats}
        ran = values["g_jsd"].keys() & {column.attack for column in columns}
        if {"explanation", "explanation:tree"} <= ran:
            seeds = common(*(values["g_jsd"][attack] for attack in ran))
            cells = [
                format(over(seeds, values[column.metric][column.attack]), formats[column.metric])
                if column.attack in ran
                else "-"
                for column in columns
            ]
            body.append([*line[:2], f"`{line[2]}`", str(len(seeds)), *cells])
    return grid(["dataset", "backbone", "method", "seeds", *(column.heading for column in columns)], body)


def goals() -> str:
    """What was asked of FGAI under these attackers and what it reaches; a cross marks what falls short."""
    plan, body = Plan.read("chosen-links"), []
    for dataset, backbone, method in product(plan.seeds, plan.backbones, OURS):
        own, plain = (metric(plan, dataset, backbone, name) for name in (method, "vanilla"))
        if not {"strongest", "realistic"} <= own.keys() or "strongest" not in plain:
            continue
        seeds = common(plain["none"], *(own[attack] for attack in GOALS))
        means = {attack: over(seeds, own[attack]) - over(seeds, plain["none"]) for attack in GOALS}
        marks = [f"{means[attack]:+.3f}{'' if means[attack] >= least else ' ✗'}" for attack, least in GOALS.items()]
        rivals = [metric(plan, dataset, backbone, name).get("strongest") for name in plan.methods if name not in OURS]
        against = [by_seed for by_seed in rivals if by_seed]
        line = [dataset, backbone, f"`{method}`", str(len(seeds)), *marks]
        body.append([*line, lead(own["strongest"], against), str(len(against))])
    head = ["clean (≥ -.01)", "strongest (≥ -.05)", "realistic (≥ -.015)", "strongest - best rival's", "rivals"]
    return grid(["dataset", "backbone", "method", "seeds", *head], body)


def lead(own: BySeed, rivals: list[BySeed]) -> str:
    """F1 minus that of the best rival, with a 95 % interval from three seeds on.

    The best rival is the best on the seeds of all; the difference is over all seeds of that pair. A cross marks an
    interval, or without one a difference, below 0.
    """
    best = max(rivals, key=partial(over, common(own, *rivals)))
    differences = [own[seed] - best[seed] for seed in common(own, best)]
    if len(differences) < MIN_SEEDS:
        return f"{mean(differences):+.3f}{'' if mean(differences) >= 0 else ' ✗'}"
    interval = Interval.of(differences)
    return f"{interval}, {len(differences)} seeds{'' if interval.high >= 0 else ' ✗'}"


def bounded() -> str:
    """F1 of models with a bounded first layer, beside the best model without one; common seeds.

    The method of that model is in brackets.
    """
    plan, body = Plan.read("chosen-links"), []
    attacks = ("strongest", "realistic")
    for dataset, backbone in product(plan.seeds, plan.where["fgai:bounded"]):
        f1 = {method: metric(plan, dataset, backbone, method) for method in plan.methods}
        ran = {method: by_attack for method, by_attack in f1.items() if {*attacks} <= by_attack.keys()}
        if not {"vanilla", "fgai:bounded"} <= ran.keys():
            continue
        seeds = common(*(by_attack[attack] for by_attack in ran.values() for attack in attacks))
        means = {(name, attack): over(seeds, ran[name][attack]) for name in ran for attack in ("none", *attacks)}
        clean = (shown(means.get((name, "none"))) for name in ("vanilla", *BOUNDED[1:]))
        line = [dataset, backbone, str(len(seeds)), *clean]
        for attack in attacks:
            best = max((name for name in ran if name not in BOUNDED), key=lambda name: means[name, attack])
            line.append(f"{shown(means[best, attack])} (`{best}`)")
            line += [shown(means.get((name, attack))) for name in BOUNDED]
        body.append(line)
    head = ["dataset", "backbone", "seeds", "vanilla, clean", *(f"`{name}`, clean" for name in BOUNDED[1:])]
    by_attack = [[f"{attack}: best without", *(f"`{name}`" for name in BOUNDED)] for attack in attacks]
    return grid([*head, *by_attack[0], *by_attack[1]], body)


def inductive() -> str:
    """F1 of models that were trained without the test nodes, and of those that were trained on the whole graph."""
    hidden, transductive, body = Plan.read("inductive"), Plan.read("chosen-links"), []
    for dataset, backbone, method in hidden.lines():
        pair = [metric(one, dataset, backbone, method) for one in (hidden, transductive)]
        attacks = ("none", *hidden.attacks)
        if all({*attacks} <= f1.keys() for f1 in pair):
            seeds = common(*(f1[attack] for f1 in pair for attack in attacks))
            values = [" / ".join(f"{over(seeds, f1[attack]):.3f}" for f1 in pair) for attack in attacks]
            body.append([dataset, backbone, f"`{method}`", str(len(seeds)), *values])
    return grid(["dataset", "backbone", "method", "seeds", "clean", *hidden.attacks], body)


def defences() -> str:
    """F1 of defences and of a robust aggregation, clean and under attackers who choose their links."""
    plan, body = Plan.read("defences"), []
    attacks = ("none", *plan.attacks)
    for dataset, backbone, method in plan.lines():
        f1 = metric(plan, dataset, backbone, method)
        if {*attacks} <= f1.keys():
            seeds = common(*(f1[attack] for attack in attacks))
            values = [shown(over(seeds, f1[attack])) for attack in attacks]
            body.append([dataset, backbone, f"`{method}`", str(len(seeds)), *values])
    return grid(["dataset", "backbone", "method", "seeds", "clean", *plan.attacks], body)


def independent() -> str:
    """F1 of models under `strongest`, and under the script that shares no attack with it, by its choice of links."""
    plan, rows = Plan.read("chosen-links"), json.loads((RESULTS / "independent.json").read_text())
    own = {(row["model"], row["links"]): row["f1"] for row in rows}
    body, choices = [], ("degree", "cover", "chance", "cover, hidden")
    for line in plan.lines():
        strongest = metric(plan, *line).get("strongest", {})
        for cell in plan.cells_of(*line):
            theirs = [own.get((cell.name, links)) for links in choices]
            if any(value is not None for value in theirs):
                values = map(shown, (strongest.get(cell.seed), *theirs))
                body.append([*line[:2], f"`{line[2]}`", str(cell.seed), *values])
    head = ["dataset", "backbone", "method", "seed", "`strongest`", *(f"script, by {name}" for name in choices)]
    return grid(head, body)


def reach() -> str:
    """The largest row of the box [-1, 1] and the median row of each dataset, as sums of absolute values."""
    rows = json.loads((RESULTS / "box.json").read_text())
    body = [[row["dataset"], f"{row['features']:,}", f"{row['median']:g}", f"{row['ratio']:g}"] for row in rows]
    return grid(["dataset", "largest row of the box", "median row of the data", "ratio"], body)


def layer_norms() -> str:
    """F1 of the graph transformer with and without its parts, and of GAT with layer norms; means over seeds."""
    rows = json.loads((RESULTS / "layer_norms.json").read_text())
    models = {name: [row for row in rows if row["model"] == name] for name in {row["model"] for row in rows}}
    columns = ("f1", "strongest", "realistic")
    means = {name: [mean(row[column] for row in own) for column in columns] for name, own in models.items()}
    best_first = sorted(models, key=lambda name: -means[name][1])
    body = [[name, str(len(models[name])), *map(shown, means[name])] for name in best_first]
    return grid(["model", "seeds", "clean", "strongest", "realistic"], body)


def gat_norm() -> str:
    """F1 of GAT and of GAT with layer norms under `strongest`, vanilla and FGAI, and FGAI's clean F1; common seeds."""
    plan, body = Plan.read("chosen-links"), []
    for dataset in plan.seeds:
        models = product(("gat", "gat-norm"), ("vanilla", "fgai"))
        f1 = [metric(plan, dataset, backbone, method) for backbone, method in models]
        if all("strongest" in by_attack for by_attack in f1):
            seeds = common(*(by_attack["strongest"] for by_attack in f1))
            *others, last = (shown(over(seeds, by_attack["strongest"])) for by_attack in f1)
            body.append([dataset, str(len(seeds)), *others, f"{last} of {shown(over(seeds, f1[-1]['none']))}"])
    return grid(["dataset", "seeds", "GAT, vanilla", "GAT, FGAI", "with norms, vanilla", "with norms, FGAI"], body)


FIGURES: dict[str, Callable[[], str]] = {
    **{f"withstood-{name}": partial(withstood, name) for name in ("strongest", "realistic")},
    "withstood-explanation": explained,
    "chosen-goals": goals,
    "bounded": bounded,
    "inductive": inductive,
    "defences": defences,
    "independent": independent,
    "reach": reach,
    "layer-norms": layer_norms,
    "gat-norm": gat_norm,
}
