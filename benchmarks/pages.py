"""Writes the tables of `results/` into the marked places of README, docs and papers; `--check` fails where they differ.

    python benchmarks/pages.py

A place is marked `<!-- figures: name -->` ... `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import chosen_links
import molecules
import places
import planned
import proved
import reasons
import reproduction
import verified
from fgai.adversaries import THREATS
from fgai.auditing import AuditReport
from fgai.bench.plan import Plan, plans
from fgai.bench.results import CellStore, Row, read_costs, read_rows
from fgai.bench.tables import grid, spread, table_of
from prose import paragraphs

ROOT = Path(__file__).parent.parent
CELLS = CellStore(ROOT / "results/cells")
ATTACKS = ("none", "injection-20x20", "injection-20x40", "ensemble", "ensemble-explanation")
PAIR = ("vanilla", "fgai")
TYPED_METHODS = ("vanilla", "ln", "at", "fgai")
PAPER_BACKBONES = ("gat", "gatv2", "gt")
PAPER_DATASETS = ("amazon-photo", "amazon-computers", "coauthor-cs", "coauthor-physics")
COLUMNS = ("read", "audit", "fit", "certify")  # of the table of coverage
PLACE = re.compile(r"(<!-- figures: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def audit() -> str:
    """Vanilla GAT on Amazon-Photo, by attack."""
    rows = [row for cell in Plan.read("table2").cells_of("amazon-photo", "gat", "vanilla") for row in CELLS.rows(cell)]
    columns = ["f1", "g_tvd", "g_jsd", "overlap", "f_slope_plus", "f_slope_minus", "nonuniformity"]
    body = [
        [attack, *(spread([float(row.metrics[name] or 0) for row in rows if row.attack == attack]) for name in columns)]
        for attack in ATTACKS
    ]
    return grid(["attack", *columns], body)


def grades() -> str:
    """The grades of trained models, one row per model and explanation."""
    body = []
    for row in _graded():
        used, stable = ("-" if row[name] is None else "yes" if row[name] else "no" for name in ("used", "stable"))
        about = [row["dataset"], row["backbone"], row["method"], str(row["seed"]), f"`{row['explanation']}`"]
        tests = [
            f"{row[name]:+.3f} [{row[f'{name}_low']:+.3f}, {row[f'{name}_high']:+.3f}]"
            for name in ("necessity", "against_least")
        ]
        changes = [f"{row['f1']:.3f} → {row['f1_attacked']:.3f}", f"{row['overlap']:.3f}"]
        body.append([*about, used, row["faithful"] or "-", stable, str(row["nodes"]), *tests, *changes])
    head = ["dataset", "backbone", "method", "seed", "explanation", "used", "faithful", "stable", "nodes"]
    return grid([*head, "most - random", "most - least", "F1", "V_5"], body)


def _graded() -> list[dict[str, Any]]:
    return json.loads((ROOT / "results/faithful.json").read_text())


def grade_counts() -> str:
    """In how many models each grade holds, by method and explanation."""
    body = []
    for method, explanation in product(("vanilla", "ln", "at", "fgai"), ("tree", "last")):
        rows = [row for row in _graded() if (row["method"], row["explanation"]) == (method, explanation)]
        kinds = [sum(row["faithful"] == value for row in rows) for value in ("supported", "contradicted", "unknown")]
        held = [sum(row[name] is True for row in rows) for name in ("used", "stable")]
        trusted = sum(row["trusted"] == "yes" for row in rows)
        numbers = [len(rows), held[0], *kinds, held[1], trusted]
        body.append([method, f"`{explanation}`", *map(str, numbers)])
    return grid(
        ["method", "explanation", "models", "used", "supported", "contradicted", "unknown", "stable", "trusted"], body
    )


def grade_goal() -> str:
    """FGAI by `tree` on the paper's four datasets and three backbones: what holds, and what the failed grades are."""
    chosen = [
        row
        for row in _graded()
        if row["method"] == "fgai" and row["explanation"] == "tree"
        if row["dataset"] in PAPER_DATASETS and row["backbone"] in PAPER_BACKBONES
    ]
    cells = sorted({(row["dataset"], row["backbone"]) for row in chosen})
    failed = [row for row in chosen if row["trusted"] != "yes"]
    names = {(row["dataset"], row["backbone"]) for row in failed}
    lines = [
        f"By `tree`, FGAI is used, supported and stable in {len(cells) - len(names)} of the {len(cells)} cells of the "
        f"paper's four datasets that have run ({len(chosen) - len(failed)} of {len(chosen)} models)."
    ]
    for row in failed:
        reasons = [] if row["used"] else ["it is not used"]
        if row["faithful"] != "supported":
            low = min(row["necessity_low"], row["against_least_low"])
            reasons.append(f"its faithfulness is {row['faithful']} (the lower end of an interval is {low:+.3f})")
        if not row["stable"]:
            reasons.append(
                f"it is not stable (F1 {row['f1']:.3f} → {row['f1_attacked']:.3f}, V_5 {row['overlap']:.3f}, "
                f"g-TVD {row['g_tvd']:.3f})"
            )
        lines.append(f"- {row['dataset']}, {row['backbone']}, seed {row['seed']}: {'; '.join(reasons)}.")
        lines[-1] += "".join(_with_support(other) for other in _graded() if _about(other) == _about(row, ":support"))
    return paragraphs(lines[0], "", *lines[1:]) if failed else paragraphs(*lines)


def _about(row: dict[str, Any], preset: str = "") -> tuple[Any, ...]:
    """The model and the explanation of a row, as if the method had this preset."""
    return row["dataset"], row["backbone"], f"{row['method']}{preset}", row["seed"], row["explanation"]


def _with_support(row: dict[str, Any]) -> str:
    """What the preset `support` does where the default fails."""
    grades = ["used" if row["used"] else "not used", row["faithful"], "stable" if row["stable"] else "not stable"]
    lows = f"{row['necessity_low']:+.3f} and {row['against_least_low']:+.3f}"
    f1 = f"F1 {row['f1']:.3f} → {row['f1_attacked']:.3f}"
    return f" With the preset `support` it is {grades[0]}, {grades[1]} and {grades[2]} (lower ends {lows}; {f1})."


def printed(dataset: str) -> str:
    """What `fgai audit` prints before and after `fgai fit`."""
    return f"```text\n{(ROOT / f'results/printed/{dataset}.txt').read_text()}```\n"


def trials() -> str:
    """Trials of FGAI's settings on validation nodes, means over seeds."""
    rows = json.loads((ROOT / "results/trials.json").read_text())
    by_trial: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_trial[row["dataset"], row["backbone"], row["trial"]].append(row)
    head = ["dataset", "backbone", "setting", "seeds", "F1", "20x20"]
    head += ["strongest, sign alone", "strongest", "realistic", "`tree`", "`last`"]
    body = []
    for (dataset, backbone, name), same in sorted(by_trial.items()):
        keys = ("f1", "f1 injection-20x20", "f1 strongest, sign", "f1 strongest", "f1 realistic")
        known = [[row[key] for row in same if key in row] for key in keys]
        f1 = [f"{mean(values):.3f}" if values else "-" for values in known]
        graded, changed = [], []
        for explanation in ("tree", "last"):
            full = [row for row in same if f"{explanation}_faithful" in row]
            counts = Counter(row[f"{explanation}_faithful"] for row in full)
            graded.append(", ".join(f"{count} {value}" for value, count in sorted(counts.items())) or "-")
            jsd, overlap = ([row[f"{explanation}_{metric}"] for row in full] for metric in ("g_jsd", "overlap"))
            changed.append(f"{mean(jsd):.1e} / {mean(overlap):.2f}" if full else "-")
        body.append([dataset, backbone, name, str(len(same)), *f1, *graded, *changed])
    return grid([*head, "g-JSD / V_5, `tree`", "g-JSD / V_5, `last`"], body)


def threats() -> str:
    """The threat models by name."""
    return grid(
        ["threat", "maximises", "attacker"],
        [[f"`{name}`", f"`{threat.gain}`", threat.about] for name, threat in THREATS.items()],
    )


def hero() -> str:
    """What README's picture shows, and what the audits found over all nodes."""
    plain, faithful = (AuditReport.load(ROOT / f"results/audits/amazon-photo-gat-{m}-0.json") for m in PAIR)
    loss, less = (100 * (report.clean["f1"] - report.attacked["f1"].mean) for report in (plain, faithful))
    share, more = (report.attacked["overlap"].mean for report in (plain, faithful))
    sentence = (
        "One node of Amazon-Photo, one of those on which the attack changes the plain model most. Over all test nodes, "
        f"the plain GAT loses {loss:.1f} points of F1 to {plain.adversary['nodes']} fake nodes, and on average a node "
        f"keeps {share:.0%} of its five most important neighbours. Re-trained, it loses {less:.1f} points and keeps "
        f"{more:.0%}."
    )
    return paragraphs(sentence)


def typed() -> str:
    """HAN and HGT on IMDB by method: means over seeds, and the grades of each seed."""
    by_key: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in json.loads((ROOT / "results/typed.json").read_text()):
        by_key[row["model"], row["method"]].append(row)
    body = []
    for (model, method), rows in sorted(by_key.items(), key=lambda item: (item[0][0], TYPED_METHODS.index(item[0][1]))):
        figures = [
            f"{mean(row[name] for row in rows):.3f}"
            for name in ("f1_clean", "f1_attacked", "g_tvd_attacked", "overlap_attacked")
        ]
        grades = [", ".join(row[name] for row in rows) for name in ("used", "faithful", "stable")]
        body.append([model, method, str(len(rows)), *figures, *grades])
    head = ["model", "method", "seeds", "F1", "F1 attacked", "TVD", "V_5", "used", "faithful", "stable"]
    return grid(head, body)


def certificates() -> str:
    """Median certified radius and shares of the vanilla models."""
    rows = [row for row in read_rows(ROOT / "results/certificates.json") if row.attack == "none"]
    columns = ["contested", "median_radius", "share_0.001", "share_0.01", "share_0.05", "share_0.1"]
    body = [[r.dataset, r.backbone, *(f"{float(r.metrics[c] or 0):.2g}" for c in columns)] for r in rows]
    return grid(["dataset", "backbone", *columns], body)


def violations() -> str:
    """What 200 steps inside the ball reached, and what was promised."""
    rows = [row for row in read_rows(ROOT / "results/certificates.json") if row.attack == "attention-ball"]
    columns = ["promised_overlap", "attack_overlap", "bound_tvd", "attack_tvd", "violations"]
    return grid(
        ["dataset", *columns], [[r.dataset, *(f"{float(r.metrics[c] or 0):.3g}" for c in columns)] for r in rows]
    )


def composition() -> str:
    """The share of nodes whose class no push of the first layer changes, by its radius."""
    rows = [row for row in read_rows(ROOT / "results/certificates.json") if "class_sure_0.001" in row.metrics]
    columns = [f"class_sure_{radius}" for radius in ("0.0001", "0.001", "0.01", "0.05")]
    body = [[r.dataset, r.backbone, *(f"{float(r.metrics[c] or 0):.3f}" for c in columns)] for r in rows]
    return grid(["dataset", "backbone", *columns], body)


Means = dict[tuple[str, str, str, str], dict[str, float]]


def method_means() -> Means:
    """The figures of every dataset, backbone, method and attack, mean over the seeds that all methods have run with."""
    plan = Plan.read("table2")
    by_key: dict[tuple[str, str, str, str], list[Row]] = defaultdict(list)
    for dataset, backbone in product(sorted(plan.seeds), plan.backbones):
        for cells in zip(*(plan.cells_of(dataset, backbone, method) for method in sorted(plan.methods)), strict=True):
            if all(CELLS.finished(cell) for cell in cells):
                for row in (row for cell in cells for row in CELLS.rows(cell)):
                    by_key[row.dataset, row.backbone, row.method, row.attack].append(row)
    return {
        key: {name: mean(float(row.metrics[name] or 0) for row in rows) for name in rows[0].metrics}
        | {"seeds": len(rows)}
        for key, rows in by_key.items()
    }


def methods() -> str:
    """F1 under each attack, and the explanation under its own, by cell and method."""
    means, body = method_means(), []
    for dataset, backbone, method in dict.fromkeys(key[:3] for key in means):
        at = {attack: means[dataset, backbone, method, attack] for attack in ATTACKS}
        f1 = [f"{at[attack]['f1']:.3f}" for attack in ATTACKS]
        explained = at["ensemble-explanation"]
        shown = [*f1, f"{explained['g_jsd']:.1e}", f"{explained['overlap']:.3f}"]
        body.append([dataset, backbone, method, f"{explained['seeds']:.0f}", *shown])
    head = [
        "dataset",
        "backbone",
        "method",
        "seeds",
        "clean",
        "20x20",
        "20x40",
        "ensemble",
        "explanation",
        "g-JSD",
        "V_5",
    ]
    return grid(head, body)


def short() -> str:
    """F1 on the clean graph and under the ensemble of attacks, by dataset and backbone."""
    means, names = method_means(), Plan.read("table2").methods
    values = {
        cell: [" / ".join(f"{means[*cell, m, attack]['f1']:.3f}" for attack in ("none", "ensemble")) for m in names]
        for cell in dict.fromkeys(key[:2] for key in means)
    }
    seeds = {cell: f"{means[*cell, names[0], 'none']['seeds']:.0f}" for cell in values}
    body = [[*cell, seeds[cell], *figures] for cell, figures in values.items()]
    return grid(["dataset", "backbone", "seeds", *names], body)


def goals() -> str:
    """What was asked of FGAI and what it reaches; a cross marks what falls short."""
    means, body = method_means(), []

    def mark(value: float, reached: bool, digits: str = ".3f") -> str:
        return f"{value:{digits}}{'' if reached else ' ✗'}"

    for dataset, backbone in dict.fromkeys(key[:2] for key in means):
        at = {key[2:]: value for key, value in means.items() if key[:2] == (dataset, backbone)}
        old, new, explained = at["vanilla", "none"], at["fgai", "none"], at["fgai", "ensemble-explanation"]
        rival = max(at[m, "ensemble"]["f1"] for m in ("vanilla", "ln", "at"))
        strongest, attacked = at["fgai", "ensemble"]["f1"], at["fgai", "injection-20x40"]
        jsd = explained["g_jsd"] / at["vanilla", "ensemble-explanation"]["g_jsd"]
        flat, radius = (new[name] / old[name] for name in ("nonuniformity", "median_radius"))
        slopes = [attacked[name] / old[name] for name in ("f_slope_plus", "f_slope_minus")]
        body.append(
            [
                dataset,
                backbone,
                mark(new["f1"] - old["f1"], new["f1"] >= old["f1"] - 0.01, "+.3f"),
                mark(attacked["f1"] - old["f1"], attacked["f1"] >= old["f1"] - 0.02, "+.3f"),
                mark(strongest - rival, strongest >= rival, "+.3f"),
                mark(jsd, jsd <= 0.1),
                mark(explained["overlap"], explained["overlap"] >= 0.9),
                mark(flat, flat >= 0.5, ".2f"),
                mark(radius, radius >= 2, ".2f"),
                *(mark(slope, 0.9 <= slope <= 1.1, ".2f") for slope in slopes),
            ]
        )
    head = [
        "dataset",
        "backbone",
        "clean F1 - vanilla's (≥ -.01)",
        "20x40 F1 - vanilla's clean (≥ -.02)",
        "ensemble F1 - best rival's (≥ 0)",
        "g-JSD / vanilla's (≤ .1)",
        "V_5 (≥ .9)",
        "distance from uniform / vanilla's (≥ .5)",
        "median certified radius / vanilla's (≥ 2)",
        "F+ slope at 20x40 / vanilla's clean (.9 to 1.1)",
        "F- slope likewise",
    ]
    return grid(head, body)


def plan(name: str) -> str:
    """The table of a plan from the finished cells, the paper's numbers beside ours; without rows that have not run."""
    table = table_of(Plan.read(name), CELLS.folder, beside_paper=True)
    body = [line for line in table.body if line[3] != "0"]
    return f"{grid(table.head, body)}\n{paragraphs(*(f'- {note}' for note in table.notes))}"


def costs(file: str, of: str | tuple[str, ...] = "", about: str = "", model: str = "") -> str:
    """The figures of one file, of some commands or one model; `about` is a regular expression of what they are."""
    known = read_costs(ROOT / "results" / file)
    rows = [cost for cost in known if cost.command.startswith(of) and cost.backbone == (model or cost.backbone)]
    rows = [cost for cost in rows if re.search(about, cost.what)]
    if not rows:
        return "Not run yet.\n"
    return grid(
        ["what", "dataset", "model", "value", "command"],
        [[cost.what, cost.dataset, cost.backbone, f"{cost.value:g}", f"`{cost.command}`"] for cost in rows],
    )


OUTCOMES = ("tried", "refused", "worked", "raw", "crashed", "hung", "memory", "silent")


def survived() -> str:
    """What the hostile campaign tried and what came of it, with the sum over mutated files and calls."""
    path = ROOT / "results/hostile.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    rows.sort(key=lambda row: (row["command"], row["what"]))
    body = [[row["what"], *(f"{row[name]:,}" for name in OUTCOMES), f"`{row['command']}`"] for row in rows]
    total = [f"{sum(row[name] for row in rows):,}" for name in OUTCOMES]
    return grid(["what", *OUTCOMES, "command"], [["**in all**", *total, ""], *body])


def _coverage() -> dict[str, Any]:
    return json.loads((ROOT / "results/coverage.json").read_text())


def coverage_counts() -> str:
    """How many layers and models work in all columns, and how many rows end badly."""
    table = _coverage()
    names = [f"`{name}`" for name in table["complete"]]
    bad = sum(row[column] not in ("works", "refuses") for row in table["rows"] for column in COLUMNS)
    text = (
        f"PyG {table['pyg']}: {len(table['rows'])} rows. {len(names)} classes work in all four columns, with all of "
        f"their own attention read: {', '.join(names)}. {bad} calls end with an error of another kind, or leave out "
        "attention without saying so."
    )
    return paragraphs(text)


def coverage() -> str:
    """What works, by layer or model."""
    rows = _coverage()["rows"]
    body = [
        [row["name"], *(row[column] for column in COLUMNS), row["read_note"] if row["read"] == "works" else ""]
        for row in rows
    ]
    return grid(["layer or model", *COLUMNS, "what is not read"], body)


def coverage_refusals() -> str:
    """The first sentence of the first refusal of each row."""
    body = []
    for row in _coverage()["rows"]:
        refused = [column for column in COLUMNS if row[column] == "refuses"]
        if refused:
            sentence = row[f"{refused[0]}_note"].split(". Mark the")[0].replace("|", "\\|")
            body.append([row["name"], ", ".join(refused), sentence])
    return grid(["layer or model", "refuses", "sentence"], body)


def coverage_others() -> str:
    """The classes that the table leaves out, with the reason."""
    return grid(["class", "why it is not in the table"], [[f"`{n}`", why] for n, why in _coverage()["others"].items()])


def verified_cells() -> str:
    """Random committed cells that ran again: how many numbers agree."""
    path = ROOT / "results/verified.json"
    rows = json.loads(path.read_text()) if path.exists() else []
    counts = [sum(row[name] for row in rows) for name in ("numbers", "within", "equal")]
    body = [
        [row["cell"], *(str(row[name]) for name in ("seeds", "numbers", "within", "equal")),
         f"{row['f1']['ensemble'][0]:.4f}", f"{row['f1']['ensemble'][1]:.4f}"]
        for row in rows
    ]  # fmt: skip
    head = ["cell", "seeds", "numbers", "within", "equal", "F1, ensemble", "again"]
    sentence = (
        f"{len(rows)} of the {verified.DRAWN} cells have run. Of {counts[0]} numbers, {counts[1]} are within their "
        f"interval, and {counts[2]} are equal up to rounding."
    )
    outside = [f"- {row['cell']}, {line}" for row in rows for line in row["outside"]]
    outside = ["Outside:", "", *outside, ""] if outside else []
    return "\n".join([paragraphs(sentence), grid(head, body), *outside])


def unit_tests() -> str:
    """Trained models against the perturbation made against each of them, and the worst made against another."""
    rows, body = json.loads((ROOT / "results/unit_tests.json").read_text()), []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == row["against"] == model]
        others = [row for row in rows if row["model"] == model != row["against"]]
        for row in (*own, min(others, key=lambda row: row["f1_attacked"])):
            f1 = f"{row['f1']:.3f} → {row['f1_attacked']:.3f}"
            body.append([model, row["against"], f1, f"{row['overlap']:.3f}", row["stable"]])
    return grid(["model", "perturbation made against", "F1", "V_5", "stable"], body)


def winning_links() -> str:
    """How often each choice of links found the worst perturbation of a model."""
    rows = json.loads((ROOT / "results/winning_links.json").read_text())
    links = [row["links"] for row in rows if row["threat"] == "strongest"]
    counts = [f"{name} {links.count(name)}" for name in ("coverage", "reach", "degree", "random")]
    return f"Links of the worst perturbation of {len(links)} models under `strongest`: {', '.join(counts)}.\n"


FIGURES: dict[str, Callable[[], str]] = {
    "audit": audit,
    "hero": hero,
    "certificates": certificates,
    "composition": composition,
    "violations": violations,
    "certified-links": lambda: proved.certified("links"),
    "certified-chosen": proved.chosen,
    "certified-ahead": proved.ahead,
    "certified-training": proved.training,
    "interception": proved.intercepted,
    "certified-deletions": lambda: proved.certified("deletions"),
    "certified-injections": lambda: proved.certified("injection"),
    "certified-realistic": lambda: proved.certified("injection-realistic"),
    "attacked-certificates": proved.attacked,
    "targeted": proved.targeted,
    "reading": lambda: costs("speed.json", "python benchmarks/reading.py"),
    "methods": methods,
    "goals": goals,
    "short": short,
    **{name: partial(plan, name) for name in plans() if Plan.read(name).paper is not None},
    "epochs": lambda: costs("speed.json", "python benchmarks/epochs.py"),
    "ways": lambda: costs(
        "speed.json", ("python benchmarks/audit_time.py", "python benchmarks/epochs.py"), model="gat"
    ),
    "default-adversary": lambda: costs("scale.json", "python benchmarks/scale.py", "default adversary"),
    "large-audit": lambda: costs("scale.json", "python benchmarks/large_audit.py"),
    "kernels": lambda: costs("speed.json", "python benchmarks/kernels.py"),
    "scale": lambda: costs(
        "scale.json", ("python benchmarks/graph_transformer.py", "python benchmarks/certificate_scale.py")
    ),
    "growth": lambda: costs("scale.json", "python benchmarks/scale.py"),
    "ingest": lambda: costs("scale.json", "python benchmarks/ingest.py"),
    "scale-plan": planned.larger_graphs,
    "scale-assumptions": planned.assumptions,
    "reduction": lambda: costs("plan.json", "python benchmarks/plan.py", "ms a step for gradients"),
    "engines": lambda: costs("engines.json", "python benchmarks/ray_train.py"),
    "loaders": lambda: costs("engines.json", "python benchmarks/loaders.py", "sampling|mean of|Link"),
    "survived": survived,
    "coverage": coverage,
    "coverage-counts": coverage_counts,
    "coverage-refusals": coverage_refusals,
    "coverage-others": coverage_others,
    "verified": verified_cells,
    "unit-tests": unit_tests,
    "winning-links": winning_links,
    "known-reasons": reasons.known_reasons,
    "released-gatt": reasons.released,
    "planted": reasons.planted,
    "threats": threats,
    "typed": typed,
    "trials": trials,
    "grades": grades,
    "grade-counts": grade_counts,
    "grade-goal": grade_goal,
    **{f"printed-{name}": partial(printed, name) for name in ("cora", "amazon-photo")},
    "leaderboard": places.leaderboard,
    "standing": places.standing_sentence,
    "winners": places.winners,
    "leads": places.leads,
    **chosen_links.FIGURES,
    **reproduction.FIGURES,
    **molecules.FIGURES,
    "explanation-costs": lambda: costs("speed.json", "python benchmarks/explanations.py"),
}


def filled(text: str) -> str:
    return PLACE.sub(lambda place: place[1] + "\n" + FIGURES[place[2]]() + "\n" + place[3], text)


def main(check: bool) -> int:
    drifted = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "paper").glob("*.md"))]:
        old = page.read_text()
        if (new := filled(old)) != old:
            drifted.append(page.name)
            if not check:
                page.write_text(new)
    print(f"{'drifted' if check else 'written'}: {', '.join(drifted) or 'nothing'}")
    return int(check and bool(drifted))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
