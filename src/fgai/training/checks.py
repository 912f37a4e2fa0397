"""Checks of a training run: the logits of the given model, the labels, the loss terms and the trained weights."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.adversaries.gains import binary_logits
from fgai.calling import Call, call_errors, run_model
from fgai.checks import check_finite, check_labels, check_logits, expected_rows
from fgai.errors import CallError, NotFiniteError, TapError
from fgai.model_checks import check_links_used
from fgai.modes import eval_mode
from fgai.reading import Reading, TrainingReader
from fgai.training.constraint import Constraint
from fgai.training.data import MASKS, Batch

REMEDY = "lower the learning rate, scale the features, or give the terms smaller weights"


class BatchChecks:
    """Checks the model once, on the first batch, and the labels of all batches."""

    def __init__(self, call: Call, constraint: Constraint | None = None) -> None:
        self._call, self._constraint, self._classes = call, constraint, 0
        self._last: Data | None = None

    def check(self, read: TrainingReader, batch: Batch) -> None:
        """Check a batch before its loss terms are computed; a repeated graph is checked once."""
        if self._last is batch.graph:
            return
        self._last = batch.graph
        if not self._classes:
            self._classes = self._count_classes(read.model, batch)
            self._check_links(read, batch)
            if self._constraint is not None:
                self._constraint.check(read, batch)
        y = batch.graph.get("y")
        for mask in (batch.graph.get(name) for name in MASKS):
            if y is not None and mask is not None:
                check_labels(y[: batch.seed_nodes][mask[: batch.seed_nodes]], self._classes)

    def _count_classes(self, model: nn.Module, batch: Batch) -> int:
        """Return the number of classes that the model outputs."""
        with eval_mode(model), torch.no_grad(), call_errors(model, batch.graph):
            logits = run_model(model, batch.graph, self._call)
        if not isinstance(logits, Tensor):
            raise CallError(f"{type(model).__name__} returned {type(logits).__name__}; pick the logits with call=...")
        check_logits(logits, type(model).__name__, expected_rows(batch.graph), trained=False)
        return binary_logits(Reading(logits, {})).size(1)

    def _check_links(self, read: TrainingReader, batch: Batch) -> None:
        """Raise `CallError` if an attack on the links would not reach the model."""
        with eval_mode(read.model), torch.no_grad(), suppress(TapError):  # without attention, only logits are read
            check_links_used(read, batch.graph, read(batch.graph))


def check_terms(terms: Mapping[str, float], epoch: int) -> None:
    """Raise `NotFiniteError` if a loss term of an epoch is not finite.

    >>> check_terms({"label": float("nan")}, epoch=3)
    Traceback (most recent call last):
    fgai.errors.NotFiniteError: in epoch 3 the term label is nan; lower the learning rate, scale the features, or give \
the terms smaller weights
    """
    if wrong := {name: value for name, value in terms.items() if not math.isfinite(value)}:
        named = ", ".join(f"{name} is {value:g}" for name, value in wrong.items())
        raise NotFiniteError(f"in epoch {epoch} the term {named}; {REMEDY}")


def check_weights(weights: Mapping[str, Tensor]) -> None:
    """Raise `NotFiniteError` if a trained weight is not finite."""
    for name, weight in weights.items():
        check_finite(f"the trained weights `{name}`", weight, REMEDY)


def fingerprint(graphs: Iterable[Any], model: nn.Module) -> dict[str, str]:
    """Return the SHA-256 of the data and of the initial weights: a run resumes only with the same ones."""
    data, start = hashlib.sha256(), hashlib.sha256()
    for graph in graphs:
        _update(data, graph.to_dict() if isinstance(graph, Data) else _describe(graph))
    _update(start, model.state_dict())
    return {"data_sha256": data.hexdigest(), "start_sha256": start.hexdigest()}


def _describe(source: Any) -> dict[str, Any]:
    """Return the attributes that identify a graph store or a loader."""
    names = ("num_nodes", "num_edges", "names", "origin")
    return {"kind": type(source).__name__, **{name: getattr(source, name, None) for name in names}}


def _update(digest: Any, values: Mapping[str, Any]) -> None:
    for name in sorted(values):
        value = values[name]
        digest.update(f"{name} {list(value.shape) if isinstance(value, Tensor) else value!r}".encode())
        for part in _dense_parts(value) if isinstance(value, Tensor) else ():
            digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


def _dense_parts(value: Tensor) -> list[Tensor]:
    if not value.is_sparse:
        return [value] if value.layout == torch.strided else []
    value = value.coalesce()
    return [value.indices(), value.values()]
