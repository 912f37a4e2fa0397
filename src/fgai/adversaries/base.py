"""The adversary protocol, and what all adversaries share: the best perturbation so far, gradients and targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import Field, is_dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.perturbation import AttackResult, Perturbation
from fgai.checks import describe_tensor
from fgai.errors import DataError, NotDifferentiableError, NotFiniteError, SettingError
from fgai.graph import require
from fgai.reading import Reader, Reading
from fgai.registry import Registry

Gain = Callable[[Reading], Tensor]  # a scalar that the adversary maximises


class Adversary(Protocol):
    """A frozen dataclass that holds a budget and a seed, and attacks a model when it is called.

    Audits and training copy an adversary with another seed, `dataclasses.replace(adversary, seed=...)`, and record its
    settings with `dataclasses.asdict`. An adversary changes neither the model nor the graph.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def seed(self) -> int:
        """Seed of all random choices of the attack."""
        ...

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """Attack a model.

        Args:
            read: Reader of the model, in evaluation mode.
            graph: The clean graph.
            gain: The scalar to maximise.

        Returns:
            The reading with the largest gain that the search evaluated inside the budget. Its gain is at least that of
            the clean graph.
        """
        ...


def check_adversary(value: Any) -> None:
    """Raise unless the value is an adversary.

    >>> check_adversary("strongest")
    Traceback (most recent call last):
    fgai.errors.SettingError: 'strongest' is not an adversary; give one such as fgai.NodeInjection()
    """
    if isinstance(value, type) or not is_dataclass(value) or not callable(value) or not hasattr(value, "seed"):
        raise SettingError(f"{value!r:.60} is not an adversary; give one such as fgai.NodeInjection()")


ADVERSARIES: Registry[Any] = Registry("adversary")
OVERFLOW = (
    "under attack the gain is not finite: the attack reached an input on which the logits or the attention "
    "overflow, so no distance can be measured. The model is broken there, not stable: bound its logits, or attack it "
    "with a smaller box or radius"
)


class Best:
    """The perturbation with the largest gain so far; initially the empty one, whose reading is `clean`."""

    def __init__(self, read: Reader, graph: Data, gain: Gain, clean: Reading | None = None) -> None:
        self._read, self._graph, self.gain = read, graph, gain
        self.perturbation, self.found_by = Perturbation(), ""
        with torch.no_grad():
            self.value = float(gain(clean or read(graph)))
        if not math.isfinite(self.value):
            raise NotFiniteError(
                f"the gain of the clean graph is {self.value}, so no attack can be compared with it; check that the "
                "features, the weights of the model and its logits are finite"
            )

    def offer(self, perturbation: Perturbation, value: Tensor, found_by: str = "") -> None:
        """Store this perturbation, with the member that found it, if its gain is larger.

        A gain of NaN means that the perturbation breaks the model. It counts as infinite, and `reading` raises.
        """
        number = float(value.detach())  # once: each conversion synchronises with the GPU
        number = math.inf if math.isnan(number) else number
        if number > self.value:
            self.perturbation, self.value, self.found_by = perturbation, number, found_by

    def evaluate(self, perturbation: Perturbation, found_by: str = "") -> None:
        """Read the model under this perturbation, without gradients, and store it if its gain is larger."""
        with torch.no_grad():
            self.offer(perturbation, self.gain(perturbation.read(self._read, self._graph)), found_by)

    def reading(self) -> AttackResult:
        """Return the reading under the best perturbation, with gradients to parameters that require them."""
        if not math.isfinite(self.value):
            raise NotFiniteError(OVERFLOW)
        return replace(self.perturbation.read(self._read, self._graph), found_by=self.found_by)


def require_gradient(value: Tensor) -> None:
    """Raise unless the gain is differentiable."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        mode = "torch.inference_mode()" if torch.is_inference_mode_enabled() else "torch.no_grad()"
        raise NotDifferentiableError(f"a gradient attack needs gradients, and {mode} is on; call it outside that block")
    if not value.requires_grad:
        raise NotDifferentiableError(
            "this gain has no gradient, so a gradient attack cannot maximise it. If the model computes under "
            "torch.no_grad() or detaches its logits, remove that from `forward`. Otherwise use the gain with "
            "fgai.AttackEnsemble, which maximises other gains and compares the results by this one, or choose another "
            "gain (cross-entropy, kl, margin, attention-divergence, ...)"
        )


def gradients(value: Tensor, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Return d value / d input for each input; raise if the gain is not differentiable or a number is not finite."""
    require_gradient(value)
    slopes = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
    if not bool(value.isfinite()):
        raise NotFiniteError(OVERFLOW)
    if not all(bool(slope.isfinite().all()) for slope in slopes):
        raise NotFiniteError(
            "the gain has a gradient that is not finite, so the attack has no direction; check the model for a square "
            "root, a norm or a division at 0, or choose another gain"
        )
    return slopes


def check_features(graph: Data) -> None:
    """Raise `DataError` unless the graph has a row of features, floats, for each node: attacks and proofs change them.

    >>> check_features(Data(x=torch.arange(3)))
    Traceback (most recent call last):
    fgai.errors.DataError: `x` is torch.int64 [3], and attacks and proofs need floats [N, F]; give embedded features
    """
    x = require(graph, "x")
    if x.dim() != 2 or not x.is_floating_point():
        raise DataError(
            f"`x` is {describe_tensor(x)}, and attacks and proofs need floats [N, F]; give embedded features"
        )


def resolve_targets(targets: tuple[int, ...] | None, nodes: int) -> Tensor:
    """Return the ids of the nodes that an adversary may change: `targets`, or all; raise if one does not exist."""
    if targets is None:
        return torch.arange(nodes)
    valid = isinstance(targets, tuple | list) and all(type(node) is int and abs(node) < 2**62 for node in targets)
    ids = torch.tensor(targets if valid else (), dtype=torch.long).unique()
    if len(ids) == 0 or int(ids.min()) < 0 or int(ids.max()) >= nodes:
        raise SettingError(
            f"targets={targets}, but the graph has the nodes 0 to {nodes - 1}; give at least one of these nodes"
        )
    return ids
