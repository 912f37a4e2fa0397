"""Injections that choose their links and objectives: many start, and a selection decides which of them continue."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from itertools import chain, product

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.adam import Adam
from fgai.adversaries.base import ADVERSARIES, Adversary, Best, Gain
from fgai.adversaries.gains import CLASS_PREFIX, binary_logits, check_surrogates, objectives
from fgai.adversaries.injection import InjectionSite, NodeInjection
from fgai.adversaries.perturbation import AttackResult
from fgai.adversaries.rewiring import EdgeRewiring
from fgai.errors import NotDifferentiableError, SettingError
from fgai.graph import require
from fgai.reading import Reader, Reading
from fgai.settings import SEEDS, check_schedules, check_seed, check_sequence, check_whole

ALL_CLASSES = f"{CLASS_PREFIX}*"
ROUND = 0.2  # steps of a round of a selection, as a share of its schedule
LARGE = (64.0, 128.0)  # factors of the features: a model that normalises rows gives the same answers at both
Schedules = tuple[tuple[int, float], ...]


@ADVERSARIES.register("chosen-injection")
@dataclass(frozen=True)
class ChosenInjection:
    """The worst of many node injections that choose their links and objectives, compared by the gain of the call.

    Members differ in the choice of their links, in their number, and in the objective: the gain of the call, if it has
    a gradient, and the surrogates. Each schedule has a selection of its own, in rounds: all members take a fifth of
    its steps, and the best third by the gain of the call continues, until `keep` are left. These run the whole schedule
    once per restart: first from the links and features that they started from, then from new ones. All points are
    compared, so the result is at least as strong as each member that runs a schedule.

    A model that normalises rows, such as `LayerNorm(kind="rows")`, misleads gradients: a step changes the sum of a row,
    and so all of its entries. If a model does not change when its features grow, members of the feature set `unit-sum`
    are added to those of the `box`.

    Args:
        nodes: Injected nodes of each member.
        edges: Numbers of links per injected node to try.
        links: Choices of links to try, names in `LINKS`.
        surrogates: Names of further gains to maximise; `class:*` stands for one gain per class of the model.
        schedules: Pairs (steps, step size) of the members that are left; steps follow the sign of the slope.
        adam: Pairs (steps, step size) of runs whose steps follow Adam, for features that can change a little at a time:
            not for binary rows. An empty tuple leaves Adam out. The best step size depends on the model and the data.
        keep: Members that are left after a selection.
        restarts: Runs of each schedule, with different seeds.
        box: Range of the injected features; None takes the range of each feature from the data.
        features: Set of the injected features, a name in `FEATURES`.
        seed: Seed of the links and of the random starts.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attack = ChosenInjection(2, (4,), ("degree",), ("kl", "class:*"), ((2, 0.5),), (), keep=1)
    >>> attack(read, data, gains.flips(read(data).detach())).graph.num_nodes - data.num_nodes
    2
    """

    nodes: int = 20
    edges: tuple[int, ...] = (40,)
    links: tuple[str, ...] = ("degree", "coverage", "reach")
    surrogates: tuple[str, ...] = ("cross-entropy", "margin", "kl", ALL_CLASSES)
    schedules: Schedules = ((40, 0.1), (10, 0.4), (40, 0.01))
    adam: Schedules = ((50, 1.0), (100, 0.05))
    keep: int = 4
    restarts: int = 1
    box: tuple[float, float] | None = (-1.0, 1.0)
    features: str = "box"
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_whole(1, keep=self.keep, restarts=self.restarts)
        check_sequence(edges=self.edges, links=self.links)
        check_schedules(schedules=self.schedules)
        check_schedules(0, adam=self.adam)
        check_surrogates(self.surrogates, ALL_CLASSES)
        list(self.members())  # each member checks its own settings

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """Return the reading with the largest gain among all members; see `Adversary`."""
        with torch.no_grad():
            clean = read(graph).detach()
        best, sites = Best(read, graph, gain, clean), _Sites(graph, clean)
        goals = objectives(gain, clean, self._surrogates(clean))
        starts = list(product(self._starting(read, sites), goals.items()))
        schedules = chain(product((False,), self.schedules), product((True,), self.adam))
        for adam, (steps, step) in schedules:
            ascents = [
                _Ascent(replace(member, adam=adam), site, objective, best)
                for member, objective in starts
                if (site := sites.of(member)).box.smooth or not adam
            ]
            for ascent, restart in product(self._select(read, ascents, steps, step), range(self.restarts)):
                member = replace(ascent.member, seed=(self.seed + 1_000 * restart) % SEEDS)
                _Ascent(member, sites.of(member), ascent.objective, best).run(read, steps, step)
        return best.reading()

    def members(self) -> Iterator[NodeInjection]:
        """Iterate over the injections; each starts once per objective."""
        for links, edges in product(self.links, self.edges):
            yield NodeInjection(
                self.nodes, edges, box=self.box, seed=self.seed, links=links, features=self.features, steps=0
            )

    def _surrogates(self, clean: Reading) -> list[str]:
        """Return the names of the surrogates, with one for each class in place of `class:*`."""
        classes = [f"{CLASS_PREFIX}{label}" for label in range(binary_logits(clean).size(1))]
        names = [classes if name == ALL_CLASSES else [name] for name in self.surrogates]
        return list(chain.from_iterable(names))

    def _starting(self, read: Reader, sites: _Sites) -> list[NodeInjection]:
        """Return the members, with those of `unit-sum` if the model normalises rows."""
        members = list(self.members())
        if self.features == "box" and _ignores_scale(read, sites.graph):
            added = [replace(member, features="unit-sum") for member in members]
            with suppress(SettingError):  # no row of the box has the sum 1
                for member in added:
                    sites.of(member)
                members += added
        return members

    def _select(self, read: Reader, ascents: list[_Ascent], steps: int, step: float) -> list[_Ascent]:
        """Return the ascents that continue, in their order, so that members of one site follow each other."""
        while len(ascents) > self.keep:
            for ascent in ascents:
                ascent.run(read, math.ceil(ROUND * steps), step)
            left = max(self.keep, math.ceil(len(ascents) / 3))
            ranked = sorted(range(len(ascents)), key=lambda at: -ascents[at].value)[:left]
            ascents = [ascents[at] for at in sorted(ranked)]
        return ascents


def _ignores_scale(read: Reader, graph: Data) -> bool:
    """Return whether the answers are the same for features that are much larger, as if rows were normalised."""
    logits = []
    for factor in LARGE:
        scaled = copy.copy(graph)
        scaled.x = require(graph, "x") * factor
        with torch.no_grad():
            logits.append(read(scaled).logits)
    return torch.allclose(*logits, rtol=1e-3, atol=1e-5)


class _Sites:
    """The injection sites of the members; members with the same links and features share one."""

    def __init__(self, graph: Data, clean: Reading) -> None:
        self.graph, self._clean = graph, clean
        self._made: dict[tuple[str, int, str, int], InjectionSite] = {}

    def of(self, member: NodeInjection) -> InjectionSite:
        """Return the site of a member."""
        key = member.links, member.edges, member.features, member.seed
        if key not in self._made:
            self._made[key] = member.place(self.graph, self._clean)
        return self._made[key]


class _Ascent:
    """The state of one member: its features, and the largest gain of the call that it reached."""

    def __init__(self, member: NodeInjection, site: InjectionSite, objective: tuple[str, Gain], best: Best) -> None:
        self.member, self.site, self.objective, self._best = member, site, objective, best
        self.adam = Adam()
        self.x, self.value, self._gain = member.start(site), -math.inf, torch.tensor(0.0)
        self._found_by = ""

    def run(self, read: Reader, steps: int, step: float) -> None:
        """Take further steps; offer the features of each step to `best`."""
        member = replace(self.member, steps=steps, step=step)
        kind = "Adam" if member.adam else "the sign"
        features = "" if member.features == NodeInjection.features else f" and features {member.features}"
        links = f"{member.edges} links by {member.links}{features}"
        self._found_by = f"{self.objective[0]}, {links}, steps of {step:g} by {kind}"
        try:
            self.x = member.climb(read, self.site, self.x, self._evaluate, lambda x, _: self._offer(x), self.adam)
        except NotDifferentiableError:
            self.value = -math.inf  # the gain of the call may have no gradient
            return
        with torch.no_grad():
            self._evaluate(read(self.site.update(self.x)))
        self._offer(self.x)

    def _evaluate(self, reading: Reading) -> Tensor:
        """Return the objective, and store the gain of the call."""
        with torch.no_grad():
            self._gain = self._best.gain(reading)
        return self.objective[1](reading)

    def _offer(self, x: Tensor) -> None:
        """Offer these features with the stored gain."""
        self.value = max(self.value, float(self._gain))
        self._best.offer(self.site.change(x), self._gain, self._found_by)


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
        for member, (name, objective) in product(self.members, objectives(gain, clean, self.surrogates).items()):
            with suppress(NotDifferentiableError):  # the gain of the call may have no gradient
                result = _with_seed(member, self.seed)(read, graph, objective)
                best.evaluate(result.perturbation, f"{name}, {result.found_by or type(member).__name__}")
        return best.reading()


def _with_seed(member: Adversary, offset: int) -> Adversary:
    """Return the member with `offset` added to its seed."""
    return replace(member, seed=(member.seed + offset) % SEEDS)
