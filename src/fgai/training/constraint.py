"""The interface of a constraint on the weights that every step of a training keeps."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from fgai.reading import TrainingReader
from fgai.training.data import Batch


class Constraint(Protocol):
    """Weights that a model may have. The training loop calls these methods on its copy of the model."""

    def start(self, model: nn.Module) -> None:
        """Replace the weights of the given model by weights that are allowed."""
        ...

    def check(self, read: TrainingReader, batch: Batch) -> None:
        """Raise an error, on the first batch, if the constraint does not do for this model what it is for."""
        ...

    def before_step(self, model: nn.Module) -> None:
        """Change the gradients such that a step along them stays inside."""
        ...

    def after_step(self, model: nn.Module) -> None:
        """Move weights that left the allowed set to the nearest ones inside."""
        ...
