"""Fit and score a model on a graph in memory or on disk, as a whole or in batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data, HeteroData

from fgai.calling import Call, call_model
from fgai.checks import one_graph
from fgai.devices import device_of, placed
from fgai.explanations import class_logits
from fgai.graph import require
from fgai.items import refuse_typed
from fgai.large.graph_loader import GraphLoader
from fgai.large.layerwise import layerwise_readings
from fgai.large.loader import Loader, full_neighbour_loader
from fgai.large.store import DiskGraph
from fgai.methods import Batches, Fit
from fgai.metrics import micro_f1
from fgai.modes import eval_mode

BATCH = 1_024  # seed nodes of a batch


def fit_graph(
    method: Any,
    model: nn.Module,
    graph: Data | DiskGraph,
    *,
    batch: int = 0,
    fanout: Sequence[int] = (10, 10),
    checkpoint: str | Path | None = None,
) -> Fit:
    """Fit a model with a method on any graph, on the device of the model.

    Args:
        method: A method of `fgai.methods`.
        model: The model to start from. It is not changed.
        graph: A graph in memory or on disk. A graph on disk is always trained in batches.
        batch: Seed nodes per batch, or graphs per batch of a batch of graphs; 0 trains on all at once.
        fanout: Neighbours sampled at each hop of a batch.
        checkpoint: A file from which a killed run continues.

    Returns:
        The trained copy of the model with its history.

    >>> from fgai import backbones, datasets
    >>> from fgai.methods import Vanilla
    >>> data = datasets.load("synthetic")
    >>> run = fit_graph(Vanilla(epochs=2), backbones.build("gat", data), data, batch=50, fanout=(5, 5))
    >>> len(run.history)
    2
    """
    if batch:
        refuse_typed(graph, "Training in batches", "train on the full graph, with batch=0 and one rank")
    graph = one_graph(graph) if isinstance(graph, HeteroData) else graph
    if isinstance(graph, Data) and not batch:
        return method.fit(model, placed(graph, device_of(model)), checkpoint=checkpoint)
    if isinstance(graph, Batch):
        return method.fit(model, _graph_batches(graph, batch, method.seed), checkpoint=checkpoint)
    validation = full_neighbour_loader(graph, len(fanout), seed_nodes=_attribute(graph, "val_mask"))
    # A method that refines a trained model compares all nodes with it; the others need labels.
    seed_nodes = None if getattr(method, "needs_pretrained", False) else _attribute(graph, "train_mask")
    loader = Loader(graph, fanout, batch=batch or BATCH, seed_nodes=seed_nodes, seed=method.seed)
    return method.fit(model, Batches(loader, validation), checkpoint=checkpoint)


def _graph_batches(graph: Any, size: int, seed: int) -> Batches:
    """Batches of the graphs to train on, shuffled, and of those for validation."""
    train, validation = (require(graph, name) for name in ("train_mask", "val_mask"))
    loader = GraphLoader(graph, batch=size, graphs=train, seed=seed)
    return Batches(loader, GraphLoader(graph, batch=max(size, BATCH), graphs=validation, shuffle=False))


def f1_on_test(model: nn.Module, graph: Data | DiskGraph, *, call: Call | None = None) -> float:
    """Micro-F1 on the nodes, pairs or graphs of `test_mask`; NaN if the graph has no `y` or no `test_mask`.

    The model is read in evaluation mode. A single logit above 0 predicts the class 1. A graph on disk is read layer
    by layer.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> 0.0 <= f1_on_test(backbones.build("gat", data).eval(), data) <= 1.0
    True
    """
    names = graph.names if isinstance(graph, DiskGraph) else graph
    if "y" not in names or "test_mask" not in names:
        return math.nan
    y, test = _attribute(graph, "y"), _attribute(graph, "test_mask")
    if isinstance(graph, Data):
        with eval_mode(model), torch.no_grad():
            logits = class_logits(call_model(model, placed(graph, device_of(model)), call))
        y, test = y.to(logits.device), test.to(logits.device)
        return micro_f1(logits[test], y[test])
    correct = 0
    for part in layerwise_readings(model, graph, call=call):
        nodes = part.nodes.cpu()
        correct += int(((class_logits(part.reading.logits).argmax(-1).cpu() == y[nodes]) & test[nodes]).sum())
    return correct / max(int(test.sum()), 1)


def dataset_name(graph: Data | DiskGraph, name: str, seed: int) -> str:
    """The dataset of a graph: a store keeps the name of the dataset it was converted from, if the split is the same."""
    origin = graph.origin if isinstance(graph, DiskGraph) else {}
    return str(origin.get("data", name)) if origin.get("seed") == seed else name


def _attribute(graph: Data | DiskGraph, name: str) -> Tensor:
    return graph.attribute(name) if isinstance(graph, DiskGraph) else require(graph, name)
