"""Adversaries to train against: a node injection keeps its place and its features from one epoch to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai import distributed as ranks
from fgai.adversaries import Adversary, AttackResult, Gain, NodeInjection
from fgai.adversaries.injection import InjectionSite
from fgai.calling import call_errors
from fgai.errors import DataError, SettingError
from fgai.reading import Reader
from fgai.settings import SEEDS, check_whole
from fgai.training.data import Batch, BatchSource


def warm_starts_for(adversary: Adversary, graphs: BatchSource, restart_every: int) -> list[WarmStart]:
    """An opponent for each slot of a step, each with its own seed among all ranks; the first has the adversary's."""
    against: Any = adversary
    if not callable(adversary) or not is_dataclass(adversary) or not hasattr(adversary, "seed"):
        raise SettingError(f"adversary={adversary!r}; give an attack such as fgai.NodeInjection(nodes=20, edges=40)")
    first = ranks.rank() * graphs.positions
    seeds = [(against.seed + 104_729 * position) % SEEDS for position in range(first, first + graphs.positions)]
    return [WarmStart(replace(against, seed=seed), restart_every) for seed in seeds]


class WarmStart:
    """Attacks one model again and again while it learns.

    A `NodeInjection` goes on from the features it had, a few steps a round, which is as strong as many steps from a
    new start; after `fresh` rounds it starts anew. It keeps its links while it meets the same graph; in another batch
    it finds new ones, among the nodes whose edges are there: through others no seed is reached. Any other adversary
    starts anew in every round.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> warm_start = WarmStart(NodeInjection(nodes=2, edges=3, steps=1), restart_every=2)
    >>> gain = gains.kl(read(data).detach())
    >>> whole = Batch(data, data.num_nodes)
    >>> links = [warm_start.attack(read, whole, gain).perturbation.added for _ in range(3)]
    >>> torch.equal(links[0], links[1]), torch.equal(links[1], links[2])
    (True, False)
    """

    def __init__(self, adversary: Adversary, restart_every: int) -> None:
        check_whole(1, restart_every=restart_every)
        self._adversary: Any = adversary
        self._fresh = restart_every
        # Not a cache: which graph it met last decides where the next round starts. A restored run forgets it.
        self._met: tuple[Data, InjectionSite] | None = None
        self._rounds, self._x = 0, torch.empty(0)

    def attack(self, read: Reader, part: Batch, gain: Gain) -> AttackResult:
        """The reading under attack, with gradients to the model's parameters."""
        with call_errors(read.model, part.graph):
            return self._met_by(read, part, gain)

    def _met_by(self, read: Reader, part: Batch, gain: Gain) -> AttackResult:
        adversary = replace(
            self._adversary, seed=(self._adversary.seed + 7_919 * (self._rounds // self._fresh)) % SEEDS
        )
        anew, graph = self._rounds % self._fresh == 0, part.graph
        self._rounds += 1
        if not isinstance(adversary, NodeInjection):
            return adversary(read, graph, gain)
        linkable_nodes = part.linkable_nodes
        if self._met is not None and self._met[0] is graph and not anew:
            place = self._met[1]
        else:
            place = replace(adversary, targets=adversary.targets or linkable_nodes).place(graph)
        x = adversary.start(place) if anew else self._going_on((adversary.nodes, place.box.low.numel()))
        self._met = (graph, place) if linkable_nodes is None else None  # a batch does not come again
        self._x = adversary.climb(read, place, x, gain)
        return place.read(read, self._x)

    def state(self) -> dict[str, Tensor]:
        """What a resumed run needs."""
        return {"rounds": torch.tensor(self._rounds), "x": self._x}

    def restore(self, state: Mapping[str, Tensor | None], path: object = "the state") -> None:
        """Go on where `state` was taken; `path` is where it was read."""
        rounds, x = state.get("rounds"), state.get("x")
        told = rounds is not None and rounds.dtype == torch.long and rounds.dim() == 0 and 0 <= int(rounds) < 2**40
        if rounds is None or x is None or not told or not x.is_floating_point():
            raise DataError(f"{path} holds no rounds of an adversary; delete it and train from the start")
        self._rounds, self._x, self._met = int(rounds), x, None

    def _going_on(self, shape: tuple[int, int]) -> Tensor:
        """The features of the last round, if they are of the shape that this adversary has."""
        if self._x.shape != shape:
            raise DataError(
                f"the checkpoint holds features {list(self._x.shape)} of injected nodes, and {list(shape)} are needed; "
                "delete it and train from the start"
            )
        return self._x
