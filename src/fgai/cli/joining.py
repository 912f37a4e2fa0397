"""`fgai bench submit`, `fgai bench verify` and `fgai bench unit-test`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fgai.cli.options import DataName, Device, Folder, Split, UserModel, Weights, parse_pairs
from fgai.files import try_output
from fgai.settings import check_numbers

CellFolder = Annotated[Path, typer.Option("--cells", help="The folder of finished cells.")]


class PlanGroup(TyperGroup):
    """The commands of `fgai bench`. If the first word is none of them, the command is `run`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `run` before the name of a plan or an option."""
        known = {*self.commands, *self.get_help_option_names(ctx)}
        return super().parse_args(ctx, ["run", *args] if args and args[0] not in known else args)


def submit(
    file: Annotated[
        Path,
        typer.Argument(
            help="A Python file with a method, an attack, or a model and its weights; or a folder of `fgai train`. "
            "The code of the file is run: give one that you trust."
        ),
    ],
    as_: Annotated[str, typer.Option("--as", help="The name of its rows in the tables.")],
    plan: Annotated[str, typer.Option(help="The table that it joins: a name, or the path of a .toml file.")] = "table2",
    only: Annotated[list[str] | None, typer.Option(help="field=value, such as dataset=cora or backbone=gat.")] = None,
    seeds: Annotated[int, typer.Option(help="Number of seeds of each dataset.")] = 1,
    threat: Annotated[
        str, typer.Option("--threat", help="The threat model whose budget and goal an attack has.")
    ] = "strongest",
    weights: Annotated[
        Path | None, typer.Option(help="The weights of a model, a safetensors file; beside the file by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of finished cells.")] = Path("submitted"),
    perturbations: Annotated[
        Path | None, typer.Option(help="Also save the worst perturbation of each cell to this folder.")
    ] = None,
    device: Device = "",
) -> None:
    """Check the rules for a method, an attack or a model of your own, and make its rows.

    The exit code is 1 if a rule is broken or a cell fails; the output says why.
    """
    import torch

    from fgai.bench.plan import Plan
    from fgai.bench.run import Settings
    from fgai.bench.submit import submit as run_submission
    from fgai.devices import resolve_device

    try_output(out, folder=True)
    torch.set_num_threads(1)
    settings = Settings(device=str(resolve_device(device)), perturbations=perturbations)
    chosen = parse_pairs("--only", only, "dataset=cora or backbone=gat")
    done = run_submission(
        file, as_, Plan.read(plan), out, only=chosen, seeds=seeds, threat=threat, weights=weights, settings=settings
    )
    typer.echo(done.text())
    if not done.ok:
        raise typer.Exit(1)
    typer.echo(f"Its rows are in {out}. To publish them, open a pull request with these files and your own.")


def verify(
    row: Annotated[str, typer.Argument(help="The name of a cell, such as cora-gat-fgai-0.")],
    cells: CellFolder = Path("results/cells"),
    device: Device = "",
) -> None:
    """Run one cell again, and compare every number with the committed one.

    A number may differ by as much as two seeds do (95 %). The exit code is 1 if one differs by more.
    """
    import torch

    from fgai.bench.run import Settings
    from fgai.bench.verify import verify as run_verify
    from fgai.devices import resolve_device

    torch.set_num_threads(1)
    done = run_verify(row, cells, Settings(device=str(resolve_device(device))))
    typer.echo(done.text())
    if not done.ok:
        raise typer.Exit(1)


def unit_test(
    folder: Folder = None,
    model: UserModel = "",
    weights: Weights = None,
    data: DataName = "",
    split: Split = None,
    perturbations: Annotated[Path, typer.Option(help="The folder of perturbations.")] = Path("results/perturbations"),
    max_loss: Annotated[
        float | None, typer.Option(help="End with exit code 1 if F1 falls by more than this, such as 0.1.")
    ] = None,
    device: Device = "",
) -> None:
    """Test a model against saved perturbations, in seconds and without gradients.

    They were made against other models. A model that withstands them has yet to be attacked itself: `fgai audit`.
    """
    from fgai.bench.perturbations import load_all, outcome_table
    from fgai.bench.perturbations import unit_test as run_test
    from fgai.cli.loading import load_graph, load_model
    from fgai.datasets import fingerprint
    from fgai.devices import placed, resolve_device

    if max_loss is not None:
        check_numbers(0, max_loss=max_loss)
    place = resolve_device(device)
    loaded = load_model(folder, model, weights)
    name, seed = loaded.data_name(data), loaded.split(split)
    attacked, sha = load_all(perturbations, name), fingerprint(load_graph(name, seed))
    graph = placed(loaded.graph(data, split), place)
    outcomes = run_test(loaded.model.to(place), graph, attacked, sha=sha, call=loaded.call)
    typer.echo(outcome_table(outcomes))
    worst = min(outcomes, key=lambda one: one.f1_attacked)
    lost = worst.f1 - worst.f1_attacked
    typer.echo(f"The worst is that of {worst.origin.model}: F1 falls by {lost:.3f}, to {worst.f1_attacked:.3f}.")
    if max_loss is not None and not lost <= max_loss:
        typer.echo(f"fgai: F1 falls by more than --max-loss {max_loss:g}", err=True)
        raise typer.Exit(1)
