"""A change that was made to a graph, or to the attention on it: kept, saved, and made again."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch_geometric.data import Data

from fgai.errors import DataError
from fgai.files import atomic_write
from fgai.graph import add_edges, add_nodes, delete_edges, edge_keys, locate, require, with_values
from fgai.reading import Reader, Reading

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

    def apply(self, data: Data) -> Data:
        """The perturbed graph; original nodes keep their numbers."""
        if self.x_delta is not None:
            data = _moved(data, self.x_delta)
        if self.dropped.size(1):
            edges = require(data, "edge_index")
            data = delete_edges(data, locate(edges, self.dropped) >= 0)
        if self.x is not None:
            return add_nodes(data, self.x, self.added)
        return add_edges(data, self.added) if self.added.size(1) else data

    def read(self, read: Reader, data: Data) -> AttackResult:
        """What a model says of the perturbed graph, and where it looks."""
        graph = self.apply(data)
        reading = read(graph, weight_delta=self.weight_delta, score_delta=self.score_delta)
        return AttackResult(reading.logits, reading.attention, self, graph)

    def kept(self, data: Data) -> Tensor:
        """For each edge of `data`, its column in the perturbed graph, or -1 where it was dropped."""
        return locate(require(data, "edge_index"), require(self.apply(data), "edge_index"))

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file."""
        parts = {name: getattr(self, name) for name in ("x", "added", "dropped", "x_delta")}
        tensors = {name: part.detach().contiguous() for name, part in parts.items() if part is not None}
        for name in ("weight_delta", "score_delta"):
            tensors |= {f"{name}/{site}": delta.detach().contiguous() for site, delta in getattr(self, name).items()}
        with atomic_write(Path(path)) as half:
            save_file(tensors, str(half), {"fgai": json.dumps({"perturbation": 1})})

    @classmethod
    def load(cls, path: str | Path) -> Perturbation:
        """Read back what `save` wrote."""
        try:
            with safe_open(str(path), "pt") as file:
                ours = json.loads((file.metadata() or {}).get("fgai", "{}"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
        except (OSError, SafetensorError, ValueError) as error:
            raise DataError(f"{path} cannot be read ({error}); Perturbation.save writes such files") from error
        if "perturbation" not in ours or not {"added", "dropped"} <= tensors.keys():
            raise DataError(f"{path} holds no perturbation; Perturbation.save writes one")
        nudges = {
            kind: {name.removeprefix(f"{kind}/"): t for name, t in tensors.items() if name.startswith(f"{kind}/")}
            for kind in ("weight_delta", "score_delta")
        }
        x, x_delta = tensors.get("x"), tensors.get("x_delta")
        return cls(x, tensors["added"], tensors["dropped"], x_delta, nudges["weight_delta"], nudges["score_delta"])


@dataclass(frozen=True)
class AttackResult(Reading):
    """A reading under a perturbation, which it carries, with the perturbed graph."""

    perturbation: Perturbation
    graph: Data

    def detach(self) -> AttackResult:
        """The same reading without its history of gradients."""
        plain = super().detach()
        return AttackResult(plain.logits, plain.attention, self.perturbation, self.graph)


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
