"""Attacks during training: a node injection keeps its links and its features from one step to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai import distributed
from fgai.adversaries import Adversary, AttackResult, Gain, NodeInjection
from fgai.adversaries.adam import Adam
from fgai.adversaries.injection import InjectionSite
from fgai.calling import call_errors
from fgai.errors import DataError, SettingError
from fgai.items import has_graphs
from fgai.reading import Reader
from fgai.settings import SEEDS, check_whole
from fgai.training.data import Batch, BatchSource


def warm_starts_for(adversary: Adversary, source: BatchSource, restart_every: int) -> list[WarmStart]:
    """Return a `WarmStart` for each position of a step, with seeds that differ among positions and ranks.

    The first one of rank 0 has the adversary's own seed.
    """
    base: Any = adversary
    if not callable(adversary) or not is_dataclass(adversary) or not hasattr(adversary, "seed"):
        raise SettingError(f"adversary={adversary!r}; give an attack such as fgai.NodeInjection(nodes=20, edges=40)")
    first = distributed.rank() * source.positions
    seeds = [(base.seed + 104_729 * position) % SEEDS for position in range(first, first + source.positions)]
    return [WarmStart(replace(base, seed=seed), restart_every) for seed in seeds]


class WarmStart:
    """Attacks a model at each training step, starting from the result of the last step.

    A `NodeInjection` starts from the features of the last round. A few steps a round are then as strong as many steps
    from a new start. After `restart_every` rounds it starts anew. It keeps its links while the graph is the same. In
    another batch it draws new links, to the nodes whose edges are in the batch: through other nodes it cannot reach a
    seed node. In a batch of more or fewer graphs it starts anew. Any other adversary starts anew in each round.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> warm_start = WarmStart(NodeInjection(nodes=2, edges=3, steps=1), restart_every=2)
    >>> gain = gains.kl(read(data).detach())
    >>> batch = Batch(data, data.num_nodes)
    >>> links = [warm_start.attack(read, batch, gain).perturbation.added for _ in range(3)]
    >>> torch.equal(links[0], links[1]), torch.equal(links[1], links[2])
    (True, False)
    """

    def __init__(self, adversary: Adversary, restart_every: int) -> None:
        check_whole(1, restart_every=restart_every)
        self._adversary: Any = adversary
        self._restart_every = restart_every
        # Not a cache: the last graph decides where the next round starts. A resumed run does not have it.
        self._last: tuple[Data, InjectionSite] | None = None
        self._rounds, self._x, self._adam = 0, torch.empty(0), Adam()

    @property
    def _uses_adam(self) -> bool:
        return isinstance(self._adversary, NodeInjection) and self._adversary.adam

    def attack(self, read: Reader, batch: Batch, gain: Gain) -> AttackResult:
        """Return the reading under attack, with gradients to the model's parameters."""
        with call_errors(read.model, batch.graph):
            return self._attack(read, batch, gain)

    def _attack(self, read: Reader, batch: Batch, gain: Gain) -> AttackResult:
        restarts = self._rounds // self._restart_every
        adversary = replace(self._adversary, seed=(self._adversary.seed + 7_919 * restarts) % SEEDS)
        restart, graph = self._rounds % self._restart_every == 0, batch.graph
        self._rounds += 1
        if not isinstance(adversary, NodeInjection):
            return adversary(read, graph, gain)
        linkable_nodes = batch.linkable_nodes
        if self._last is not None and self._last[0] is graph and not restart:
            place = self._last[1]
        else:
            place = replace(adversary, targets=adversary.targets or linkable_nodes).place(graph)
        shape = (place.nodes, place.box.low.numel())
        restart = restart or (has_graphs(graph) and self._x.shape != shape)
        x = adversary.start(place) if restart else self._last_features(shape)
        self._last = (graph, place) if linkable_nodes is None else None  # a sampled batch is not seen again
        self._adam = Adam() if restart else self._adam
        self._x = adversary.climb(read, place, x, gain, adam=self._adam)
        return place.read(read, self._x)

    def state(self) -> dict[str, Tensor]:
        """Return the state that a checkpoint saves."""
        state = {"rounds": torch.tensor(self._rounds), "x": self._x}
        if self._uses_adam:
            adam = self._adam
            state |= {"adam_steps": torch.tensor(adam.steps), "adam_mean": adam.mean, "adam_square": adam.square}
        return state

    def restore(self, state: Mapping[str, Tensor | None], path: object = "the state") -> None:
        """Load a state that was read from `path`."""
        adam = Adam()
        try:
            rounds, x = _count(state.get("rounds")), _floats(state.get("x"))
            if self._uses_adam:
                adam.steps = _count(state.get("adam_steps"))
                adam.mean, adam.square = (_floats(state.get(f"adam_{name}"), x.shape) for name in ("mean", "square"))
        except ValueError:
            raise DataError(
                f"{path} holds no state of a warm-started attack; delete it and train from the start"
            ) from None
        self._rounds, self._x, self._adam, self._last = rounds, x, adam, None

    def _last_features(self, shape: tuple[int, int]) -> Tensor:
        """Return the injected features of the last round, [nodes, features]."""
        if self._x.shape != shape:
            raise DataError(
                f"the checkpoint holds injected features of shape {list(self._x.shape)}, but this run needs "
                f"{list(shape)}; delete it and train from the start"
            )
        return self._x


def _count(value: Tensor | None) -> int:
    """Return the number in a tensor that counts, or raise a `ValueError`."""
    if value is None or value.dtype != torch.long or value.dim() != 0 or not 0 <= int(value) < 2**40:
        raise ValueError(value)
    return int(value)


def _floats(value: Tensor | None, shape: tuple[int, ...] | None = None) -> Tensor:
    """Return the tensor if it holds floats, in this shape or as one number, or raise a `ValueError`."""
    if value is None or not value.is_floating_point() or (shape is not None and value.shape not in ((), shape)):
        raise ValueError(value)
    return value
