"""Audits and certificates from a loader: the adversary injects into each batch, every node is judged as a seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from fgai.adversary import Adversary, NodeInjection
from fgai.audit import Figure
from fgai.audit.trial import calm, under
from fgai.certificate import Certificate, Composed, certify
from fgai.certificate.record import Number
from fgai.devices import device_of, on_device
from fgai.errors import DataError
from fgai.methods.batches import seeds_of
from fgai.metrics import Trial
from fgai.reading import Call, Reader, open_reader
from fgai.settings import check_whole


@dataclass(frozen=True)
class BatchAudit:
    """Every metric that is a mean, on the graph as it is and under attack, over all batches and ranks."""

    clean: Mapping[str, float]
    attacked: Mapping[str, Figure]

    def text(self) -> str:
        """For the terminal."""
        rows = [f"{name:14} {self.clean[name]:8.4f} {figure.mean:8.4f}" for name, figure in self.attacked.items()]
        return "\n".join([f"{'':14} {'clean':>8} {'attacked':>8}", *rows])


def audit_batches(
    model: nn.Module,
    loader: Iterable[Data],
    by: Adversary = NodeInjection(),
    *,
    gain: str = "cross-entropy",
    seeds: int = 1,
    call: Call | None = None,
) -> BatchAudit:
    """Attack each batch with the adversary's whole budget, through the model's own gradients, and judge its seeds.

    The budget is per batch: many batches make a far stronger adversary than one who injects once into the whole graph.

    >>> from fgai import backbones, datasets
    >>> from fgai.scale import exact
    >>> data = datasets.load("synthetic")
    >>> small = NodeInjection(nodes=2, edges=5, steps=1)
    >>> sorted(audit_batches(backbones.build("gat", data), exact(data, hops=2), small).clean)
    ['entropy', 'f1', 'g_jsd', 'g_tvd', 'nonuniformity', 'overlap']
    """
    from fgai.scale.metrics import WEIGHTS, Streamed

    check_whole(1, seeds=seeds)
    rows = [{name: Streamed(name) for name in WEIGHTS} for _ in range(seeds + 1)]
    with open_reader(model, call) as read:
        for batch in (on_device(batch, device_of(model)) for batch in loader):
            clean = trial_of(read, batch)
            trials = [clean, *(under(by, gain, clean, seed) for seed in range(seeds))]
            for row, trial in zip(rows, trials, strict=True):
                for metric in row.values():
                    metric.update(trial)
    first, *others = [{name: float(metric.compute()) for name, metric in row.items()} for row in rows]
    return BatchAudit(first, {name: Figure.of([row[name] for row in others]) for name in first if others})


def trial_of(read: Reader, batch: Data) -> Trial:
    """The model on a batch; only its seeds are judged."""
    trial, seeds = calm(read, batch), seeds_of(batch)
    clean = trial.clean.of_first(seeds)
    return replace(trial, clean=clean, y=trial.y[:seeds], judged=trial.judged[:seeds])


def certify_batches(
    model: nn.Module, loader: Iterable[Data], vanilla: nn.Module | None = None, **settings: Any
) -> Certificate:
    """`certify` of every seed, in the order of the loader; the same numbers where seeds have their whole neighbourhood.

    >>> from fgai import backbones, datasets
    >>> from fgai.scale import exact
    >>> data = datasets.load("synthetic")
    >>> len(certify_batches(backbones.build("gat", data), exact(data, hops=2), k=3, steps=1).certified)
    1000
    """
    moved = (on_device(batch, device_of(model)) for batch in loader)
    parts = [_first(certify(model, batch, vanilla, **settings), seeds_of(batch)) for batch in moved]
    if not parts:
        raise DataError("the loader has no batch; give it seeds")
    return _joined(parts)


def _first(value: Any, nodes: int) -> Any:
    """A record, cut to its first nodes wherever it has a row per node."""
    if isinstance(value, torch.Tensor):
        return value[:nodes]
    if isinstance(value, dict):
        return {name: _first(part, nodes) for name, part in value.items()}
    if isinstance(value, Certificate | Number | Composed):
        return replace(value, **{f.name: _first(getattr(value, f.name), nodes) for f in fields(value)})
    return value


def _joined(parts: list[Any]) -> Any:
    """One record of records that share everything but their rows."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, Certificate | Number | Composed):
        joined: Iterator[tuple[str, Any]] = (
            (f.name, _joined([getattr(part, f.name) for part in parts])) for f in fields(first)
        )
        return replace(first, **dict(joined))
    return first
