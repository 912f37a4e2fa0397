"""A change that was made to a graph, or to the attention on it: kept, saved, and made again."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch_geometric.data import Data

from fgai.checks import describe_tensor
from fgai.errors import DataError
from fgai.files import atomic_write
from fgai.graph import add_edges, add_nodes, delete_edges, edge_keys, locate, require, with_values
from fgai.readers import parse_json, read_tensors
from fgai.reading import Reader, Reading

REMEDY = "Perturbation.save writes such files"
ANOTHER = "apply it to the graph that it was made for"
NO_EDGES = torch.empty(2, 0, dtype=torch.long)


@dataclass(frozen=True)
class Perturbation:
    """What an adversary did: nodes and edges put in, edges taken out, features moved, attention nudged.

    >>> change = Perturbation(x=torch.ones(1, 1), added=torch.tensor([[2, 0], [0, 2]]))
    >>> data = Data(x=torch.zeros(2, 1), edge_index=torch.tensor([[0], [1]]))
    >>> change.apply(data).edge_index.tolist()
    [[0, 2, 0], [1, 0, 2]]
    """

    x: Tensor | None = None  # [M, F], features of injected nodes
    added: Tensor = field(default_factory=lambda: NO_EDGES)  # [2, A], directed
    dropped: Tensor = field(default_factory=lambda: NO_EDGES)  # [2, D], directed
    x_delta: Tensor | None = None  # like `data.x` (its stored values where it is sparse): what is added to it
    weight_delta: Mapping[str, Tensor] = field(default_factory=dict)
    score_delta: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, ends in (("added", self.added), ("dropped", self.dropped)):
            if ends.dim() != 2 or ends.size(0) != 2 or ends.dtype not in (torch.int32, torch.int64):
                raise DataError(f"`{name}` is {describe_tensor(ends)}; give integers [2, E], sources above targets")
        if self.x is not None and self.x.dim() != 2:
            raise DataError(f"`x` is {describe_tensor(self.x)}; give a row of features for each injected node")

    def apply(self, data: Data) -> Data:
        """The perturbed graph, on the device of `data`; original nodes keep their numbers.

        A perturbation that was made for another graph is refused.
        """
        self._require_fit(data)
        device = require(data, "edge_index").device
        if self.x_delta is not None:
            data = _moved(data, self.x_delta.to(device))
        if self.dropped.size(1):
            edges = require(data, "edge_index")
            data = delete_edges(data, locate(edges, self.dropped.to(device)) >= 0)
        if self.x is not None:
            return add_nodes(data, self.x.to(device), self.added)
        return add_edges(data, self.added) if self.added.size(1) else data

    def _require_fit(self, data: Data) -> None:
        """Refuse a graph with other features, or with fewer nodes than the edges name."""
        nodes, new = int(data.num_nodes or 0), 0 if self.x is None else len(self.x)
        for ends, most in ((self.added, nodes + new), (self.dropped, nodes)):
            if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < most:
                low, high = int(ends.min()), int(ends.max())
                raise DataError(f"the perturbation names the nodes {low} to {high}, and there are {most}; {ANOTHER}")
        if self.x is not None or self.added.numel():
            old = require(data, "x")
            width = old.size(1) if old.dim() == 2 else 0
            if old.dim() != 2 or (self.x is not None and self.x.size(1) != width):
                injected = "no" if self.x is None else self.x.size(1)
                raise DataError(
                    f"the perturbation injects {injected} features, and the graph has `x` {describe_tensor(old)}; "
                    f"{ANOTHER}"
                )
        if self.x_delta is not None:
            x = require(data, "x")
            shape = x.coalesce().values().shape if x.is_sparse else x.shape
            if self.x_delta.shape != shape:
                have = f"{list(self.x_delta.shape)} features, and the graph has {list(shape)}"
                raise DataError(f"the perturbation moves {have}; {ANOTHER}")

    def read(self, read: Reader, data: Data) -> AttackResult:
        """What a model says of the perturbed graph, and where it looks."""
        graph = self.apply(data)
        device = require(graph, "edge_index").device
        weights, scores = (
            {site: delta.to(device) for site, delta in deltas.items()}
            for deltas in (self.weight_delta, self.score_delta)
        )
        reading = read(graph, weight_delta=weights, score_delta=scores)
        return AttackResult(reading.logits, reading.attention, self, graph, unread=reading.unread)

    def kept(self, data: Data) -> Tensor:
        """For each edge of `data`, its column in the perturbed graph, or -1 where it was dropped."""
        return locate(require(data, "edge_index"), require(self.apply(data), "edge_index"))

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file."""
        parts = {name: getattr(self, name) for name in ("x", "added", "dropped", "x_delta")}
        tensors = {name: part.detach().clone().contiguous() for name, part in parts.items() if part is not None}
        for name in ("weight_delta", "score_delta"):
            tensors |= {f"{name}/{site}": delta.detach().contiguous() for site, delta in getattr(self, name).items()}
        with atomic_write(Path(path)) as half:
            save_file(tensors, str(half), {"fgai": json.dumps({"perturbation": 1})})

    @classmethod
    def load(cls, path: str | Path) -> Perturbation:
        """Read back what `save` wrote."""
        tensors, metadata = read_tensors(path, REMEDY)
        ours = parse_json(metadata.get("fgai", "{}"), path, REMEDY)
        if not isinstance(ours, dict) or ours.get("perturbation") != 1 or not {"added", "dropped"} <= tensors.keys():
            raise DataError(f"{path} holds no perturbation; Perturbation.save writes one")
        nudges = {
            kind: {name.removeprefix(f"{kind}/"): t for name, t in tensors.items() if name.startswith(f"{kind}/")}
            for kind in ("weight_delta", "score_delta")
        }
        x, x_delta = tensors.get("x"), tensors.get("x_delta")
        _check(
            path,
            x,
            x_delta,
            [tensors["added"], tensors["dropped"]],
            [n for kind in nudges.values() for n in kind.values()],
        )
        return cls(x, tensors["added"], tensors["dropped"], x_delta, nudges["weight_delta"], nudges["score_delta"])


def _check(
    path: str | Path, x: Tensor | None, x_delta: Tensor | None, edges: list[Tensor], nudges: list[Tensor]
) -> None:
    """Refuse tensors that are no features [M, F], edges [2, A] or numbers."""
    numbers = [part for part in (x, x_delta, *nudges) if part is not None]
    if not all(part.is_floating_point() for part in numbers) or (x is not None and x.dim() != 2):
        raise DataError(f"{path} holds features or nudges that are no numbers; {REMEDY}")
    for ends in edges:
        if ends.dtype != torch.long or ends.dim() != 2 or len(ends) != 2 or (ends.numel() and int(ends.min()) < 0):
            raise DataError(
                f"{path} holds edges of {ends.dtype} and shape {list(ends.shape)}, not ids [2, A]; {REMEDY}"
            )


@dataclass(frozen=True)
class AttackResult(Reading):
    """A reading under a perturbation, which it carries, with the perturbed graph."""

    perturbation: Perturbation
    graph: Data

    def detach(self) -> AttackResult:
        """The same reading without its history of gradients."""
        still: Any = super().detach()  # of the same class
        return still


def _moved(data: Data, change: Tensor) -> Data:
    x_delta, x = copy.copy(data), require(data, "x")
    if x.is_sparse:
        x = x.coalesce()
        x_delta.x = with_values(x, x.values() + change)
    else:
        x_delta.x = x + change
    return x_delta


def undirected(pairs: Tensor) -> Tensor:
    """Both directions of each pair; [2, P] -> [2, 2P]."""
    return torch.cat([pairs, pairs.flip(0)], dim=1)


def pairs_of(edge_index: Tensor) -> Tensor:
    """Each pair of linked nodes once, the smaller id first, without self-loops; sorted."""
    low, high = edge_index.min(0).values, edge_index.max(0).values
    base = int(edge_index.max()) + 1 if edge_index.numel() else 1
    keys = edge_keys(torch.stack([low, high]), base)[low < high].unique()
    return torch.stack([keys % base, keys // base])
