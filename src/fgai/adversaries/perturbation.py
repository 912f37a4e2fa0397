"""Perturbations of a graph or of its attention: data that can be applied, saved and loaded."""

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

from fgai.adversaries.typed import added_types
from fgai.checks import describe_tensor
from fgai.errors import DataError
from fgai.files import atomic_write
from fgai.graph import add_edges, add_nodes, delete_edges, edge_keys, is_edge_list, locate, require
from fgai.printing import short_repr
from fgai.readers import parse_json, read_tensors
from fgai.reading import Reader, Reading
from fgai.rows import with_values

FILE_REMEDY = "write the file with Perturbation.save"
GRAPH_REMEDY = "apply it to the graph that it was made for"
TYPES = ("node_type", "edge_type")
PARTS = ("x", "added", "dropped", "x_delta", *TYPES)
NO_EDGES = torch.empty(2, 0, dtype=torch.long)


@dataclass(frozen=True)
class Perturbation:
    """A change of a graph: injected nodes, added and dropped edges, changed features, changed attention.

    Args:
        x: Features of the injected nodes, [M, F].
        added: New edges, directed, [2, A]; injected nodes have the ids N to N + M - 1.
        dropped: Edges to remove, directed, [2, D].
        x_delta: Added to `data.x`, with its shape; to its stored values if it is sparse.
        weight_delta: Added to attention weights, by name of the layer, [E, H].
        score_delta: Added to attention scores before the softmax, by name of the layer, [E, H].
        node_type: In a typed graph, the types of the injected nodes, [M].
        edge_type: In a typed graph, the relations of the new edges, [A].

    >>> change = Perturbation(x=torch.ones(1, 1), added=torch.tensor([[2, 0], [0, 2]]))
    >>> data = Data(x=torch.zeros(2, 1), edge_index=torch.tensor([[0], [1]]))
    >>> change.apply(data).edge_index.tolist()
    [[0, 2, 0], [1, 0, 2]]
    """

    x: Tensor | None = None
    added: Tensor = field(default_factory=lambda: NO_EDGES)
    dropped: Tensor = field(default_factory=lambda: NO_EDGES)
    x_delta: Tensor | None = None
    weight_delta: Mapping[str, Tensor] = field(default_factory=dict)
    score_delta: Mapping[str, Tensor] = field(default_factory=dict)
    node_type: Tensor | None = None
    edge_type: Tensor | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        for name, ends in (("added", self.added), ("dropped", self.dropped)):
            if not is_edge_list(ends):
                raise DataError(f"`{name}` is {describe_tensor(ends)}; give integers [2, E], sources above targets")
        if self.x is not None and self.x.dim() != 2:
            raise DataError(f"`x` is {describe_tensor(self.x)}; give a row of features for each injected node")
        for name, part, size in (
            ("node_type", self.node_type, 0 if self.x is None else len(self.x)),
            ("edge_type", self.edge_type, self.added.size(1)),
        ):
            if part is not None and (part.dtype != torch.long or part.shape != (size,)):
                raise DataError(f"`{name}` is {describe_tensor(part)}; give an integer for each of the {size} new ones")

    def apply(self, data: Data) -> Data:
        """Return the perturbed graph, on the device of `data`.

        Args:
            data: The clean graph.

        Returns:
            A new graph. Original nodes keep their ids; injected nodes follow them.

        Raises:
            DataError: If the perturbation was made for another graph.
        """
        self._require_fit(data)
        device = require(data, "edge_index").device
        if self.x_delta is not None:
            data = _shift_features(data, self.x_delta.to(device))
        if self.dropped.size(1):
            edges = require(data, "edge_index")
            data = delete_edges(data, locate(edges, self.dropped.to(device)) >= 0)
        if self.x is None and not self.added.size(1):
            return data
        new = 0 if self.x is None else len(self.x)
        types = added_types(data, new, self.added, self.node_type, self.edge_type)
        if self.x is not None:
            return add_nodes(data, self.x.to(device), self.added, **types)
        return add_edges(data, self.added, **types)

    def _require_fit(self, data: Data) -> None:
        """Raise if the graph has features of another shape, or too few nodes."""
        nodes, new = int(data.num_nodes or 0), 0 if self.x is None else len(self.x)
        for ends, most in ((self.added, nodes + new), (self.dropped, nodes)):
            if ends.numel() and not 0 <= int(ends.min()) <= int(ends.max()) < most:
                low, high = int(ends.min()), int(ends.max())
                raise DataError(
                    f"the perturbation names the nodes {low} to {high}, but there are {most} nodes; {GRAPH_REMEDY}"
                )
        if self.x is not None:
            old = require(data, "x")
            if old.dim() != 2 or self.x.size(1) != old.size(1):
                raise DataError(
                    f"the perturbation injects {self.x.size(1)} features a node, but `x` is {describe_tensor(old)}; "
                    f"{GRAPH_REMEDY}"
                )
        if self.x_delta is not None:
            x = require(data, "x")
            shape = x.coalesce().values().shape if x.is_sparse else x.shape
            if self.x_delta.shape != shape:
                raise DataError(
                    f"the perturbation changes features of shape {list(self.x_delta.shape)}, but the graph has "
                    f"{list(shape)}; {GRAPH_REMEDY}"
                )

    def read(self, read: Reader, data: Data) -> AttackResult:
        """Return the reading of the model on the perturbed graph."""
        graph = self.apply(data)
        device = require(graph, "edge_index").device
        weights, scores = (
            {site: delta.to(device) for site, delta in deltas.items()}
            for deltas in (self.weight_delta, self.score_delta)
        )
        reading = read(graph, weight_delta=weights, score_delta=scores)
        return AttackResult.of(reading, self, graph)

    def save(self, path: str | Path, **about: Any) -> None:
        """Write to a safetensors file; `about` are more entries of its header, as JSON values."""
        parts = {name: getattr(self, name) for name in PARTS}
        tensors = {name: part.detach().clone().contiguous() for name, part in parts.items() if part is not None}
        for name in ("weight_delta", "score_delta"):
            tensors |= {f"{name}/{site}": delta.detach().contiguous() for site, delta in getattr(self, name).items()}
        with atomic_write(Path(path)) as temporary:
            save_file(tensors, str(temporary), {"fgai": json.dumps({**about, "perturbation": 1})})

    @classmethod
    def load(cls, path: str | Path) -> Perturbation:
        """Load a file that `save` wrote; raise `DataError` if it holds no perturbation."""
        tensors, metadata = read_tensors(path, FILE_REMEDY)
        header = parse_json(metadata.get("fgai", "{}"), path, FILE_REMEDY)
        if (
            not isinstance(header, dict)
            or header.get("perturbation") != 1
            or not {"added", "dropped"} <= tensors.keys()
        ):
            raise DataError(f"{path} holds no perturbation; {FILE_REMEDY}")
        deltas = {
            kind: {name.removeprefix(f"{kind}/"): t for name, t in tensors.items() if name.startswith(f"{kind}/")}
            for kind in ("weight_delta", "score_delta")
        }
        x, x_delta = tensors.get("x"), tensors.get("x_delta")
        _check_values(path, x, [x_delta, *(part for kind in deltas.values() for part in kind.values())])
        for name in ("added", "dropped"):
            _check_edges(path, tensors[name])
        types = [tensors.get(name) for name in TYPES]
        weight_delta, score_delta = deltas["weight_delta"], deltas["score_delta"]
        return cls(x, tensors["added"], tensors["dropped"], x_delta, weight_delta, score_delta, *types)


def _check_values(path: str | Path, x: Tensor | None, deltas: list[Tensor | None]) -> None:
    """Raise unless `x` is a float matrix and all deltas are floats."""
    floats = all(part.is_floating_point() for part in (x, *deltas) if part is not None)
    if not floats or (x is not None and x.dim() != 2):
        raise DataError(f"{path} holds features or deltas that are not floating-point numbers; {FILE_REMEDY}")


def _check_edges(path: str | Path, ends: Tensor) -> None:
    """Raise unless `ends` holds node ids [2, A]."""
    if ends.dtype != torch.long or ends.dim() != 2 or len(ends) != 2 or (ends.numel() and int(ends.min()) < 0):
        raise DataError(
            f"{path} holds edges of {ends.dtype} and shape {list(ends.shape)}, not node ids [2, A]; {FILE_REMEDY}"
        )


@dataclass(frozen=True)
class AttackResult(Reading):
    """A reading under attack, with the perturbation and the perturbed graph.

    `found_by` says which member of an attack with several members found the perturbation.
    """

    perturbation: Perturbation
    graph: Data
    found_by: str = field(default="", kw_only=True)

    __repr__ = short_repr

    @classmethod
    def of(cls, reading: Reading, perturbation: Perturbation, graph: Data) -> AttackResult:
        """Return a reading of the perturbed graph with its perturbation."""
        return cls(reading.logits, reading.attention, perturbation, graph, unread=reading.unread, items=reading.items)

    def detach(self) -> AttackResult:
        """Return the same reading without gradients."""
        detached: Any = super().detach()  # `replace` preserves the class
        return detached


def _shift_features(data: Data, delta: Tensor) -> Data:
    """Add `delta` to the features, or to their stored values if they are sparse."""
    shifted, x = copy.copy(data), require(data, "x")
    if x.is_sparse:
        x = x.coalesce()
        shifted.x = with_values(x, x.values() + delta)
    else:
        shifted.x = x + delta
    return shifted


def undirected(pairs: Tensor) -> Tensor:
    """Return both directions of each pair; [2, P] -> [2, 2P]."""
    return torch.cat([pairs, pairs.flip(0)], dim=1)


def pairs_of(edge_index: Tensor) -> Tensor:
    """Return each pair of linked nodes once, the smaller id first, without self-loops; sorted; [2, P]."""
    low, high = edge_index.min(0).values, edge_index.max(0).values
    base = int(edge_index.max()) + 1 if edge_index.numel() else 1
    keys = edge_keys(torch.stack([low, high]), base)[low < high].unique()
    return torch.stack([keys % base, keys // base])
