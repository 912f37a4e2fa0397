"""`fgai ls`."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fgai.adversaries import ADVERSARIES, GAINS
from fgai.backbones import BACKBONES
from fgai.cli.options import Import, import_modules
from fgai.datasets import DATASETS
from fgai.explanations import EXPLANATIONS
from fgai.methods import METHODS
from fgai.metrics import METRICS

REGISTRIES = (DATASETS, BACKBONES, METHODS, ADVERSARIES, GAINS, METRICS, EXPLANATIONS)


def ls(modules: Import = None) -> None:
    """List the registered datasets, backbones, methods, adversaries, gains, metrics and explanations."""
    import_modules(modules)
    table = Table("kind", "name", "what it is", box=None)
    for registry in REGISTRIES:
        for name in registry:
            table.add_row(registry.kind, name, escape(registry.about(name)))
    Console().print(table)
