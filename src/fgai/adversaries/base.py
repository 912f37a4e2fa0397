"""What an adversary is: it returns the worst reading inside its budget, for any gain."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.perturbation import AttackResult, Perturbation
from fgai.errors import NotDifferentiableError, NotFiniteError, SettingError
from fgai.reading import Reader, Reading
from fgai.registry import Registry

Gain = Callable[[Reading], Tensor]  # a scalar that the adversary makes large


class Adversary(Protocol):
    """A frozen dataclass with a budget and a seed. It changes neither the model nor the graph."""

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The reading, inside the budget, whose gain is the largest found; never less than doing nothing gains."""
        ...


ADVERSARIES: Registry[Any] = Registry("adversary")
BROKEN = (
    "under attack the gain is not finite: the attack found an input on which the model's answers or its attention "
    "overflow, so that no distance can be measured. The model is broken there, not stable: bound its logits, or attack "
    "it in a smaller box or radius"
)


class Best:
    """The best perturbation offered so far; the first is to do nothing, of which `clean` is the reading."""

    def __init__(self, read: Reader, graph: Data, gain: Gain, clean: Reading | None = None) -> None:
        self._read, self._graph, self.gain = read, graph, gain
        self.perturbation = Perturbation()
        with torch.no_grad():
            self.value = float(gain(clean or read(graph)))
        if not math.isfinite(self.value):
            raise NotFiniteError(
                f"the gain of the clean graph is {self.value}, so no attack can be told from none; check that the "
                "features, the model's weights and its answers are finite"
            )

    def offer(self, perturbation: Perturbation, value: Tensor) -> None:
        """Keep this perturbation if it gains more.

        One whose gain is NaN has broken the model: it is not harmless but the worst there is, and `reading` says so.
        """
        number = float(value.detach())  # once: a GPU is waited for each time
        number = math.inf if math.isnan(number) else number
        if number > self.value:
            self.perturbation, self.value = perturbation, number

    def try_on(self, perturbation: Perturbation) -> None:
        """Read under this perturbation, without gradients, and keep it if it gains more."""
        with torch.no_grad():
            self.offer(perturbation, self.gain(perturbation.read(self._read, self._graph)))

    def reading(self) -> AttackResult:
        """The reading under the best perturbation, with gradients to the model's parameters if they are asked for."""
        if not math.isfinite(self.value):
            raise NotFiniteError(BROKEN)
        return self.perturbation.read(self._read, self._graph)


def gradients(value: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """D value / d input of each; an error that says what to do where the gain has no gradient."""
    if not value.requires_grad:
        raise NotDifferentiableError(
            "this gain has no gradient to climb, it can only judge; use it with fgai.Strongest, which climbs other "
            "gains, or ask for another gain (cross-entropy, kl, margin, attention-divergence, ...)"
        )
    slopes = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
    if not bool(value.isfinite()):
        raise NotFiniteError(BROKEN)
    if not all(bool(slope.isfinite().all()) for slope in slopes):
        raise NotFiniteError(
            "the gain has a gradient that is not finite, so the attack does not know where to go and would find "
            "nothing; look for a square root, a norm or a division at 0 in the model, or climb another gain"
        )
    return slopes


def resolve_targets(targets: tuple[int, ...] | None, nodes: int) -> Tensor:
    """The nodes that an adversary may touch: `targets`, or all; each must be there."""
    if targets is None:
        return torch.arange(nodes)
    whole = isinstance(targets, tuple | list) and all(type(node) is int and abs(node) < 2**62 for node in targets)
    found = torch.tensor(targets if whole else (), dtype=torch.long).unique()
    if len(found) == 0 or int(found.min()) < 0 or int(found.max()) >= nodes:
        raise SettingError(f"targets are {targets}, and the graph has the nodes 0 to {nodes - 1}; name some of those")
    return found
