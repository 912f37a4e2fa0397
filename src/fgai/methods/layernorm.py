"""Normalised input: what the released code calls LN, and true layer normalisation."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fgai.cache import TensorCache
from fgai.calling import Call
from fgai.graph import append_rows, segment_sum, split_rows, with_values
from fgai.methods.base import METHODS, Graphs
from fgai.methods.vanilla import Vanilla
from fgai.settings import check_choice
from fgai.training.loop import Fit


class Normalised(nn.Module):
    """A model that sees its features normalised, row by row: divided by their sum, or to mean 0 and deviation 1.

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
        """The model whose inputs this one takes."""
        return self.model

    def forward(self, x: Tensor, *args: Any, **inputs: Any) -> Any:
        """What the model says of the normalised features."""
        return self.model(self.normal(x), *args, **inputs)

    def normal(self, x: Tensor) -> Tensor:
        """The features, normalised; the rows above appended ones are normalised once."""
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
class LayerNorm:
    """Plain training on normalised features: `rows` divides each by its sum (released), `layer` is layer normalisation.

    The result wraps the model: the attacker's gradients go through the normalisation.

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
        _ = self.plain  # it checks its settings

    @property
    def plain(self) -> Vanilla:
        """The training of the model inside."""
        return Vanilla(self.epochs, self.lr, self.weight_decay, self.patience, self.seed)

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model`; the given one is left as it was."""
        return self.plain.fit(Normalised(copy.deepcopy(model), self.kind), data, call=call, checkpoint=checkpoint)
