"""What a fit is checked for: the answers of the model that comes in, labels, terms, and the weights that go out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.adversaries.gains import binary_logits
from fgai.calling import Call, call_errors, eval_mode
from fgai.checks import check_finite, check_labels, check_logits, expected_rows
from fgai.errors import CallError, NotFiniteError
from fgai.reading import Reading
from fgai.training.data import MASKS, Batch

REMEDY = "lower the learning rate, scale the features, or give the terms smaller weights"


class BatchChecks:
    """Checks the model once, on the first part, and the labels of every part that comes."""

    def __init__(self, call: Call) -> None:
        self._call, self._classes = call, 0
        self._last: Data | None = None

    def check(self, model: nn.Module, part: Batch) -> None:
        """Before the terms of a part are computed; a graph that comes again is not looked at again."""
        if self._last is part.graph:
            return
        self._last = part.graph
        if not self._classes:
            self._classes = self._columns(model, part)
        y = part.graph.get("y")
        for mask in (part.graph.get(name) for name in MASKS):
            if y is not None and mask is not None:
                check_labels(y[: part.seed_nodes][mask[: part.seed_nodes]], self._classes)

    def _columns(self, model: nn.Module, part: Batch) -> int:
        """How many classes the model answers for."""
        with eval_mode(model), torch.no_grad(), call_errors(model, part.graph):
            logits = self._call(model, part.graph)
        if not isinstance(logits, Tensor):
            raise CallError(f"{type(model).__name__} returned {type(logits).__name__}; pick the logits with call=...")
        check_logits(logits, type(model).__name__, expected_rows(part.graph))
        return binary_logits(Reading(logits, {})).size(1)


def check_terms(terms: Mapping[str, float], epoch: int) -> None:
    """Every term of an epoch is a number.

    >>> check_terms({"label": float("nan")}, epoch=3)
    Traceback (most recent call last):
    fgai.errors.NotFiniteError: in epoch 3 the term label is nan; lower the learning rate, scale the features, or give \
the terms smaller weights
    """
    if wrong := {name: value for name, value in terms.items() if not math.isfinite(value)}:
        named = ", ".join(f"{name} is {value:g}" for name, value in wrong.items())
        raise NotFiniteError(f"in epoch {epoch} the term {named}; {REMEDY}")


def check_weights(weights: Mapping[str, Tensor]) -> None:
    """Every weight that a fit returns is finite."""
    for name, weight in weights.items():
        check_finite(f"the trained weights `{name}`", weight, REMEDY)


def fingerprint(graphs: Iterable[Any], model: nn.Module) -> dict[str, str]:
    """SHA-256 of the data and of the weights that a run starts from: a checkpoint of others is not gone on with."""
    told = hashlib.sha256()
    for graph in graphs:
        _add(told, graph.to_dict() if isinstance(graph, Data) else _facts(graph))
    start = hashlib.sha256()
    _add(start, model.state_dict())
    return {"data_sha256": told.hexdigest(), "start_sha256": start.hexdigest()}


def _facts(source: Any) -> dict[str, Any]:
    """What is known of a store on disk, or of another loader."""
    names = ("num_nodes", "num_edges", "names", "origin")
    return {"kind": type(source).__name__, **{name: getattr(source, name, None) for name in names}}


def _add(digest: Any, values: Mapping[str, Any]) -> None:
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
