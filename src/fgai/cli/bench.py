"""`fgai bench`, `fgai table` and `fgai figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fgai.cli.options import Device, Import, parse_pairs
from fgai.errors import DataError, SettingError
from fgai.files import try_output

PlanName = Annotated[str, typer.Argument(help="table1, table2, ..., or the path of your own .toml file.")]


def bench(
    plan: PlanName,
    out: Annotated[Path, typer.Option(help="The folder of finished cells.")] = Path("results/cells"),
    only: Annotated[list[str] | None, typer.Option(help="field=value, such as dataset=cora or seed=0+1.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Maximum number of seeds.")] = None,
    engine: Annotated[str, typer.Option(help="serial, pool or ray.")] = "serial",
    workers: Annotated[int | None, typer.Option(help="Processes of one thread; one per core by default.")] = None,
    modules: Import = None,
    track: Annotated[str, typer.Option(help="Also log metrics to mlflow:FILE or tensorboard:FOLDER.")] = "",
    perturbations: Annotated[
        Path | None, typer.Option(help="Also save the worst perturbation of each cell to this folder.")
    ] = None,
    device: Device = "",
) -> None:
    """Run the unfinished cells of a table.

    Run the command again after a crash to continue.
    """
    import torch

    from fgai.bench.plan import Plan
    from fgai.bench.results import CellStore
    from fgai.bench.run import Settings
    from fgai.bench.run import run as run_plan
    from fgai.bench.tracking import tracker
    from fgai.devices import resolve_device

    try_output(out, folder=True)
    if perturbations is not None:
        try_output(perturbations, folder=True)
    torch.set_num_threads(1)
    cells = run_plan(
        Plan.read(plan),
        out,
        engine=engine,
        workers=workers,
        only=parse_pairs("--only", only, "dataset=cora or seed=0+1"),
        seeds=seeds,
        settings=Settings(device=str(resolve_device(device)), perturbations=perturbations),
        modules=modules or (),
        track=tracker(track) if track else None,
    )
    store = CellStore(out)
    failed = [cell for cell in cells if not store.finished(cell)]
    count = f"{len(cells) - len(failed)} of {len(cells)}" if failed else f"{len(cells)}"
    typer.echo(f"{count} cells of {plan} ran; fgai table {plan} {out} shows them")
    for cell in failed:
        error = next(row.error for row in store.rows(cell) if row.error)
        typer.echo(f"{cell.name} failed: {error.splitlines()[0]}", err=True)
    if failed:
        raise typer.Exit(1)


def table(
    plan: PlanName,
    folder: Annotated[Path, typer.Argument(help="The folder of finished cells.")] = Path("results/cells"),
    beside: Annotated[str, typer.Option(help="`paper` shows the paper's values beside ours.")] = "",
    as_: Annotated[str, typer.Option("--as", help="markdown, latex or csv.")] = "markdown",
) -> None:
    """Show a table from the finished cells."""
    from fgai.bench.plan import Plan
    from fgai.bench.tables import FORMATS, table_of

    if beside not in ("", "paper"):
        raise SettingError(f"--beside {beside}: only `paper` can be shown beside ours")
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; give the one that `fgai bench --out` wrote")
    typer.echo(FORMATS[as_](table_of(Plan.read(plan), folder, beside_paper=beside == "paper")))


def draw_figure(
    name: Annotated[str, typer.Argument(help="A figure of the paper, such as stars.")],
    results: Annotated[Path, typer.Option(help="The folder of committed results.")] = Path("results"),
    dataset: Annotated[str, typer.Option(help="The dataset; by default Amazon-Photo, or all that the figure has.")] = (
        ""
    ),
    backbone: Annotated[str, typer.Option(help="The backbone; by default gat, or all that the figure shows.")] = "",
    out: Annotated[Path | None, typer.Option(help=".svg or .png; NAME.svg by default.")] = None,
) -> None:
    """Draw a figure of the paper from committed results."""
    from fgai import plots
    from fgai.bench.figures import figure

    path = out or Path(f"{name}.svg")
    plots.format_of(path)  # refuse before drawing
    try_output(path)
    plots.save(figure(name, results, dataset, backbone), path)
    typer.echo(path)
