"""`fgai demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fgai.cli.options import AsJson, Device
from fgai.files import atomic_write, try_output

EPOCHS, FAITHFUL_EPOCHS = 60, 150  # a minute on one core
NODES, EDGES = 10, 10  # of the attack
PICTURE, PAGE = "attention.svg", "report.html"


def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("fgai-demo"),
    data: Annotated[
        str, typer.Option(help="A dataset of `fgai ls datasets`; cora is downloaded, the default is generated.")
    ] = "synthetic-words",
    seed: Annotated[int, typer.Option(help="Seed of the graph, the split, the weights and the attack.")] = 0,
    device: Device = "",
    as_json: AsJson = False,
) -> None:
    """Attack a model, re-train it, and draw what changed.

    Trains a GAT, re-trains it with FGAI, attacks both, and writes a picture and an HTML page.
    """
    from fgai import backbones, datasets, plots, report
    from fgai.adversaries import NodeInjection
    from fgai.auditing import compare
    from fgai.devices import placed, resolve_device
    from fgai.methods import FGAI, Vanilla

    try_output(out / PAGE)
    place = resolve_device(device)
    graph = placed(datasets.load(data, seed=seed), place)
    typer.echo(f"{data}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges", err=True)
    typer.echo("training a GAT, then re-training it with FGAI", err=True)
    plain = Vanilla(epochs=EPOCHS, seed=seed).fit(backbones.build("gat", graph, seed=seed).to(place), graph)
    faithful = FGAI(epochs=FAITHFUL_EPOCHS, seed=seed).fit(plain.model, graph)
    typer.echo(f"attacking both with {NODES} injected nodes", err=True)
    models = {"Plain GAT": plain.model, "With FGAI": faithful.model}
    comparison = compare(models, graph, NodeInjection(NODES, EDGES), seeds=1)
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write(out / PICTURE) as half:
        half.write_text(plots.before_after(comparison.reports), encoding="utf-8")
    histories = {"Plain GAT": plain.history, "With FGAI": faithful.history}
    command = f"fgai demo --data {data} --seed {seed}"
    report.save(out / PAGE, comparison, histories=histories, about={"data": data, "command": command})
    typer.echo(comparison.json() if as_json else comparison)
    typer.echo(f"The picture: {out / PICTURE}\nThe report:  {out / PAGE}", err=as_json)
