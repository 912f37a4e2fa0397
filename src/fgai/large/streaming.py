"""Readings, metrics, audits and certificates computed batch by batch."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai import distributed
from fgai.adversaries import Adversary, NodeInjection
from fgai.attention import Attention
from fgai.auditing import Estimate
from fgai.calling import Call
from fgai.certificates import Certificate, IntervalBound, Proof, Voted
from fgai.certificates.certify import certify_part
from fgai.certificates.perturbation_sets import PerturbationSet
from fgai.certificates.proof import save_as
from fgai.certificates.record import Condition
from fgai.checks import one_graph
from fgai.errors import DataError
from fgai.files import jsonable
from fgai.items import refuse_graphs
from fgai.large.neighbourhoods import full_batches
from fgai.printing import short_repr
from fgai.reading import Reader, Reading, open_reader
from fgai.settings import check_whole
from fgai.training.data import num_seed_nodes
from fgai.trial import Trial, attacked_trial, clean_trial

RECORDS = (Certificate, Condition, IntervalBound, Proof)  # their tensors have a row for each node


@dataclass(frozen=True)
class BatchReading:
    """The reading of the seed nodes of a batch, and the ids of all nodes of the batch, seed nodes first."""

    ids: Tensor  # [B]
    reading: Reading  # of the seed nodes; the sources of its attention are numbered as in the batch

    __repr__ = short_repr

    @property
    def nodes(self) -> Tensor:
        """The ids of the seed nodes."""
        return self.ids[: len(self.reading.logits)]

    def attention(self, site: str) -> Attention:
        """Return the attention of a site with the node ids of the graph; its targets are `nodes`."""
        attention = self.reading.attention[site]
        return replace(attention, edge_index=self.ids[attention.edge_index])


def batch_readings(model: nn.Module, loader: Iterable[Data], *, call: Call | None = None) -> Iterator[BatchReading]:
    """Yield the readings of the seed nodes of each batch.

    They are exact if the seed nodes have their full neighbourhoods, one hop per layer (`full_neighbour_loader`).

    Args:
        model: The model to read.
        loader: A loader of full neighbourhoods whose batches have the node ids `n_id`.
        call: How the model is called on a graph; by its signature by default.

    Raises:
        DataError: The loader samples neighbours, or takes fewer hops than the model reads.

    >>> from fgai import backbones, datasets
    >>> from fgai.large import full_neighbour_loader
    >>> data = datasets.load("synthetic")
    >>> loader = full_neighbour_loader(data, hops=2)
    >>> sum(len(part.nodes) for part in batch_readings(backbones.build("gat", data), loader))
    1000
    """
    with open_reader(model, call) as read:
        for batch in full_batches(model, loader, call):
            refuse_graphs(batch, "A reading of sampled batches", "read one Batch of all graphs with fgai.read")
            yield BatchReading(batch.n_id, read.checked(one_graph(batch)).head(num_seed_nodes(batch)))


def concat_readings(readings: Iterable[BatchReading], nodes: int) -> Reading:
    """Return one reading of the full graph; it holds the attention of all edges in memory.

    Args:
        readings: The readings of all batches.
        nodes: Number of nodes of the graph. Logits of nodes without a reading are NaN.

    >>> from fgai import backbones, datasets
    >>> from fgai.large import layerwise_readings
    >>> data = datasets.load("synthetic")
    >>> concat_readings(layerwise_readings(backbones.build("gat", data), data), data.num_nodes).logits.shape
    torch.Size([1000, 4])
    """
    parts = list(readings)
    if not parts:
        raise DataError("there is no reading to concatenate; give the loader seed nodes")
    first = parts[0].reading
    logits = first.logits.new_full((nodes, *first.logits.shape[1:]), torch.nan)
    for part in parts:
        logits[part.nodes] = part.reading.logits
    attention = {site: [part.attention(site) for part in parts] for site in first.attention}
    return Reading(logits, {site: _concat_attention(pieces, nodes) for site, pieces in attention.items()})


def _concat_attention(pieces: list[Attention], nodes: int) -> Attention:
    weight = torch.cat([piece.weight for piece in pieces])
    return Attention(weight, torch.cat([piece.edge_index for piece in pieces], 1), nodes)


@dataclass(frozen=True)
class BatchAudit:
    """The metrics that are means over nodes or edges, on the clean and the attacked batches of all ranks.

    Those of explanations are about `explanation`, the attention of the last layer.
    """

    clean: Mapping[str, float]
    attacked: Mapping[str, Estimate]
    explanation: str = "last"

    def text(self) -> str:
        """Return a table for the terminal."""
        about = f"Explanation: {self.explanation}. The budget of the attack is per batch."
        rows = [f"{name:14} {self.clean[name]:8.4f} {estimate.mean:8.4f}" for name, estimate in self.attacked.items()]
        return "\n".join([about, f"{'':14} {'clean':>8} {'attacked':>8}", *rows])

    def json(self) -> str:
        """Return the metrics as JSON; numbers that are not finite become null."""
        return json.dumps(jsonable(asdict(self)), indent=1, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write the metrics to a `.json` or `.txt` file."""
        save_as(path, self)


def audit_batches(
    model: nn.Module,
    loader: Iterable[Data],
    by: Adversary = NodeInjection(),
    *,
    gain: str = "cross-entropy",
    seeds: int = 1,
    call: Call | None = None,
) -> BatchAudit:
    """Attack each batch with the full budget of the adversary, and score the seed nodes.

    The budget is per batch, so the attack is far stronger than one with the same budget for the full graph. F1 is that
    of the seed nodes in `test_mask`, the other metrics are those of all seed nodes; without the mask, all are.

    Args:
        model: The model to audit.
        loader: A loader of full neighbourhoods (`full_neighbour_loader`).
        by: The adversary, through the gradients of the model.
        gain: The gain that the adversary maximises.
        seeds: Number of attacks, with random seeds 0, 1, ...
        call: How the model is called on a graph; by its signature by default.

    Returns:
        The metrics on the clean and on the attacked batches.

    Raises:
        DataError: The loader samples neighbours, takes fewer hops than the model reads, or has no seed node in
            `test_mask`.

    >>> from fgai import backbones, datasets
    >>> from fgai.large import full_neighbour_loader
    >>> data = datasets.load("synthetic")
    >>> small, loader = NodeInjection(nodes=2, edges=5, steps=1), full_neighbour_loader(data, hops=2)
    >>> sorted(audit_batches(backbones.build("gat", data), loader, small).clean)
    ['entropy', 'f1', 'g_jsd', 'g_tvd', 'nonuniformity', 'overlap']
    """
    from fgai.large.metrics import WEIGHTS, Streamed  # needs an extra

    check_whole(1, seeds=seeds)
    rows = [{name: Streamed(name) for name in WEIGHTS} for _ in range(seeds + 1)]
    with open_reader(model, call) as read:
        for batch in full_batches(model, loader, call):
            refuse_graphs(batch, "An audit of sampled batches", "give all graphs to fgai.audit as one Batch")
            clean = _seed_node_trial(read, batch)
            trials = [clean, *(attacked_trial(by, gain, clean, seed) for seed in range(seeds))]
            for row, trial in zip(rows, trials, strict=True):
                for metric in row.values():
                    metric.update(trial)
    if not rows[0]["f1"].compute().isfinite():
        raise DataError(
            "no seed node of the batches is in `test_mask`, so there is no F1; give the loader seed nodes of the mask, "
            "such as seed_nodes=data.test_mask, or remove the mask, and all seed nodes count"
        )
    first, *others = [{name: float(metric.compute()) for name, metric in row.items()} for row in rows]
    return BatchAudit(first, {name: Estimate.of([row[name] for row in others]) for name in first if others})


def _seed_node_trial(read: Reader, batch: Data) -> Trial:
    """Return the clean trial of the seed nodes of a batch."""
    trial, seed_nodes = clean_trial(read, batch, is_part=True), num_seed_nodes(batch)
    clean = trial.clean.head(seed_nodes)
    return replace(trial, clean=clean, y=trial.y[:seed_nodes], eval_mask=trial.eval_mask[:seed_nodes])


@overload
def certify_batches(
    model: nn.Module,
    loader: Iterable[Data],
    vanilla: nn.Module | None = None,
    *,
    against: None = None,
    **settings: Any,
) -> Certificate: ...


@overload
def certify_batches(
    model: nn.Module, loader: Iterable[Data], *, against: PerturbationSet, **settings: Any
) -> Proof: ...


def certify_batches(
    model: nn.Module, loader: Iterable[Data], vanilla: nn.Module | None = None, **settings: Any
) -> Certificate | Proof:
    """Return what `certify` proves about all seed nodes, in the order of the loader.

    It equals that of `certify` on the full graph if the seed nodes have their full neighbourhoods. Votes hash the
    node numbers in the full graph, which a loader writes as `n_id`. If no bound is known in one batch, nothing is
    proved in any, as on the full graph. All ranks return the same: what was proved in the batches of each rank, in
    turn, as `Loader` assigns them.

    Args:
        model: The model to certify, or a `Voted` one.
        loader: A loader of full neighbourhoods (`full_neighbour_loader`).
        vanilla: The model that `model` was re-trained from, if any.
        **settings: Settings of `certify`, such as `against`.

    Returns:
        A `Proof` with `against`, else a `Certificate`.

    Raises:
        DataError: The loader gave no batch, samples neighbours or takes fewer hops than the model reads; or a batch
            for a `Voted` model has no `n_id`.

    >>> from fgai import backbones, datasets
    >>> from fgai.large import full_neighbour_loader
    >>> data = datasets.load("synthetic")
    >>> loader = full_neighbour_loader(data, hops=2)
    >>> len(certify_batches(backbones.build("gat", data), loader, k=3, steps=1).certified)
    1000
    """
    inner = model.model if isinstance(model, Voted) else model
    batches = (_numbered(batch, model) for batch in full_batches(inner, loader, settings.get("call")))
    results = ((certify_part(model, _as_graph(batch), vanilla, **settings), num_seed_nodes(batch)) for batch in batches)
    parts = distributed.all_gather_in_turn([_head(part, seed_nodes) for part, seed_nodes in results])
    if not parts:
        raise DataError("the loader gave no batch; give it seed nodes")
    proof = _concat(parts)
    if not isinstance(proof, Proof):
        return proof
    proved = next((part for part in parts if part.how != "none"), parts[0])  # some batch has no certified node
    unknown = next((part for part in parts if part.how == "none" and not part.reason.startswith(proved.reason)), None)
    if unknown is not None:
        return replace(proof, how="none", reason=unknown.reason, budget=torch.zeros_like(proof.budget))
    return replace(proof, how=proved.how, reason=proved.reason)


def _numbered(batch: Data, model: nn.Module) -> Data:
    """Return a batch; raise if the model hashes node numbers and the batch does not have those of the full graph."""
    if isinstance(model, Voted) and isinstance(batch, Data) and "n_id" not in batch:
        raise DataError(
            f"votes hash the node numbers of the full graph, and a batch has no `n_id`, only {sorted(batch.keys())}; "
            "use full_neighbour_loader or NeighborLoader, which write it, or set data.n_id = "
            "torch.arange(data.num_nodes) before another loader splits the graph"
        )
    return batch


def _as_graph(batch: Data) -> Data:
    """Return a sampled batch as a graph of its own; only the rows of its seed nodes may be used."""
    graph = copy.copy(batch)
    for name in ("batch_size", "batch"):
        if name in graph:
            del graph[name]
    return graph


def _head(value: Any, nodes: int) -> Any:
    """Return a record with the first rows of each tensor."""
    if isinstance(value, torch.Tensor):
        return value[:nodes] if distributed.world_size() == 1 else value[:nodes].cpu()  # ranks have their own devices
    if isinstance(value, dict):
        return {name: _head(part, nodes) for name, part in value.items()}
    if isinstance(value, RECORDS):
        return replace(value, **{f.name: _head(getattr(value, f.name), nodes) for f in fields(value)})
    return value


def _concat(parts: list[Any]) -> Any:
    """Return one record with the rows of all; other entries are those of the first."""
    first = parts[0]
    if any(part is None for part in parts):
        return None
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return {name: _concat([part[name] for part in parts]) for name in first}
    if isinstance(first, RECORDS):
        values = {f.name: _concat([getattr(part, f.name) for part in parts]) for f in fields(first)}
        return replace(first, **values)
    return first
