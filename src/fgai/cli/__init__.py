"""The command line: `fgai ls`, `fgai train`, `fgai audit` and so on. Commands parse options and call the library."""

from __future__ import annotations

import typer

from fgai.cli import audit, bench, listing, train
from fgai.cli.shared import errors_in_words

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Faithful, stable attention explanations for graph neural networks.",
)
COMMANDS = {
    "ls": listing.ls,
    "train": train.train,
    "fit": train.fit,
    "convert": train.convert,
    "audit": audit.audit,
    "certify": audit.certify,
    "report": audit.write_report,
    "bench": bench.bench,
    "table": bench.table,
    "figure": bench.draw_figure,
}
for _name, _function in COMMANDS.items():
    app.command(_name)(errors_in_words()(_function))
