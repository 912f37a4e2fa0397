"""What a method is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch_geometric.data import Data

from fgai.methods.training import Fit
from fgai.reading import Call
from fgai.registry import Registry


class Method(Protocol):
    """A frozen dataclass of settings; the given model is never changed, the result has its class and keys.

    With `checkpoint`, a file, a run that was killed goes on where it was.
    """

    def fit(
        self, model: nn.Module, data: Data, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model` on `data`."""
        ...


METHODS: Registry[Any] = Registry("method")
