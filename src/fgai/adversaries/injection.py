"""Node injection: a few new nodes, linked to the graph, with features that climb the gain."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Best, Gain, gradients, resolve_targets
from fgai.adversaries.perturbation import AttackResult, Perturbation, undirected
from fgai.calling import frozen_params
from fgai.errors import SettingError
from fgai.graph import add_nodes, replace_rows, require
from fgai.reading import Reader
from fgai.settings import SEEDS, check_box, check_positive, check_seed, check_whole


@dataclass(frozen=True)
class FeatureBox:
    """The features that an injected node may have, each between its own `low` and `high`."""

    low: Tensor  # [F]
    high: Tensor  # [F]

    @property
    def half(self) -> Tensor:
        """Half the width, per feature: the unit of a step."""
        return (self.high - self.low) / 2

    def clamp(self, x: Tensor) -> Tensor:
        """The nearest point inside."""
        return torch.minimum(torch.maximum(x, self.low), self.high)


@dataclass(frozen=True)
class InjectionSite:
    """Where nodes are injected: their links are made once, so that the order of the edges is found once."""

    links: Tensor  # [2, 2 nodes edges]
    augmented: Data
    box: FeatureBox

    def graph(self, x: Tensor) -> Data:
        """The graph in which the injected nodes have these features."""
        now = copy.copy(self.augmented)
        now.x = replace_rows(require(self.augmented, "x"), x)
        return now

    def change(self, x: Tensor) -> Perturbation:
        """What was done to the old graph."""
        return Perturbation(x, self.links)

    def read(self, read: Reader, x: Tensor) -> AttackResult:
        """What a model says of it."""
        graph = self.graph(x)
        reading = read(graph)
        return AttackResult(reading.logits, reading.attention, self.change(x), graph, unread=reading.unread)

    def offer(self, read: Reader, x: Tensor, best: Best) -> None:
        """Let `best` judge these features."""
        with torch.no_grad():
            best.offer(self.change(x), best.gain(self.read(read, x)))


OnStep = Callable[[Tensor, Tensor], None]


@ADVERSARIES.register("node-injection")
@dataclass(frozen=True)
class NodeInjection:
    """`nodes` new nodes with `edges` links each; their features by projected gradient ascent inside a box.

    x <- clamp(x + step * half-width * sign(d gain / d x)), `steps` times from a random start. The paper's budget is
    20 nodes of 20 edges, features in [-1, 1], 10 steps of 0.1; the strong one has 40 edges. `box=None` takes each
    feature's own range from the data; `steps=0` leaves the features random, which is the floor. Links go to different
    nodes, random ones or those in `targets`, and count in both directions.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attacked = NodeInjection(nodes=2, edges=3, steps=1)(read, data, gains.kl(read(data).detach()))
    >>> attacked.graph.num_nodes - data.num_nodes, attacked.graph.num_edges - data.num_edges
    (2, 12)
    """

    nodes: int = 20
    edges: int = 20
    steps: int = 10
    step: float = 0.1
    box: tuple[float, float] | None = (-1.0, 1.0)
    targets: tuple[int, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(1, nodes=self.nodes, edges=self.edges)
        check_whole(0, steps=self.steps)
        check_positive(step=self.step)
        check_box(self.box)
        check_seed(self.seed)

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The worst reading found."""
        return self.search(read, self.place(graph), Best(read, graph, gain)).reading()

    def search(self, read: Reader, place: InjectionSite, best: Best) -> Best:
        """Offer what lies on the way up the gain of `best`, from a start at this place."""
        x = self.climb(read, place, self.start(place), best.gain, lambda x, value: best.offer(place.change(x), value))
        place.offer(read, x, best)
        return best

    def place(self, graph: Data) -> InjectionSite:
        """The graph with the injected nodes linked to it, their features still open."""
        links, box = self._links(graph), self._box(graph)
        return InjectionSite(links, add_nodes(graph, box.low.new_zeros(self.nodes, box.low.numel()), links), box)

    def start(self, place: InjectionSite) -> Tensor:
        """Random features near the middle of the box; [nodes, F]."""
        box, generator = place.box, torch.Generator().manual_seed(self.seed)
        noise = torch.randn(self.nodes, box.low.numel(), generator=generator, dtype=box.low.dtype).to(box.low.device)
        return box.clamp((box.low + box.high) / 2 + 0.1 * box.half * noise)

    def climb(
        self, read: Reader, place: InjectionSite, x: Tensor, gain: Gain, on_step: OnStep = lambda x, value: None
    ) -> Tensor:
        """The features after `steps` steps up the gain; `seen` hears of each point passed and what it gained."""
        with frozen_params(read.model):
            for _ in range(self.steps):
                x.requires_grad_()
                value = gain(read(place.graph(x)))
                (slope,) = gradients(value, [x])
                x = x.detach()
                on_step(x, value)
                x = place.box.clamp(x + self.step * place.box.half * slope.sign())
        return x

    def _box(self, graph: Data) -> FeatureBox:
        x = require(graph, "x")
        if self.box is None:
            x = x.to_dense() if x.is_sparse else x
            return FeatureBox(x.min(0).values, x.max(0).values)
        low, high = self.box
        dtype = x.dtype if x.is_floating_point() else torch.float
        return FeatureBox(*(torch.full((x.size(1),), end, dtype=dtype, device=x.device) for end in (low, high)))

    def _links(self, graph: Data) -> Tensor:
        """Both directions of the links; a node's first links do not depend on how many it has; [2, 2 nodes edges]."""
        size = int(graph.num_nodes or 0)
        allowed = resolve_targets(self.targets, size)
        if self.edges > len(allowed):
            raise SettingError(
                f"{self.nodes} nodes with {self.edges} links each, and there are {len(allowed)} nodes to link to; "
                "give no more links than there are targets"
            )
        picked = [
            allowed[_distinct(self.edges, len(allowed), (self.seed * 1_000_003 + i) % SEEDS)] for i in range(self.nodes)
        ]
        new = torch.arange(size, size + self.nodes).repeat_interleave(self.edges)
        return undirected(torch.stack([new, torch.cat(picked)]))


def _distinct(count: int, size: int, seed: int) -> Tensor:
    """The first `count` different numbers of a random sequence below `size`."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[int, None] = {}
    while len(found) < count:
        found |= dict.fromkeys(torch.randint(size, (64,), generator=generator).tolist())
    return torch.tensor(list(found)[:count])
