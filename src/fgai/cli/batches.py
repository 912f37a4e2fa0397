"""Audits and certificates of batches on one rank or several: `--batch`, `--ranks` and `--engine`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from torch import nn
from torch_geometric.data import Data

from fgai import saved
from fgai.adversaries import Threat
from fgai.calling import Call
from fgai.certificates import Certificate, Proof
from fgai.cli.certify import voted
from fgai.cli.loading import is_stored, load_model
from fgai.cli.options import import_modules, parse_attack
from fgai.devices import device_of, device_of_rank, resolve_device
from fgai.distributed import rank
from fgai.large import BatchAudit, Loader, audit_batches, certify_batches, exact_loader
from fgai.launchers import LAUNCHERS, launch, local

BATCH = 256  # seed nodes of a batch; their full neighbourhoods are far larger


def in_batches(data: str, batch: int, ranks: int, engine: str) -> bool:
    """Whether the options ask for batches: a graph on disk and several ranks need them."""
    return bool(batch) or ranks != 1 or LAUNCHERS[engine] is not local or is_stored(data)


@dataclass(frozen=True)
class BatchJob:
    """The options of a command, as each rank gets them."""

    folder: Path | None
    model: str
    weights: Path | None
    data: str
    split: int | None
    batch: int
    device: str
    out: Path | None
    as_json: bool
    modules: tuple[str, ...] = ()

    def run(self, function: Callable[..., str], *args: Any, ranks: int, engine: str) -> None:
        """Run `function(self, *args)` in each rank, and print the answer of the first."""
        if ranks > 1:
            self.open()  # raises here once, and not in each rank
        if text := launch(function, self, *args, ranks=ranks, engine=engine, folder=self.out and self.out.parent):
            typer.echo(text)

    def open(self) -> tuple[nn.Module, Call | None, Loader]:
        """The model on the device of this rank, how to call it, and the batches of this rank."""
        import_modules(self.modules)
        loaded = load_model(self.folder, self.model, self.weights)
        model = loaded.model.to(device_of_rank(resolve_device(self.device)))
        graph = loaded.graph_or_store(self.data, self.split)
        return model, loaded.call, exact_loader(model, graph, batch=self.batch or BATCH, call=loaded.call)

    def answer(self, result: BatchAudit | Certificate | Proof) -> str:
        """Save the result, and return what to print; nothing on other ranks than the first."""
        if rank() > 0:
            return ""
        if self.out is not None:
            result.save(self.out)
        return result.json() if self.as_json else result.text()


def audit_rank(job: BatchJob, adversary: str, settings: list[str] | None, threat: str, gain: str, seeds: int) -> str:
    """Audit the batches of this rank; the metrics are those of all ranks."""
    model, call, loader = job.open()
    attack = parse_attack(adversary, settings, threat, gain, loader.graph if isinstance(loader.graph, Data) else None)
    by, gain = (attack.adversary, attack.gain) if isinstance(attack, Threat) else (attack, gain or "cross-entropy")
    return job.answer(audit_batches(model, loader, by, gain=gain, seeds=seeds, call=call))


def certify_rank(
    job: BatchJob, vanilla: Path | None, groups: int, fixed: list[str] | None, settings: dict[str, Any]
) -> str:
    """Certify the seed nodes of this rank; the certificate is that of all ranks."""
    model, call, loader = job.open()
    before = None if vanilla is None else saved.load(vanilla).model.to(device_of(model))
    return job.answer(certify_batches(voted(model, groups, fixed), loader, before, call=call, **settings))
