"""An ensemble of node injections with one budget: several gains, schedules and restarts; the worst is returned."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, product
from operator import attrgetter

import torch
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Best, Gain
from fgai.adversaries.gains import check_surrogates, objectives
from fgai.adversaries.injection import NodeInjection
from fgai.adversaries.perturbation import AttackResult
from fgai.errors import NotDifferentiableError
from fgai.reading import Reader
from fgai.settings import SEEDS, check_schedules, check_seed, check_sequence, check_whole


@ADVERSARIES.register("attack-ensemble")
@dataclass(frozen=True)
class AttackEnsemble:
    """The worst of many node injections, compared by the gain of the call.

    Each member is a white-box attack: it uses the gradients of the attacked model. The gain of the call may have no
    gradient; the members then maximise only the `surrogates`.

    Args:
        nodes: Injected nodes of each member.
        edges: Numbers of links per injected node to try.
        surrogates: Names of further gains to maximise, beside the gain of the call.
        schedules: Pairs (steps, step size) to try: many small steps, or few large ones.
        restarts: Runs of each combination, with different seeds.
        box: Range of the injected features; None takes the range of each feature from the data.
        seed: Seed of the links and of the random starts.

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
        check_sequence(edges=self.edges)
        check_schedules(schedules=self.schedules)
        check_surrogates(self.surrogates)
        list(self.members())  # each member checks its own settings

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """Return the reading with the largest gain among all members; see `Adversary`."""
        with torch.no_grad():
            clean = read(graph).detach()
        best = Best(read, graph, gain, clean)
        goals = objectives(gain, clean, self.surrogates)
        for _, group in groupby(self.members(), attrgetter("seed", "edges")):  # a group shares one injection site
            members = list(group)
            site = members[0].place(graph)
            for member, (name, objective) in product(members, goals.items()):
                with suppress(NotDifferentiableError):  # the gain of the call may have no gradient
                    x = member.search(read, site, Best(read, graph, objective, clean)).perturbation.x
                    if x is not None:
                        site.offer(read, x, best, f"{name}, {member.edges} links, steps of {member.step:g}")
        return best.reading()

    def members(self) -> Iterator[NodeInjection]:
        """Iterate over the injections; each runs once per objective."""
        for restart, edges, (steps, step) in product(range(self.restarts), self.edges, self.schedules):
            yield NodeInjection(self.nodes, edges, steps, step, self.box, seed=(self.seed + 1_000 * restart) % SEEDS)
