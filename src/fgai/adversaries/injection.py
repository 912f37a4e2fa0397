"""Node injection: a few new nodes, linked to the graph, with features that climb the gain."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.base import ADVERSARIES, Best, Gain, gradients, resolve_targets
from fgai.adversaries.features import FEATURES, FeatureBox
from fgai.adversaries.links import LINKS, LinkBudget
from fgai.adversaries.perturbation import AttackResult, Perturbation, undirected
from fgai.errors import SettingError
from fgai.graph import add_nodes, replace_rows, require
from fgai.reading import Reader, Reading, frozen_params


@dataclass(frozen=True)
class InjectionSite:
    """Where nodes are injected: their links are made once, so that the order of the edges is found once."""

    links: Tensor  # [2, 2 nodes edges]
    augmented: Data
    box: FeatureBox

    def graph(self, x: Tensor) -> Data:
        """The graph in which the injected nodes have these features."""
        now = copy.copy(self.augmented)
        now.x = replace_rows(require(self.augmented, "x"), self.box.rows(x))
        return now

    def change(self, x: Tensor) -> Perturbation:
        """What was done to the old graph."""
        return Perturbation(self.box.rows(x), self.links)

    def read(self, read: Reader, x: Tensor) -> AttackResult:
        """What a model says of it."""
        graph = self.graph(x)
        reading = read(graph)
        return AttackResult(reading.logits, reading.attention, self.change(x), graph)

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
    nodes, of all or of those in `targets`, and count in both directions; `links` names how they are chosen (`random`,
    `degree`, `coverage`, `safe`). `features` names the set the rows lie in: the `box`, or one of rows like the data's
    (`realistic`, `binary`, `l1`, `l2`).

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
    links: str = "random"
    features: str = "box"

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The worst reading found."""
        with torch.no_grad():
            clean = read(graph).detach()
        return self.search(read, self.place(graph, clean), Best(read, graph, gain, clean)).reading()

    def search(self, read: Reader, place: InjectionSite, best: Best) -> Best:
        """Offer what lies on the way up the gain of `best`, from a start at this place."""
        x = self.climb(read, place, self.start(place), best.gain, lambda x, value: best.offer(place.change(x), value))
        place.offer(read, x, best)
        return best

    def place(self, graph: Data, clean: Reading | None = None) -> InjectionSite:
        """The graph with the injected nodes linked to it, their features still open; `clean` tells low margins."""
        links, box = self._links(graph, clean), FEATURES[self.features](graph, self.box)
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
                x = place.box.ascend(x, slope, self.step)
        return x

    def _links(self, graph: Data, clean: Reading | None) -> Tensor:
        """Both directions of the links; [2, 2 nodes edges]."""
        size = int(graph.num_nodes or 0)
        allowed = resolve_targets(self.targets, size)
        if not 0 < self.edges <= len(allowed) or self.nodes < 1:
            raise SettingError(
                f"{self.nodes} nodes with {self.edges} links each, and there are {len(allowed)} nodes to link to; "
                "give at least one node, and no more links than there are targets"
            )
        picked = LINKS[self.links](graph, LinkBudget(self.nodes, self.edges, allowed, self.seed), clean)
        new = torch.arange(size, size + self.nodes).repeat_interleave(self.edges)
        return undirected(torch.stack([new, picked.flatten()]))
