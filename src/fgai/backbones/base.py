"""What a backbone is: a model of a given width for a given number of features and classes."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.errors import DataError
from fgai.graph import require, with_values
from fgai.kernels import fast_dropout
from fgai.registry import Registry
from fgai.seeding import seeded


class Backbone(Protocol):
    """A model class, and what it needs of a graph beyond `x` and `edge_index`; `of_pairs` if it answers for pairs."""

    def __call__(self, features: int, classes: int) -> nn.Module:
        """A new model."""
        ...

    def prepare(self, data: Data) -> Data:
        """The graph with whatever else `forward` takes (positional encodings)."""
        ...


BACKBONES: Registry[Any] = Registry("backbone")


def build(name: str, data: Data, *, seed: int = 0) -> nn.Module:
    """A new model for this graph's features and classes, initialised by `seed`.

    >>> import torch
    >>> data = Data(x=torch.ones(3, 5), y=torch.tensor([0, 1, 2]))
    >>> build("gat", data).conv2.out_channels
    3
    """
    shape = shape_for(data)
    kinds = {True: "pairs of nodes", False: "nodes"}
    answers, labelled = getattr(BACKBONES[name], "of_pairs", False), "edge_label_index" in data
    if answers != labelled:
        raise DataError(
            f"{name} answers for {kinds[answers]}, and the labels of this graph are of {kinds[labelled]}; "
            "take a backbone and a dataset that both, or neither, end in -links"
        )
    with seeded(seed):
        return BACKBONES[name](**shape)


MOST_CLASSES = 100_000  # more is a mistake: node ids or amounts taken for classes


def shape_for(data: Data) -> dict[str, int]:
    """How many features and classes a model of this graph has."""
    x, y = require(data, "x"), require(data, "y")
    whole = y.numel() > 0 and not y.is_meta and bool((y == y.round() if y.is_floating_point() else y == y).all())
    if x.dim() != 2 or not whole or not 0 <= int(y.max()) < MOST_CLASSES:
        raise DataError(
            f"`x` has the shape {list(x.shape)} and `y` {list(y.shape)}; a backbone needs features [N, F] and a class "
            f"from 0 to {MOST_CLASSES - 1} for every node or pair"
        )
    return {"features": x.size(1), "classes": int(y.max()) + 1}


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout of features; of a sparse matrix on its stored entries, which is the same: zeros stay zeros."""
    if not training or not x.is_sparse:
        return fast_dropout(x, p, training)
    x = x.coalesce()
    return with_values(x, fast_dropout(x.values(), p))
