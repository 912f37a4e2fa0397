"""The command line: `fgai ls`, `fgai train`, `fgai audit` and so on. Commands parse options and call the library.

The modules of the commands import torch and the library inside their functions, so that `fgai --help` is fast.
"""

from __future__ import annotations

from typing import Annotated

import typer

from fgai.cli import audit, bench, certify, convert, demo, joining, listing, starting, train
from fgai.cli.failures import errors_in_words

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: rich doubles its time
    help="Faithful, stable attention explanations for graph neural networks.",
)
COMMANDS = {
    "demo": demo.demo,
    "init": starting.init,
    "ls": listing.ls,
    "train": train.train,
    "fit": train.fit,
    "convert": convert.convert,
    "audit": audit.audit,
    "certify": certify.certify,
    "report": audit.write_report,
    "table": bench.table,
    "figure": bench.draw_figure,
}
BENCH = {
    "run": bench.bench,
    "submit": joining.submit,
    "verify": joining.verify,
    "unit-test": joining.unit_test,
}
bench_app = typer.Typer(
    cls=joining.PlanGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Run the cells of a table, join it, or verify it. `fgai bench PLAN` is `fgai bench run PLAN`.",
)
app.add_typer(bench_app, name="bench")
for _commands, _app in ((COMMANDS, app), (BENCH, bench_app)):
    for _name, _function in _commands.items():
        _app.command(_name)(errors_in_words()(_function))


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"fgai {version('fgai')}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Faithful, stable attention explanations for graph neural networks."""
