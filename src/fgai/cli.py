"""The command line: `fgai ls`, `fgai train`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fgai import datasets, saved
from fgai.backbones import BACKBONES, build
from fgai.datasets import DATASETS
from fgai.errors import FGAIError
from fgai.methods import METHODS, Vanilla
from fgai.metrics import micro_f1
from fgai.reading import by_name

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Faithful, stable attention explanations for graph neural networks.",
)
REGISTRIES = (DATASETS, BACKBONES, METHODS)


@contextmanager
def _errors_in_words() -> Iterator[None]:
    """What goes wrong on purpose is said in a sentence, without a stack trace."""
    try:
        yield
    except FGAIError as error:
        Console(stderr=True).print(f"[red]fgai:[/red] {error}", highlight=False)
        raise typer.Exit(2) from error


@app.command("ls")
def ls() -> None:
    """List every registered dataset, backbone and method."""
    table = Table("kind", "name", "what it is", box=None)
    for registry in REGISTRIES:
        for name in registry:
            table.add_row(registry.kind, name, registry.about(name))
    Console().print(table)


@app.command()
def train(
    data: Annotated[str, typer.Option(help="A dataset; `fgai ls` lists them.")],
    out: Annotated[Path, typer.Option(help="The folder to write the model to.")],
    backbone: Annotated[str, typer.Option(help="gat, gatv2 or gt.")] = "gat",
    seed: Annotated[int, typer.Option(help="Decides the split, the initial weights and the dropout.")] = 0,
    epochs: Annotated[int, typer.Option(help="The most epochs to train.")] = Vanilla.epochs,
) -> None:
    """Train a backbone on a dataset and save it: weights.safetensors and manifest.json."""
    with _errors_in_words():
        prepare = BACKBONES[backbone].prepare
        graph = prepare(datasets.compact(datasets.load(data, seed=seed)))
        method = Vanilla(epochs=epochs, seed=seed)
        fit = method.fit(build(backbone, graph, seed=seed), graph)
        test = graph.test_mask
        metrics = {"f1": micro_f1(by_name(fit.model, graph)[test], graph.y[test]), "val_f1": fit.best.val_f1}
        saved.save(
            out,
            fit.model,
            backbone=backbone,
            features=graph.x.size(1),
            classes=int(graph.y.max()) + 1,
            data=data,
            data_sha256=datasets.fingerprint(graph),
            method={"name": "vanilla", **asdict(method)},
            seed=seed,
            metrics=metrics,
        )
    Console().print(
        f"{backbone} on {data}, seed {seed}: test micro-F1 {metrics['f1']:.3f}, saved in {out}",
        highlight=False,
    )
