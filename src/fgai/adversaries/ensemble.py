"""The adaptive ensemble: several attacks of one budget, each with several gains and restarts; the worst is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, product
from operator import attrgetter

import torch
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Best, Gain
from fgai.adversaries.gains import GAINS
from fgai.adversaries.injection import NodeInjection
from fgai.adversaries.perturbation import AttackResult
from fgai.errors import NotDifferentiableError, SettingError
from fgai.reading import Reader
from fgai.settings import SEEDS, check_seed, check_whole


@ADVERSARIES.register("strongest")
@dataclass(frozen=True)
class AttackEnsemble:
    """The worst of many node injections, judged by the gain that is asked for.

    Every member injects `nodes` nodes. Members differ in the links per node (`edges`), in the gain that their features
    climb (the one asked for, if it has a gradient, and those in `climbing`), in the pace (steps and their size: many
    small ones, or few large ones), and in `restarts` with other seeds. Each attacks the model at hand through its own
    gradients.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attack = AttackEnsemble(nodes=2, edges=(2, 4), surrogates=("kl",), schedules=((2, 0.5),), restarts=1)
    >>> attack(read, data, gains.flips(read(data).detach())).graph.num_nodes - data.num_nodes
    2
    """

    nodes: int = 20
    edges: tuple[int, ...] = (20, 40)
    surrogates: tuple[str, ...] = ("cross-entropy", "margin", "kl")
    schedules: tuple[tuple[int, float], ...] = ((40, 0.1), (10, 0.4))
    restarts: int = 1
    box: tuple[float, float] | None = (-1.0, 1.0)
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_whole(1, restarts=self.restarts)
        if not self.edges or not self.schedules or any(name not in GAINS for name in self.surrogates):
            raise SettingError(
                f"edges={self.edges}, schedules={self.schedules}, surrogates={self.surrogates}; give links per node, "
                f"schedules (steps, step size), and gains among {', '.join(GAINS)}"
            )
        list(self.members())  # each checks its own settings

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The worst reading found by any member."""
        with torch.no_grad():
            clean = read(graph).detach()
        best, surrogates = Best(read, graph, gain, clean), [gain, *(GAINS[name](clean) for name in self.surrogates)]
        for _, some in groupby(self.members(), attrgetter("seed", "edges")):  # those that share a place
            members = list(some)
            place = members[0].place(graph)
            for member, climbed in product(members, surrogates):
                with suppress(NotDifferentiableError):  # the gain that is asked for may only judge
                    found = member.search(read, place, Best(read, graph, climbed, clean)).perturbation
                    if found.x is not None:
                        place.offer(read, found.x, best)
        return best.reading()

    def members(self) -> Iterator[NodeInjection]:
        """The attacks that are tried, for every gain that is climbed."""
        for restart, edges, (steps, step) in product(range(self.restarts), self.edges, self.schedules):
            yield NodeInjection(self.nodes, edges, steps, step, self.box, seed=(self.seed + 1_000 * restart) % SEEDS)
