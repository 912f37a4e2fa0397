"""Node injection: a few new nodes, linked to the graph, whose features maximise the gain."""

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
    """The range of the features of an injected node: from `low` to `high`, per feature."""

    low: Tensor  # [F]
    high: Tensor  # [F]

    @property
    def half(self) -> Tensor:
        """Half the width of each feature: the unit of a step; [F]."""
        return (self.high - self.low) / 2

    def clamp(self, x: Tensor) -> Tensor:
        """Return the nearest point inside."""
        return torch.minimum(torch.maximum(x, self.low), self.high)


@dataclass(frozen=True)
class InjectionSite:
    """The graph with injected nodes. Only their features vary, so kernels sort its edges once."""

    links: Tensor  # [2, 2 nodes edges]
    augmented: Data  # the injected nodes have zero features
    box: FeatureBox

    def graph(self, x: Tensor) -> Data:
        """Return the graph with these features of the injected nodes."""
        graph = copy.copy(self.augmented)
        graph.x = replace_rows(require(self.augmented, "x"), x)
        return graph

    def change(self, x: Tensor) -> Perturbation:
        """Return the perturbation of the original graph."""
        return Perturbation(x, self.links)

    def read(self, read: Reader, x: Tensor) -> AttackResult:
        """Read the model on the graph with these features of the injected nodes."""
        graph = self.graph(x)
        reading = read(graph)
        return AttackResult(reading.logits, reading.attention, self.change(x), graph, unread=reading.unread)

    def offer(self, read: Reader, x: Tensor, best: Best) -> None:
        """Evaluate these features, without gradients, and offer them to `best`."""
        with torch.no_grad():
            best.offer(self.change(x), best.gain(self.read(read, x)))


OnStep = Callable[[Tensor, Tensor], None]  # features, gain


@ADVERSARIES.register("node-injection")
@dataclass(frozen=True)
class NodeInjection:
    """`nodes` new nodes with `edges` links each; their features by projected gradient ascent inside a box.

    x <- clamp(x + step * half-width * sign(d gain / d x)), `steps` times from a random start. The paper's budget is
    20 nodes of 20 edges, features in [-1, 1], 10 steps of 0.1; the strong one has 40 edges.

    Args:
        nodes: Injected nodes.
        edges: Links of each injected node, to different nodes; each link has both directions.
        steps: Steps of gradient ascent; 0 keeps the features random, which is a baseline.
        step: Step size, in units of half the width of the box.
        box: Range of the injected features; None takes the range of each feature from the data.
        targets: Nodes to link to; by default all. The links are random among them.
        seed: Seed of the links and of the random start.

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
        """Return the reading with the largest gain; see `Adversary`."""
        return self.search(read, self.place(graph), Best(read, graph, gain)).reading()

    def search(self, read: Reader, site: InjectionSite, best: Best) -> Best:
        """Maximise the gain of `best` from a random start, and offer it the features of each step."""
        x = self.climb(read, site, self.start(site), best.gain, lambda x, value: best.offer(site.change(x), value))
        site.offer(read, x, best)
        return best

    def place(self, graph: Data) -> InjectionSite:
        """Link the injected nodes to the graph; their features are set later."""
        links, box = self._links(graph), self._box(graph)
        return InjectionSite(links, add_nodes(graph, box.low.new_zeros(self.nodes, box.low.numel()), links), box)

    def start(self, site: InjectionSite) -> Tensor:
        """Return random features near the middle of the box; [nodes, F]."""
        box, generator = site.box, torch.Generator().manual_seed(self.seed)
        noise = torch.randn(self.nodes, box.low.numel(), generator=generator, dtype=box.low.dtype).to(box.low.device)
        return box.clamp((box.low + box.high) / 2 + 0.1 * box.half * noise)

    def climb(
        self, read: Reader, site: InjectionSite, x: Tensor, gain: Gain, on_step: OnStep = lambda x, value: None
    ) -> Tensor:
        """Return the features after `steps` steps of gradient ascent; `on_step` receives each point and its gain."""
        with frozen_params(read.model):
            for _ in range(self.steps):
                x.requires_grad_()
                value = gain(read(site.graph(x)))
                (slope,) = gradients(value, [x])
                x = x.detach()
                on_step(x, value)
                x = site.box.clamp(x + self.step * site.box.half * slope.sign())
        return x

    def _box(self, graph: Data) -> FeatureBox:
        """Return the range of each injected feature."""
        x = require(graph, "x")
        if self.box is None:
            x = x.to_dense() if x.is_sparse else x
            return FeatureBox(x.min(0).values, x.max(0).values)
        low, high = self.box
        dtype = x.dtype if x.is_floating_point() else torch.float
        return FeatureBox(*(torch.full((x.size(1),), end, dtype=dtype, device=x.device) for end in (low, high)))

    def _links(self, graph: Data) -> Tensor:
        """Return the links, both directions; the first ones of a node do not depend on `edges`; [2, 2 nodes edges]."""
        size = int(graph.num_nodes or 0)
        allowed = resolve_targets(self.targets, size)
        if self.edges > len(allowed):
            raise SettingError(
                f"edges={self.edges} links per injected node, but there are only {len(allowed)} nodes to link to; "
                "give no more links than there are targets"
            )
        ends = [
            allowed[_distinct(self.edges, len(allowed), (self.seed * 1_000_003 + i) % SEEDS)] for i in range(self.nodes)
        ]
        new = torch.arange(size, size + self.nodes).repeat_interleave(self.edges)
        return undirected(torch.stack([new, torch.cat(ends)]))


def _distinct(count: int, size: int, seed: int) -> Tensor:
    """Return the first `count` different numbers of a random sequence below `size`."""
    generator = torch.Generator().manual_seed(seed)
    numbers: dict[int, None] = {}  # a set that keeps the order
    while len(numbers) < count:
        numbers |= dict.fromkeys(torch.randint(size, (64,), generator=generator).tolist())
    return torch.tensor(list(numbers)[:count])
