"""Normalised features: the row normalisation that the released code calls LN, and layer normalisation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fgai.cache import TensorCache
from fgai.calling import Call
from fgai.copying import copy_model
from fgai.graph import segment_sum
from fgai.methods.base import METHODS, Graphs, Method
from fgai.methods.vanilla import Vanilla
from fgai.rows import append_rows, split_rows, with_values
from fgai.settings import check_choice
from fgai.training.loop import Fit


class Normalised(nn.Module):
    """A model on normalised features: each row divided by its sum (`rows`), or with mean 0 and deviation 1 (`layer`).

    The rows of a typed graph are normalised over the features of their own type.

    >>> Normalised(nn.Identity(), "rows").normal(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    tensor([[0.2500, 0.7500],
            [0.0000, 0.0000]])
    """

    def __init__(self, model: nn.Module, kind: str) -> None:
        super().__init__()
        self.model, self.kind = model, kind
        self._cache = TensorCache(size=4)

    @property
    def __wrapped__(self) -> nn.Module:
        """The inner model, whose signature decides the arguments."""
        return self.model

    def forward(self, *args: Any, **inputs: Any) -> Any:
        """Return the output of the model on normalised features: `x`, `x_dict`, or those of the first argument."""
        named = {name: self._normalised(inputs[name]) for name in ("x", "x_dict") if name in inputs}
        if args and not named:
            args = (self._normalised(args[0]), *args[1:])
        return self.model(*args, **{**inputs, **named})

    def _normalised(self, value: Any) -> Any:
        """Return features, features by type, or a graph, with normalised rows."""
        if isinstance(value, Tensor):
            return self.normal(value)
        if isinstance(value, Mapping):
            return {name: self.normal(x) for name, x in value.items()}
        graph = copy.copy(value)
        for store in graph.node_stores:
            store["x"] = self.normal(store["x"])
        return graph

    def normal(self, x: Tensor) -> Tensor:
        """Return the normalised features; the rows before appended ones are cached."""
        if (parts := split_rows(x)) is not None:
            above = self._cache.get("normal", [parts[0]], lambda: self.normal(parts[0]))
            return append_rows(above, self.normal(parts[1]))
        if self.kind == "layer":
            return nn.functional.layer_norm(x.to_dense() if x.is_sparse else x, x.shape[1:])
        if x.is_sparse:
            x = x.coalesce()
            row = x.indices()[0]
            return with_values(x, x.values() * _inverse(segment_sum(x.values(), row, x.size(0)))[row])
        return x * _inverse(x.sum(1))[:, None]


def _inverse(total: Tensor) -> Tensor:
    return torch.where(total == 0, 0.0, 1 / torch.where(total == 0, 1.0, total))


@METHODS.register("ln")
@dataclass(frozen=True)
class LayerNorm(Method):
    """Plain training on normalised features.

    The trained model includes the normalisation, so the gradients of an attack go through it.

    Args:
        kind: `rows` divides each row by its sum, as the released code does; `layer` is layer normalisation.
        epochs: The largest number of epochs.
        lr: Learning rate of Adam.
        weight_decay: Weight decay of Adam.
        patience: Training stops after so many epochs without a better validation score.
        seed: Random seed of dropout.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> type(LayerNorm("layer", epochs=2).fit(backbones.build("gat", data), data).model).__name__
    'Normalised'
    """

    kind: Literal["rows", "layer"] = "rows"
    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 5e-4
    patience: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(("rows", "layer"), kind=self.kind)
        _ = self.vanilla  # checks its settings

    @property
    def vanilla(self) -> Vanilla:
        """The training of the wrapped model."""
        return Vanilla(self.epochs, self.lr, self.weight_decay, self.patience, self.seed)

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a wrapped copy of `model`; see `Method.fit`."""
        return self.vanilla.fit(Normalised(copy_model(model), self.kind), data, call=call, checkpoint=checkpoint)
