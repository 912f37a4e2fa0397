"""Readings, metrics, audits and certificates computed batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.adversaries import Adversary, NodeInjection
from fgai.attention import Attention
from fgai.auditing import Estimate
from fgai.calling import Call
from fgai.certificates import Certificate, IntervalBound, certify
from fgai.certificates.record import Condition
from fgai.checks import one_graph
from fgai.devices import device_of, on_device
from fgai.errors import DataError, MissingExtraError, UnknownNameError
from fgai.metrics import METRICS
from fgai.reading import Reader, Reading, open_reader
from fgai.settings import check_whole
from fgai.training.data import num_seed_nodes
from fgai.trial import Trial, attacked_trial, clean_trial


@dataclass(frozen=True)
class BatchReading:
    """What a model says of some nodes, and the ids of all nodes in their batch; those it is said of come first."""

    ids: Tensor  # [B]
    reading: Reading  # of the first ones; the sources of its attention are numbered as in the batch

    @property
    def nodes(self) -> Tensor:
        """The nodes that are read."""
        return self.ids[: len(self.reading.logits)]

    def attention(self, site: str) -> Attention:
        """The attention of a site between the graph's own nodes; its targets are `nodes`."""
        look = self.reading.attention[site]
        return replace(look, edge_index=self.ids[look.edge_index])


def readings(model: nn.Module, loader: Iterable[Data], *, call: Call | None = None) -> Iterator[BatchReading]:
    """Read batch by batch; exact where the seeds have their whole neighbourhood (`exact`), one hop a layer.

    >>> from fgai import backbones, datasets
    >>> from fgai.large.loader import exact
    >>> data = datasets.load("synthetic")
    >>> sum(len(seen.nodes) for seen in readings(backbones.build("gat", data), exact(data, hops=2)))
    1000
    """
    with open_reader(model, call) as read:
        for batch in (on_device(batch, device_of(model)) for batch in loader):
            yield BatchReading(batch.n_id, read.checked(one_graph(batch)).head(num_seed_nodes(batch)))


def concat(parts: Iterable[BatchReading], nodes: int) -> Reading:
    """One reading of a graph of `nodes` nodes; NaN where no part has one. It takes the memory of all attention."""
    seen = list(parts)
    if not seen:
        raise DataError("there is nothing to join; give the loader seeds")
    first = seen[0].reading
    logits = first.logits.new_full((nodes, *first.logits.shape[1:]), torch.nan)
    for part in seen:
        logits[part.nodes] = part.reading.logits
    looks = {site: [part.attention(site) for part in seen] for site in first.attention}
    return Reading(logits, {site: _one(some, nodes) for site, some in looks.items()})


def _one(looks: list[Attention], nodes: int) -> Attention:
    weight = torch.cat([look.weight for look in looks])
    return Attention(weight, torch.cat([look.edge_index for look in looks], 1), nodes)


try:
    from torchmetrics import Metric
except ImportError as error:
    raise MissingExtraError(
        "metrics over batches and ranks need torchmetrics; install it with: pip install 'fgai[metrics]'"
    ) from error

WEIGHTS: Mapping[str, Callable[[Trial], Tensor]] = {  # what each metric is a mean over
    "f1": lambda trial: trial.eval_mask.sum(),
    "g_tvd": lambda trial: torch.tensor(len(trial.y)),
    "g_jsd": lambda trial: torch.tensor(trial.clean.explanation.coalesce().edge_index.size(1)),
    "overlap": lambda trial: (trial.clean.explanation.degree > 0).sum(),
    "nonuniformity": lambda trial: torch.tensor(len(trial.y)),
    "entropy": lambda trial: (trial.clean.explanation.degree > 1).sum(),
}


class Streamed(Metric):
    """A metric of `fgai ls` that is a mean over nodes or edges, of the trials of all batches and ranks.

    `update` takes the trial of a batch; `compute` is what the whole graph would give.

    >>> from fgai import backbones, datasets
    >>> from fgai.trial import clean_trial
    >>> from fgai.reading import Reader
    >>> data = datasets.load("synthetic")
    >>> metric = Streamed("nonuniformity")
    >>> metric.update(calm(Reader(backbones.build("gat", data).eval()), data))
    >>> 0 < metric.compute() < 2
    tensor(True)
    """

    full_state_update = False
    total: Tensor
    weight: Tensor

    def __init__(self, name: str) -> None:
        super().__init__()
        if name not in WEIGHTS:
            raise UnknownNameError(f"{name!r} is no mean over nodes or edges; these stream: {', '.join(WEIGHTS)}")
        self.name = name
        self.add_state("total", torch.zeros((), dtype=torch.double), "sum")
        self.add_state("weight", torch.zeros((), dtype=torch.double), "sum")

    def update(self, trial: Trial) -> None:
        """Count a batch."""
        weight = float(WEIGHTS[self.name](trial))
        if weight > 0:
            self.total += METRICS[self.name].compute(trial) * weight
            self.weight += weight

    def compute(self) -> Tensor:
        """The mean over all that was counted."""
        return self.total / self.weight


@dataclass(frozen=True)
class BatchAudit:
    """Every metric that is a mean, on the graph as it is and under attack, over all batches and ranks."""

    clean: Mapping[str, float]
    attacked: Mapping[str, Estimate]

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
    >>> from fgai.large import exact
    >>> data = datasets.load("synthetic")
    >>> small = NodeInjection(nodes=2, edges=5, steps=1)
    >>> sorted(audit_batches(backbones.build("gat", data), exact(data, hops=2), small).clean)
    ['entropy', 'f1', 'g_jsd', 'g_tvd', 'nonuniformity', 'overlap']
    """
    from fgai.large.streaming import WEIGHTS, Streamed

    check_whole(1, seeds=seeds)
    rows = [{name: Streamed(name) for name in WEIGHTS} for _ in range(seeds + 1)]
    with open_reader(model, call) as read:
        for batch in (on_device(batch, device_of(model)) for batch in loader):
            clean = trial_of(read, batch)
            trials = [clean, *(attacked_trial(by, gain, clean, seed) for seed in range(seeds))]
            for row, trial in zip(rows, trials, strict=True):
                for metric in row.values():
                    metric.update(trial)
    first, *others = [{name: float(metric.compute()) for name, metric in row.items()} for row in rows]
    return BatchAudit(first, {name: Estimate.of([row[name] for row in others]) for name in first if others})


def trial_of(read: Reader, batch: Data) -> Trial:
    """The model on a batch; only its seeds are judged."""
    trial, seeds = clean_trial(read, batch), num_seed_nodes(batch)
    clean = trial.clean.head(seeds)
    return replace(trial, clean=clean, y=trial.y[:seeds], eval_mask=trial.eval_mask[:seeds])


def certify_batches(
    model: nn.Module, loader: Iterable[Data], vanilla: nn.Module | None = None, **settings: Any
) -> Certificate:
    """`certify` of every seed, in the order of the loader; the same numbers where seeds have their whole neighbourhood.

    >>> from fgai import backbones, datasets
    >>> from fgai.large import exact
    >>> data = datasets.load("synthetic")
    >>> len(certify_batches(backbones.build("gat", data), exact(data, hops=2), k=3, steps=1).certified)
    1000
    """
    moved = (on_device(batch, device_of(model)) for batch in loader)
    parts = [_first(certify(model, batch, vanilla, **settings), num_seed_nodes(batch)) for batch in moved]
    if not parts:
        raise DataError("the loader has no batch; give it seeds")
    return _joined(parts)


def _first(value: Any, nodes: int) -> Any:
    """A record, cut to its first nodes wherever it has a row per node."""
    if isinstance(value, torch.Tensor):
        return value[:nodes]
    if isinstance(value, dict):
        return {name: _first(part, nodes) for name, part in value.items()}
    if isinstance(value, Certificate | Condition | IntervalBound):
        return replace(value, **{f.name: _first(getattr(value, f.name), nodes) for f in fields(value)})
    return value


def _joined(parts: list[Any]) -> Any:
    """One record of records that share everything but their rows."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, Certificate | Condition | IntervalBound):
        joined: Iterator[tuple[str, Any]] = (
            (f.name, _joined([getattr(part, f.name) for part in parts])) for f in fields(first)
        )
        return replace(first, **dict(joined))
    return first
