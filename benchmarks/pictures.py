"""Draws the pictures of README and docs from the committed results; `--check` fails where they differ.

    python benchmarks/pictures.py

`hero.svg` is one neighbourhood of an audit, `grades.svg` shows `results/faithful.json`, `certified-links.svg`
`results/certified.json`, `withstood.svg` the cells of `results/chosen-links`; `molecules.svg` is the output of a
notebook. The others show the rows of `results/speed.json` and `results/scale.json`.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import chosen_links
from fgai.auditing import AuditReport
from fgai.bench.plan import Plan
from fgai.bench.results import read_costs
from fgai.plots import before_after, save
from fgai.plots.canvas import canvas

ROOT = Path(__file__).parent.parent
RESULTS, DOCS = ROOT / "results", ROOT / "docs"
MODELS = {"gat": "GAT", "gatv2": "GATv2", "gt": "GT"}
BACKBONES = {"gat": "GAT", "gatv2": "GATv2", "gat-norm": "GAT with norms", "gt": "GT"}
DATASETS = {"amazon-photo": "Amazon-Photo", "coauthor-physics": "Coauthor-Physics"}
GRADED = {
    "amazon-photo": "Photo",
    "amazon-computers": "Computers",
    "coauthor-cs": "CS",
    "coauthor-physics": "Physics",
    "cora": "Cora",
    "citeseer": "CiteSeer",
    "pubmed": "PubMed",
}
METHODS = {"vanilla": "vanilla", "ln": "LN", "at": "AT", "fgai": "FGAI"}
WAYS = ("in the block", "in the block, compact features, cheaper masks")
NODES = {f"generated, 10^{power} nodes": 10**power for power in (5, 6, 7)}
EDGES = {f"generated, 1e+0{power} edges": 10**power for power in (5, 6, 7)}
BLUE, GREEN, ORANGE, GREY = "#1d4ed8", "#0f766e", "#d97706", "#6b7280"


def hero() -> str:
    """One node of Amazon-Photo before and after the attack: plain GAT, and GAT with FGAI."""
    names = {"vanilla": "Plain GAT", "fgai": "GAT with FGAI"}
    audits = RESULTS / "audits"
    return before_after({name: AuditReport.load(audits / f"amazon-photo-gat-{m}-0.json") for m, name in names.items()})


def _values(file: str) -> dict[tuple[str, str, str], float]:
    """The value of each row of a file by what was measured, dataset and model."""
    return {(cost.what, cost.dataset, cost.backbone): cost.value for cost in read_costs(RESULTS / file)}


def _bars(axis: Any, groups: Sequence[str], series: dict[str, tuple[list[float], str]]) -> None:
    """Bars side by side with their values on top, and a line at plain PyG's 1."""
    width = 0.8 / len(series)
    for number, (label, (heights, colour)) in enumerate(series.items()):
        places = [i + (number - (len(series) - 1) / 2) * width for i in range(len(groups))]
        axis.bar_label(axis.bar(places, heights, width * 0.92, color=colour, label=label), fmt="%.2f", fontsize=8)
    axis.axhline(1, color=GREY, linewidth=1, linestyle="--")
    axis.set_xticks(range(len(groups)), groups)
    axis.set_ylim(0, 1.2 * max(1, *(max(heights) for heights, _ in series.values())))
    axis.spines[["top", "right"]].set_visible(False)


def _ratio_figure(rows: Sequence[tuple[str, dict[str, str]]]) -> Any:
    """Panels by dataset of ratios to plain PyG; each row has a title and the series by label."""
    values = _values("speed.json")
    figure, axes = canvas(len(rows), len(DATASETS), 4.2, 2.5)
    for line, (title, series) in zip(axes, rows, strict=True):
        for axis, (dataset, name) in zip(line, DATASETS.items(), strict=True):
            bars = {
                label: ([values[what, dataset, model] for model in MODELS], colour)
                for (label, what), colour in zip(series.items(), (BLUE, GREEN), strict=False)
            }
            _bars(axis, [*MODELS.values()], bars)
            axis.set_title(f"{title}, {name}", fontsize=10)
    axes[0][0].set_ylabel("plain PyG is 1")
    handles, labels = axes[0][0].get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def speed() -> Any:
    """Time and peak memory of a training step over plain PyG's."""
    titles = {"time": "training step", "peak memory": "peak memory"}
    return _ratio_figure([(title, {way: f"{what} {way} over PyG's" for way in WAYS}) for title, what in titles.items()])


def epochs() -> Any:
    """Time and peak memory of an epoch of FGAI over plain PyG's."""
    titles = {"time of an epoch": "FGAI's seconds per epoch", "peak memory": "FGAI's peak memory"}
    return _ratio_figure([(title, {"FGAI": f"{what} over plain PyG's"}) for title, what in titles.items()])


def ways() -> Any:
    """Time of an epoch of GAT in four ways, measured in turns, over that of plain PyG with its evaluation pass."""
    values = _values("speed.json")
    labels = {
        "plain PyG, no\nevaluation pass": "plain PyG's seconds per epoch without evaluation over with it",
        "accelerated\nloop": "our accelerated loop's seconds per epoch over plain PyG's",
        "FGAI": "FGAI's seconds per epoch over plain PyG's",
    }
    measured = {d: name for d, name in DATASETS.items() if all((what, d, "gat") in values for what in labels.values())}
    figure, axes = canvas(1, len(measured), 4.2, 2.5)
    for axis, (dataset, name) in zip(axes[0], measured.items(), strict=True):
        heights = [1.0, *(values[what, dataset, "gat"] for what in labels.values())]
        _bars(axis, ["plain PyG", *labels], {"": (heights, BLUE)})
        axis.tick_params(axis="x", labelsize=8)
        axis.set_title(f"time of an epoch, {name}", fontsize=10)
    axes[0][0].set_ylabel("plain PyG is 1")
    return figure


def growth() -> Any:
    """Time per edge of one layer by the number of edges."""
    values, layers = _values("speed.json"), {"GATConv": BLUE, "GATv2Conv": GREEN, "TransformerConv": ORANGE}
    figure, axes = canvas(1, 1, 6.0, 3.0)
    for layer, colour in layers.items():
        line = [values["ns per edge, forward and backward", dataset, layer] for dataset in EDGES]
        _line(axes[0][0], [*EDGES.values()], line, colour, layer)
    _finish(axes[0][0], "edges", "ns per edge, forward and backward")
    return figure


def scale() -> Any:
    """Time and memory of mini-batch FGAI by the number of nodes, and of certificates by the number of edges."""
    values = _values("scale.json")
    figure, axes = canvas(1, 3, 3.5, 3.0)
    time, memory, certificates = axes[0]
    nodes, edges = [*NODES.values()], [*EDGES.values()]
    for what, colour in (("FGAI", BLUE), ("plain PyG", GREEN), ("sampler alone", ORANGE)):
        _line(time, nodes, [values[f"{what}, CPU us a seed node", d, "gat"] for d in NODES], colour, what)
    _finish(time, "nodes", "CPU time per seed node, µs")
    for batch, colour in ((1024, BLUE), (256, GREEN)):
        what = f"FGAI, peak MB of its own, {batch} seed nodes a batch"
        _line(memory, nodes, [values[what, d, "gat"] for d in NODES], colour, f"{batch:,} seed nodes per batch")
    _finish(memory, "nodes", "peak memory of FGAI, MB")
    line = [values["certificate-cpu-seconds", d, "top 10, l1"] for d in EDGES]
    _line(certificates, edges, line, BLUE, "certificates of all nodes")
    certificates.set_yscale("log")
    _finish(certificates, "edges", "CPU time, s")
    return figure


def certified_links() -> Any:
    """Share certified and right over the number of changed links, by dataset, for GAT: one panel for each method."""
    rows = [row for row in json.loads((RESULTS / "certified.json").read_text()) if row["backbone"] == "gat"]
    links = [row for row in rows if row["against"] == "links"]
    names = sorted({row["dataset"] for row in links})
    methods = [name for name in ("vanilla", "fgai", "dropped-links") if any(row["method"] == name for row in links)]
    figure, axes = canvas(len(names), len(methods), 3.2, 2.6, sharey="row")
    for (place, name), (column, method) in product(enumerate(names), enumerate(methods)):
        axis, own = axes[place][column], [row for row in links if (row["dataset"], row["method"]) == (name, method)]
        if not own:  # has not run
            axis.set_visible(False)
            continue
        for groups, colour in zip((5, 11, 25, 51), (GREY, BLUE, GREEN, ORANGE), strict=True):
            curve = [(0, _mean(own, "accuracy", groups=groups))]
            curve += [(e, _mean(own, "certified_and_right", groups=groups, budget=e)) for e in (1, 2, 5, 10)]
            axis.plot(*zip(*curve, strict=True), "o-", color=colour, label=f"{groups} groups", markersize=3)
        axis.axhline(_mean(own, "plain"), color="black", linewidth=1, label="plain model, not certified")
        axis.axhline(_mean(own, "without_links"), color="black", linewidth=1, linestyle="--", label="without links")
        axis.set_title(f"{name}, {method}", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set(xlabel="changed links", ylim=(0.5, 1.0))
    axes[0][0].set_ylabel("share certified and right")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _mean(rows: Sequence[dict[str, Any]], column: str, **where: int) -> float:
    """The mean of a column over the rows with these values; NaN without rows."""
    chosen = [row[column] for row in rows if all(row[name] == value for name, value in where.items())]
    return mean(chosen) if chosen else math.nan


def _line(axis: Any, x: Sequence[float], y: Sequence[float], colour: str, label: str) -> None:
    axis.plot(x, y, "o-", color=colour, label=label, markersize=4)
    axis.annotate(f"{y[-1]:.3g}", (x[-1], y[-1]), xytext=(4, 0), textcoords="offset points", fontsize=8, va="center")


def _finish(axis: Any, x: str, y: str) -> None:
    axis.set_xscale("log")
    if axis.get_yscale() == "linear":
        axis.set_ylim(0, 1.3 * axis.get_ylim()[1])
    axis.set(xlabel=x, title=y)
    axis.title.set_fontsize(10)
    axis.margins(x=0.14)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def withstood() -> Any:
    """F1 under `strongest` by dataset, backbone and method, with the clean F1 as a line above each bar."""
    methods = {"vanilla": GREY, "at": ORANGE, "fgai": BLUE, "fgai:bounded": GREEN}
    plan, labels = Plan.read("chosen-links"), {**METHODS, "fgai:bounded": "FGAI, bounded"}
    ran = [d for d in GRADED if "strongest" in chosen_links.metric(plan, d, "gat-norm", "fgai")]
    figure, axes = canvas(-(-len(ran) // 2), 2, 4.4, 2.3, sharey=True)
    for axis, dataset in zip(axes.flat, ran, strict=False):
        for (place, backbone), (column, method) in product(enumerate(BACKBONES), enumerate(methods)):
            f1 = chosen_links.metric(plan, dataset, backbone, method)
            if "strongest" in f1:
                x, height, clean = place + 0.21 * (column - 1.5), *(mean(f1[a].values()) for a in ("strongest", "none"))
                axis.bar(x, height, 0.19, color=methods[method])
                axis.hlines(clean, x - 0.1, x + 0.1, color="black", linewidth=1)
        axis.set_title(GRADED[dataset], fontsize=10)
        axis.set_xticks(range(len(BACKBONES)), BACKBONES.values(), fontsize=8)
        axis.set(xlim=(-0.5, len(BACKBONES) - 0.5), ylim=(0, 1))
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes.flat[len(ran) :]:
        axis.set_visible(False)
    handles = [axes[0][0].bar(0, 0, color=colour, label=labels[method]) for method, colour in methods.items()]
    handles.append(axes[0][0].hlines([], 0, 0, color="black", linewidth=1, label="clean"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    axes[0][0].set_ylabel("F1 under strongest")
    return figure


def grades() -> Any:
    """Three lights per model and explanation: used, faithful, stable."""
    rows = {
        (row["dataset"], row["backbone"], row["seed"], row["method"], row["explanation"]): row
        for row in json.loads((RESULTS / "faithful.json").read_text())
    }
    order = list(GRADED)
    models = sorted({key[:3] for key in rows}, key=lambda model: (order.index(model[0]), *model[1:]))
    columns = [(method, explanation) for explanation in ("tree", "last") for method in METHODS]
    figure, axes = canvas(1, 1, 9.0, 0.27 * len(models) + 1.6)
    axis = axes[0][0]
    for line, model in enumerate(models):
        for column, (method, explanation) in enumerate(columns):
            row = rows.get((*model, method, explanation), {})
            for light, name in enumerate(("used", "faithful", "stable")) if row else ():
                _light(axis, column + 0.25 * (light - 1) + 0.15 * (explanation == "last"), line, row[name])
    axis.set_yticks(
        range(len(models)),
        [f"{GRADED[d]}, {BACKBONES[b]}{f', seed {s}' if s else ''}" for d, b, s in models],
        fontsize=8,
    )
    places = [column + 0.15 * (explanation == "last") for column, (_, explanation) in enumerate(columns)]
    axis.set_xticks(places, [f"{METHODS[method]}\n{explanation}" for method, explanation in columns], fontsize=8)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.set(xlim=(-0.6, len(columns) - 0.2), ylim=(len(models) - 0.4, -0.6))
    axis.spines[:].set_visible(False)
    marks = "used, faithful, stable: a disc if the grade holds, a cross if not, a ring without enough evidence"
    axis.set_xlabel(f"three marks per model, {marks}", fontsize=8)
    return figure


def molecules() -> str:
    """The last picture of the notebook on molecules."""
    cells = json.loads((DOCS / "notebooks/molecules.ipynb").read_text())["cells"]
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    return "".join([data["image/svg+xml"] for data in outputs if "image/svg+xml" in data][-1])


def _light(axis: Any, x: float, y: float, value: bool | str | None) -> None:
    """One grade: a disc if it holds, a cross if it does not, a ring if it is unknown."""
    if value in (True, "supported"):
        axis.plot(x, y, "o", color=GREEN, markersize=6)
    elif value in (False, "contradicted"):
        axis.plot(x, y, "x", color=ORANGE, markersize=6, markeredgewidth=2)
    else:
        axis.plot(x, y, "o", color=GREY, markersize=5.5, markerfacecolor="none")


PICTURES: dict[str, Callable[[], Any]] = {
    "hero.svg": hero,
    "speed.svg": speed,
    "speed-epochs.svg": epochs,
    "speed-ways.svg": ways,
    "speed-growth.svg": growth,
    "scale.svg": scale,
    "grades.svg": grades,
    "withstood.svg": withstood,
    "certified-links.svg": certified_links,
    "molecules.svg": molecules,
}


def draw(name: str) -> bytes:
    """The content of one picture."""
    picture = PICTURES[name]()
    if isinstance(picture, str):
        return picture.encode()
    with tempfile.TemporaryDirectory() as folder:
        save(picture, path := Path(folder) / name)
        return path.read_bytes()


def main(check: bool) -> int:
    """Write the pictures that changed; with `check`, write nothing and fail if one did."""
    pictures = {name: draw(name) for name in PICTURES}
    drifted = [
        name
        for name, content in pictures.items()
        if not (DOCS / name).exists() or (DOCS / name).read_bytes() != content
    ]
    if not check:
        for name in drifted:
            (DOCS / name).write_bytes(pictures[name])
    print(f"{'drifted' if check else 'written'}: {', '.join(drifted) or 'nothing'}")
    return int(check and bool(drifted))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
