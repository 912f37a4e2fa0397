"""The adaptive ensemble: several attacks of one budget, each with several gains and restarts; the worst is reported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, product
from operator import attrgetter

import torch
from torch_geometric.data import Data

from fgai.adversary.base import ADVERSARIES, Best, Gain
from fgai.adversary.gains import GAINS
from fgai.adversary.injection import NodeInjection
from fgai.adversary.perturbation import Attacked
from fgai.errors import NoSlopeError, SettingError
from fgai.reading import Reader
from fgai.settings import SEEDS, check_seed, check_whole


@ADVERSARIES.register("strongest")
@dataclass(frozen=True)
class Strongest:
    """The worst of many node injections, judged by the gain that is asked for.

    Every member injects `nodes` nodes. Members differ in the links per node (`edges`), in the gain that their features
    climb (the one asked for, if it has a gradient, and those in `climbing`), in the pace (steps and their size: many
    small ones, or few large ones), and in `restarts` with other seeds. Each attacks the model at hand through its own
    gradients.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversary import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attack = Strongest(nodes=2, edges=(2, 4), climbing=("kl",), paces=((2, 0.5),), restarts=1)
    >>> attack(read, data, gains.flips(read(data).detach())).graph.num_nodes - data.num_nodes
    2
    """

    nodes: int = 20
    edges: tuple[int, ...] = (20, 40)
    climbing: tuple[str, ...] = ("cross-entropy", "margin", "kl")
    paces: tuple[tuple[int, float], ...] = ((40, 0.1), (10, 0.4))
    restarts: int = 1
    box: tuple[float, float] | None = (-1.0, 1.0)
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_whole(1, restarts=self.restarts)
        if not self.edges or not self.paces or any(name not in GAINS for name in self.climbing):
            raise SettingError(
                f"edges={self.edges}, paces={self.paces}, climbing={self.climbing}; give links per node, paces (steps, "
                f"step), and gains among {', '.join(GAINS)}"
            )
        list(self.members())  # each checks its own settings

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> Attacked:
        """The worst reading found by any member."""
        with torch.no_grad():
            clean = read(graph).detach()
        best, climbing = Best(read, graph, gain, clean), [gain, *(GAINS[name](clean) for name in self.climbing)]
        for _, some in groupby(self.members(), attrgetter("seed", "edges")):  # those that share a place
            members = list(some)
            place = members[0].place(graph)
            for member, climbed in product(members, climbing):
                with suppress(NoSlopeError):  # the gain that is asked for may only judge
                    found = member.search(read, place, Best(read, graph, climbed, clean)).perturbation
                    if found.x is not None:
                        place.offer(read, found.x, best)
        return best.reading()

    def members(self) -> Iterator[NodeInjection]:
        """The attacks that are tried, for every gain that is climbed."""
        for restart, edges, (steps, step) in product(range(self.restarts), self.edges, self.paces):
            yield NodeInjection(self.nodes, edges, steps, step, self.box, seed=(self.seed + 1_000 * restart) % SEEDS)
