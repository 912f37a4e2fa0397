"""Injections that choose their links and objectives: many start, a short probe selects those that continue."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from itertools import chain, product

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Adversary, Best, Gain
from fgai.adversaries.gains import CLASS_PREFIX, GAINS, binary_logits, check_surrogates
from fgai.adversaries.injection import InjectionSite, NodeInjection
from fgai.adversaries.perturbation import AttackResult
from fgai.adversaries.rewiring import EdgeRewiring
from fgai.errors import NotDifferentiableError, SettingError
from fgai.reading import Reader, Reading
from fgai.settings import SEEDS, check_schedules, check_seed, check_sequence, check_whole

ALL_CLASSES = f"{CLASS_PREFIX}*"
Sites = dict[tuple[str, int, int], InjectionSite]


@ADVERSARIES.register("chosen-injection")
@dataclass(frozen=True)
class ChosenInjection:
    """The worst of many node injections that choose their links and objectives, compared by the gain of the call.

    Members differ in the choice of their links, in their number, and in the objective: the gain of the call, if it has
    a gradient, and the surrogates. All members take `probe` steps of the largest size. The best third by the gain of
    the call continues, until `keep` are left. These run each schedule from a new start, once per restart. All points
    are compared, so the result is at least as strong as each member that runs its schedules.

    Args:
        nodes: Injected nodes of each member.
        edges: Numbers of links per injected node to try.
        links: Choices of links to try, names in `LINKS`.
        surrogates: Names of further gains to maximise; `class:*` stands for one gain per class of the model.
        schedules: Pairs (steps, step size) of the members that are left.
        probe: Steps of a round of the selection.
        keep: Members that are left after the selection.
        restarts: Runs of each schedule, with different seeds.
        box: Range of the injected features; None takes the range of each feature from the data.
        features: Set of the injected features, a name in `FEATURES`.
        seed: Seed of the links and of the random starts.

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
    surrogates: tuple[str, ...] = ("cross-entropy", "margin", "kl", ALL_CLASSES)
    schedules: tuple[tuple[int, float], ...] = ((40, 0.1), (10, 0.4))
    probe: int = 3
    keep: int = 4
    restarts: int = 1
    box: tuple[float, float] | None = (-1.0, 1.0)
    features: str = "box"
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_whole(1, probe=self.probe, keep=self.keep, restarts=self.restarts)
        check_sequence(edges=self.edges, links=self.links)
        check_schedules(self.schedules)
        check_surrogates(self.surrogates, ALL_CLASSES)
        list(self.members())  # each member checks its own settings

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """Return the reading with the largest gain among all members; see `Adversary`."""
        with torch.no_grad():
            clean = read(graph).detach()
        best, sites = Best(read, graph, gain, clean), {}
        ascents = [
            _Ascent(member, self._site(member, graph, clean, sites), objective, best)
            for member, objective in product(self.members(), [gain, *self._objectives(clean)])
        ]
        for ascent in self._select(read, ascents):
            for restart, (steps, step) in product(range(self.restarts), self.schedules):
                member = replace(ascent.member, seed=(self.seed + 1_000 * restart) % SEEDS)
                site = self._site(member, graph, clean, sites)
                _Ascent(member, site, ascent.objective, best).run(read, steps, step)
        return best.reading()

    def members(self) -> Iterator[NodeInjection]:
        """Iterate over the injections; each starts once per objective."""
        for links, edges in product(self.links, self.edges):
            yield NodeInjection(
                self.nodes, edges, box=self.box, seed=self.seed, links=links, features=self.features, steps=0
            )

    def _objectives(self, clean: Reading) -> list[Gain]:
        """Return the surrogates, with one gain per class for `class:*`."""
        classes = [f"{CLASS_PREFIX}{label}" for label in range(binary_logits(clean).size(1))]
        names = [classes if name == ALL_CLASSES else [name] for name in self.surrogates]
        return [GAINS[name](clean) for name in chain.from_iterable(names)]

    def _select(self, read: Reader, ascents: list[_Ascent]) -> list[_Ascent]:
        """Return the ascents that continue, in their order, so that members of one site follow each other."""
        step = max(step for _, step in self.schedules)
        while len(ascents) > self.keep:
            for ascent in ascents:
                ascent.run(read, self.probe, step)
            left = max(self.keep, math.ceil(len(ascents) / 3))
            ranked = sorted(range(len(ascents)), key=lambda at: -ascents[at].value)[:left]
            ascents = [ascents[at] for at in sorted(ranked)]
        return ascents

    def _site(self, member: NodeInjection, graph: Data, clean: Reading, sites: Sites) -> InjectionSite:
        """Return the injection site of a member; members with the same links share one."""
        key = member.links, member.edges, member.seed
        if key not in sites:
            sites[key] = member.place(graph, clean)
        return sites[key]


class _Ascent:
    """The state of one member: its features, and the largest gain of the call that it reached."""

    def __init__(self, member: NodeInjection, site: InjectionSite, objective: Gain, best: Best) -> None:
        self.member, self.site, self.objective, self._best = member, site, objective, best
        self.x, self.value, self._gain = member.start(site), -math.inf, torch.tensor(0.0)

    def run(self, read: Reader, steps: int, step: float) -> None:
        """Take further steps; offer the features of each step to `best`."""
        member = replace(self.member, steps=steps, step=step)
        try:
            self.x = member.climb(read, self.site, self.x, self._evaluate, lambda x, _: self._offer(x))
        except NotDifferentiableError:
            self.value = -math.inf  # the gain of the call may have no gradient
            return
        with torch.no_grad():
            self._evaluate(self.site.read(read, self.x))
        self._offer(self.x)

    def _evaluate(self, reading: Reading) -> Tensor:
        """Return the objective, and store the gain of the call."""
        with torch.no_grad():
            self._gain = self._best.gain(reading)
        return self.objective(reading)

    def _offer(self, x: Tensor) -> None:
        """Offer these features with the stored gain."""
        self.value = max(self.value, float(self._gain))
        self._best.offer(self.site.change(x), self._gain)


@ADVERSARIES.register("worst-of")
@dataclass(frozen=True)
class WorstOf:
    """The worst of several adversaries, compared by the gain of the call.

    Each member maximises the gain of the call, if it has a gradient, and each of the surrogates.

    Args:
        members: The adversaries.
        surrogates: Names of further gains to maximise.
        seed: Added to the seed of each member.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attack = WorstOf((NodeInjection(1, 2, steps=1), NodeInjection(1, 4, steps=1)), ("kl",))
    >>> attack(read, data, gains.kl(read(data).detach())).graph.num_nodes - data.num_nodes
    1
    """

    members: tuple[Adversary, ...] = (NodeInjection(), EdgeRewiring())
    surrogates: tuple[str, ...] = ("cross-entropy", "margin")
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_surrogates(self.surrogates)
        check_sequence(members=self.members)
        if not all(is_dataclass(m) and callable(m) and hasattr(m, "seed") for m in self.members):
            raise SettingError(f"members={self.members!r}; give adversaries such as fgai.NodeInjection()")

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """Return the reading with the largest gain among all members; see `Adversary`."""
        with torch.no_grad():
            clean = read(graph).detach()
        best = Best(read, graph, gain, clean)
        for member, objective in product(self.members, [gain, *(GAINS[name](clean) for name in self.surrogates)]):
            with suppress(NotDifferentiableError):  # the gain of the call may have no gradient
                best.evaluate(_with_seed(member, self.seed)(read, graph, objective).perturbation)
        return best.reading()


def _with_seed(member: Adversary, offset: int) -> Adversary:
    """Return the member with `offset` added to its seed."""
    return replace(member, seed=(member.seed + offset) % SEEDS)
