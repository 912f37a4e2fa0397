"""The attacker who chooses: many injections start, a short probe says which of them climb to the end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Adversary, Best, Gain
from fgai.adversaries.gains import AIMED, GAINS, binary_logits
from fgai.adversaries.injection import InjectionSite, NodeInjection
from fgai.adversaries.perturbation import AttackResult
from fgai.errors import NotDifferentiableError, SettingError
from fgai.reading import Reader, Reading

EVERY_CLASS = "class:*"
Places = dict[tuple[str, int, int], InjectionSite]


@ADVERSARIES.register("chosen-injection")
@dataclass(frozen=True)
class ChosenInjection:
    """The worst of many node injections that choose their links and what they aim at, judged by the gain asked for.

    Members differ in how their `links` are chosen, in their number (`edges`), and in the gain that their features climb
    (the one asked for, if it has a gradient, and the `surrogates`; `class:*` stands for one gain per class). All climb
    `probe` steps of the largest size; the best third by the judging gain goes on, until `keep` are left. These climb
    every one of the `schedules` (steps and their size) from a new start, and again in each of `restarts`. Every point
    on the way is judged, so the ensemble is at least as strong as each member that climbs to the end.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attack = ChosenInjection(2, (4,), ("degree",), ("kl", "class:*"), ((2, 0.5),), probe=1, keep=1)
    >>> attack(read, data, gains.flips(read(data).detach())).graph.num_nodes - data.num_nodes
    2
    """

    nodes: int = 20
    edges: tuple[int, ...] = (40,)
    links: tuple[str, ...] = ("random", "degree", "coverage")
    surrogates: tuple[str, ...] = ("cross-entropy", "margin", "kl", EVERY_CLASS)
    schedules: tuple[tuple[int, float], ...] = ((40, 0.1), (10, 0.4))
    probe: int = 3
    keep: int = 4
    restarts: int = 1
    box: tuple[float, float] | None = (-1.0, 1.0)
    features: str = "box"
    seed: int = 0

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The worst reading found by any member."""
        if min(self.probe, self.keep, self.restarts, *(steps for steps, _ in self.schedules)) < 1:
            raise SettingError(f"{self}; probe, keep, restarts and the steps of a schedule are at least one")
        with torch.no_grad():
            clean = read(graph).detach()
        best, places = Best(read, graph, gain, clean), {}
        climbs = [
            _Climb(member, self._place(member, graph, clean, places), climbed, best)
            for member, climbed in product(self.members(), [gain, *self._surrogates(clean)])
        ]
        for climb in self._survivors(read, climbs):
            for restart, (steps, step) in product(range(self.restarts), self.schedules):
                member = replace(climb.member, seed=self.seed + 1_000 * restart)
                place = self._place(member, graph, clean, places)
                _Climb(member, place, climb.gain, best).go(read, steps, step)
        return best.reading()

    def members(self) -> Iterator[NodeInjection]:
        """The injections that start, for every gain that is climbed."""
        for links, edges in product(self.links, self.edges):
            yield NodeInjection(
                self.nodes, edges, box=self.box, seed=self.seed, links=links, features=self.features, steps=0
            )

    def _surrogates(self, clean: Reading) -> list[Gain]:
        classes = range(binary_logits(clean).size(1))
        names = [
            name
            for wanted in self.surrogates
            for name in ([f"{AIMED}{label}" for label in classes] if wanted == EVERY_CLASS else [wanted])
        ]
        return [GAINS[name](clean) for name in names]

    def _survivors(self, read: Reader, climbs: list[_Climb]) -> list[_Climb]:
        """Those that climb to the end; they stay in order, so that members of one place follow each other."""
        step = max(step for _, step in self.schedules)
        while len(climbs) > self.keep:
            for climb in climbs:
                climb.go(read, self.probe, step)
            left = max(self.keep, math.ceil(len(climbs) / 3))
            ranked = sorted(range(len(climbs)), key=lambda at: -climbs[at].value)[:left]
            climbs = [climbs[at] for at in sorted(ranked)]
        return climbs

    def _place(self, member: NodeInjection, graph: Data, clean: Reading, places: Places) -> InjectionSite:
        key = member.links, member.edges, member.seed
        if key not in places:
            places[key] = member.place(graph, clean)
        return places[key]


class _Climb:
    """One member on its way: where it is, and the most that the judging gain gave it."""

    def __init__(self, member: NodeInjection, place: InjectionSite, gain: Gain, best: Best) -> None:
        self.member, self.place, self.gain, self._best = member, place, gain, best
        self.x, self.value, self._judged = member.start(place), -math.inf, torch.tensor(0.0)

    def go(self, read: Reader, steps: int, step: float) -> None:
        """Climb on; every point that is passed is offered to the judge."""
        surrogates = replace(self.member, steps=steps, step=step)
        try:
            self.x = surrogates.climb(read, self.place, self.x, self._watched, lambda x, _: self._offer(x))
        except NotDifferentiableError:
            self.value = -math.inf  # it can only judge
            return
        with torch.no_grad():
            self._watched(self.place.read(read, self.x))
        self._offer(self.x)

    def _watched(self, reading: Reading) -> Tensor:
        with torch.no_grad():
            self._judged = self._best.gain(reading)
        return self.gain(reading)

    def _offer(self, x: Tensor) -> None:
        self.value = max(self.value, float(self._judged))
        self._best.offer(self.place.change(x), self._judged)


@ADVERSARIES.register("worst-of")
@dataclass(frozen=True)
class WorstOf:
    """The worst of several adversaries, each climbing the gain asked for, if it can, and the `surrogates`.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attack = WorstOf((NodeInjection(1, 2, steps=1), NodeInjection(1, 4, steps=1)), ("kl",))
    >>> attack(read, data, gains.kl(read(data).detach())).graph.num_nodes - data.num_nodes
    1
    """

    members: tuple[Adversary, ...] = ()
    surrogates: tuple[str, ...] = ("cross-entropy", "margin")
    seed: int = 0

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The worst reading found by any member."""
        if not self.members:
            raise SettingError("no members were given, so nobody attacks; give some adversaries")
        with torch.no_grad():
            clean = read(graph).detach()
        best = Best(read, graph, gain, clean)
        for member, climbed in product(self.members, [gain, *(GAINS[name](clean) for name in self.surrogates)]):
            with suppress(NotDifferentiableError):  # the gain that is asked for may only judge
                best.try_on(_seeded(member, self.seed)(read, graph, climbed).perturbation)
        return best.reading()


def _seeded(member: Adversary, seed: int) -> Adversary:
    """The member with its own seed moved on by `seed`."""
    settings = vars(member)
    return replace(member, seed=settings["seed"] + seed)  # pyright: ignore[reportCallIssue, reportArgumentType]
