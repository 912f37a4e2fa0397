"""The interface of a backbone, and the registry of backbones."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.errors import DataError
from fgai.graph import require
from fgai.items import items_of, refuse_typed
from fgai.kernels import fast_dropout
from fgai.registry import Registry
from fgai.rows import with_values
from fgai.seeding import seeded


class Backbone(Protocol):
    """A model class with a `prepare` method; its attribute `items` is `pairs` or `graphs` if it answers for those."""

    def __call__(self, features: int, classes: int) -> nn.Module:
        """Return a new model."""
        ...

    def prepare(self, data: Data) -> Data:
        """Return the graph with the other inputs of `forward`, such as positional encodings."""
        ...


BACKBONES: Registry[Any] = Registry("backbone")


def build(name: str, data: Data, *, seed: int = 0) -> nn.Module:
    """Return a new model for the features and classes of a graph.

    Args:
        name: One of `BACKBONES`.
        data: The graph.
        seed: Random seed of the initialisation.

    Raises:
        DataError: If the backbone answers for other items (nodes, pairs or graphs) than the graph has labels of.

    >>> import torch
    >>> data = Data(x=torch.ones(3, 5), y=torch.tensor([0, 1, 2]))
    >>> build("gat", data).conv2.out_channels
    3
    """
    refuse_typed(data, f"Backbone {name}")
    shape = shape_for(data)
    predicted, labelled = getattr(BACKBONES[name], "items", "nodes"), items_of(data).kind
    if predicted != labelled:
        endings = {"nodes": "gat", "pairs": "gat-links", "graphs": "gat-graphs"}
        raise DataError(
            f"{name} predicts labels of {predicted}, but this graph has labels of {labelled}; use a backbone for "
            f"{labelled}, such as {endings[labelled]}"
        )
    with seeded(seed):
        return BACKBONES[name](**shape)


MAX_CLASSES = 100_000  # a larger label is a mistake: a node id or an amount


def shape_for(data: Data) -> dict[str, int]:
    """Return the numbers of `features` and `classes` of a graph, the arguments of a backbone."""
    x, y = require(data, "x"), require(data, "y")
    integer = y.numel() > 0 and not y.is_meta and (not y.is_floating_point() or bool((y == y.round()).all()))
    if x.dim() != 2 or not integer or not 0 <= int(y.max()) < MAX_CLASSES:
        raise DataError(
            f"`x` has the shape {list(x.shape)} and `y` {list(y.shape)}; a backbone needs features [N, F] and a class "
            f"from 0 to {MAX_CLASSES - 1} for each node, pair or graph"
        )
    return {"features": x.size(1), "classes": int(y.max()) + 1}


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Apply dropout to features; of a sparse matrix only to the stored entries, since zeros stay zeros."""
    if not training or not x.is_sparse:
        return fast_dropout(x, p, training)
    x = x.coalesce()
    return with_values(x, fast_dropout(x.values(), p))
