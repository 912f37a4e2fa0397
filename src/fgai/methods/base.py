"""What a method is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch_geometric.data import Data

from fgai.calling import Call
from fgai.registry import Registry
from fgai.training.data import Batches
from fgai.training.loop import Fit

Graphs = Data | Iterable[Data] | Batches  # a graph, a PyG loader, or `Batches`


class Method(Protocol):
    """A frozen dataclass of settings; the given model is never changed, a trained copy is returned.

    `data` is a graph, a PyG loader that yields batches, or `Batches`, loaders to learn from and to be judged by. With
    `checkpoint`, a file, a run that was killed goes on where it was.
    """

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model` on `data`."""
        ...


METHODS: Registry[Any] = Registry("method")
