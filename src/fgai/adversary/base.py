"""What an adversary is: it returns the worst reading inside its budget, for any gain."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversary.perturbation import Attacked, Perturbation
from fgai.reading import Reader, Reading
from fgai.registry import Registry

Gain = Callable[[Reading], Tensor]  # a scalar that the adversary makes large


class Adversary(Protocol):
    """A frozen dataclass with a budget and a seed. It changes neither the model nor the graph."""

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> Attacked:
        """The reading, inside the budget, whose gain is the largest found; never less than doing nothing gains."""
        ...


ADVERSARIES: Registry[Any] = Registry("adversary")


class Best:
    """The best perturbation offered so far; the first is to do nothing."""

    def __init__(self, read: Reader, graph: Data, gain: Gain) -> None:
        self._read, self._graph, self._gain = read, graph, gain
        self.perturbation = Perturbation()
        with torch.no_grad():
            self.value = _number(gain(read(graph)))

    def offer(self, perturbation: Perturbation, value: Tensor) -> None:
        """Keep this perturbation if it gains more."""
        if _number(value) > self.value:
            self.perturbation, self.value = perturbation, _number(value)

    def try_on(self, perturbation: Perturbation) -> None:
        """Read under this perturbation, without gradients, and keep it if it gains more."""
        with torch.no_grad():
            self.offer(perturbation, self._gain(perturbation.read(self._read, self._graph)))

    def reading(self) -> Attacked:
        """The reading under the best perturbation, with gradients to the model's parameters if they are asked for."""
        return self.perturbation.read(self._read, self._graph)


def _number(value: Tensor) -> float:
    number = float(value.detach())
    return -math.inf if math.isnan(number) else number
