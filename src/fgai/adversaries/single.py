"""Attacks on single nodes: a few injected neighbours of one target, or of many targets independently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import k_hop_subgraph

from fgai.adversaries.base import ADVERSARIES, Best, Gain, resolve_targets
from fgai.adversaries.features import FEATURES, FeatureBox
from fgai.adversaries.gains import binary_logits
from fgai.adversaries.injection import InjectionSite, NodeInjection
from fgai.adversaries.perturbation import AttackResult
from fgai.errors import SettingError
from fgai.graph import require, select_parts
from fgai.items import refuse_graphs
from fgai.patching import message_passing_layers
from fgai.reading import Reader, Reading
from fgai.settings import check_box, check_choice, check_positive, check_seed, check_whole

MAX_EDGES = 200_000  # of the graphs that are read together
FINE = 0.05  # of the step size: a second ascent, for models in which large steps overshoot


@ADVERSARIES.register("single-target")
@dataclass(frozen=True)
class SingleTarget:
    """`nodes` injected neighbours of one node, with features by projected gradient ascent.

    The call maximises its gain. `sweep` attacks many targets, each independently of the others. There are two ascents
    from the same start, the second with steps of a twentieth of the size.

    Args:
        target: The attacked node.
        nodes: Injected nodes; each has a link to the target.
        steps: Steps of each gradient ascent.
        step: Step size of the first ascent, in units of half the width of the box.
        box: Range of the injected features; None takes the range of each feature from the data.
        features: Set of the injected features, a name in `FEATURES`.
        among: Also link the injected nodes with each other.
        seed: Seed of the random start.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("synthetic")
    >>> read = Reader(backbones.build("gat", data).eval())
    >>> attacked = SingleTarget(target=3, nodes=2, steps=1)(read, data, gains.kl(read(data).detach()))
    >>> attacked.perturbation.added.tolist()
    [[1000, 1001, 3, 3], [3, 3, 1000, 1001]]
    """

    target: int = 0
    nodes: int = 1
    steps: int = 20
    step: float = 0.2
    box: tuple[float, float] | None = (-1.0, 1.0)
    features: str = "box"
    among: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(0, target=self.target, steps=self.steps)
        check_whole(1, nodes=self.nodes)
        check_positive(step=self.step)
        check_box(self.box)
        check_choice(FEATURES, features=self.features)
        check_seed(self.seed)

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """Return the reading with the largest gain; see `Adversary`."""
        target = resolve_targets((int(self.target),), int(graph.num_nodes or 0))
        site = self._place(graph, target, FEATURES[self.features](graph, self.box))
        best = Best(read, graph, gain)
        for injection in self._injections(1):
            injection.search(read, site, best)
        return best.reading()

    def sweep(self, read: Reader, graph: Data, targets: Sequence[int] | Tensor) -> Sweep:
        """Attack each target independently, and maximise best other logit - own logit of that target.

        Targets are read together, each in a copy of the nodes that reach it in as many hops as the model has layers.
        The prediction in the copy must equal that in the graph, which is checked.

        Args:
            read: Reader of the model, in evaluation mode.
            graph: The clean graph.
            targets: Ids of the attacked nodes.

        Returns:
            The largest margin of each target and the features of its injected neighbours.

        >>> from fgai import backbones, datasets
        >>> data = datasets.load("synthetic")
        >>> read = Reader(backbones.build("gat", data).eval())
        >>> SingleTarget(steps=2).sweep(read, data, [3, 4]).flipped.shape
        torch.Size([2])
        """
        refuse_graphs(graph, "A sweep over single nodes", "attack all graphs at once with fgai.GraphInjection()")
        nodes = torch.as_tensor(targets, dtype=torch.long)
        resolve_targets(tuple(nodes.tolist()), int(graph.num_nodes or 0))
        box = FEATURES[self.features](graph, self.box)
        with torch.no_grad():
            clean = binary_logits(read(graph).detach())
        hops = len(message_passing_layers(read.model))
        parts = [self._attack_union(read, union, clean, box) for union in unions(graph, nodes, hops)]
        margin, x = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        return Sweep(nodes.to(margin.device), margin, x)

    def _attack_union(self, read: Reader, union: Union, clean: Tensor, box: FeatureBox) -> tuple[Tensor, Tensor]:
        """Return the largest margin of each target, and the features that reach it; [T], [T, nodes, F]."""
        with torch.no_grad():
            logits = binary_logits(read(union.graph))[union.at]
        if not torch.allclose(logits, clean[union.targets], rtol=1e-3, atol=1e-3):
            raise SettingError(
                "the predictions of this model for a node depend on nodes that are farther away than it has layers, so "
                "several targets cannot be attacked at once; call the adversary for each target instead"
            )
        predictions, site = clean[union.targets].argmax(-1), self._place(union.graph, union.at, box)
        first, second = self._injections(len(union.at))
        start = first.start(site)
        margin = _margins(logits, predictions)
        largest = torch.full_like(margin, -torch.inf)  # the margin without injected neighbours is not one of theirs
        features = box.rows(start).detach().view(len(largest), self.nodes, -1).clone()

        def gain(now: Reading) -> Tensor:
            nonlocal margin
            margin = _margins(binary_logits(now)[union.at], predictions)
            return margin.sum()

        def update(x: Tensor, _: Tensor) -> None:
            nonlocal largest
            better = margin.detach() > largest
            largest = torch.where(better, margin.detach(), largest)
            features[better] = box.rows(x).view_as(features)[better]

        for injection in (first, second):
            x = injection.climb(read, site, start, gain, update)
            with torch.no_grad():
                update(x, gain(read(site.update(x))))
        return largest, features

    def _injections(self, targets: int) -> tuple[NodeInjection, NodeInjection]:
        """Return the injections of the nodes of so many targets that take the large steps and the small ones."""
        large = NodeInjection(self.nodes * targets, 1, self.steps, self.step, seed=self.seed)
        return large, replace(large, step=FINE * self.step)

    def _place(self, graph: Data, targets: Tensor, box: FeatureBox) -> InjectionSite:
        """Give each target its own injected neighbours."""
        targets, size, count = targets.cpu(), int(graph.num_nodes or 0), self.nodes * len(targets)
        new = torch.arange(size, size + count)
        pairs = torch.stack([new, targets.repeat_interleave(self.nodes)])
        if self.among:
            inner = torch.combinations(torch.arange(self.nodes), 2).t()  # [2, P]
            first = size + self.nodes * torch.arange(len(targets))
            pairs = torch.cat([pairs, (inner[:, None] + first[None, :, None]).flatten(1)], 1)
        return InjectionSite.of(graph, pairs, box)


@dataclass(frozen=True)
class Sweep:
    """The result of attacks on single targets: the largest margin of each, above 0 if its prediction changed."""

    targets: Tensor  # [T]
    margin: Tensor  # [T], best other logit - logit of the clean prediction
    x: Tensor  # [T, nodes, F], the features of its injected neighbours

    @property
    def flipped(self) -> Tensor:
        """Whether the prediction of each target changes; [T]."""
        return self.margin > 0


@dataclass(frozen=True)
class Union:
    """The disjoint union of the neighbourhoods of targets."""

    graph: Data
    targets: Tensor  # [T], ids in the original graph
    at: Tensor  # [T], ids in the union


@dataclass(frozen=True)
class _Neighbourhood:
    """The nodes that reach a target, and the edges between them."""

    nodes: Tensor  # [N'], ids in the original graph
    edge_index: Tensor  # [2, E'], ids in the neighbourhood
    at: Tensor  # [1], the target in the neighbourhood
    edges: Tensor  # [E'], columns of the original edge_index


def unions(graph: Data, targets: Tensor, hops: int, max_edges: int = MAX_EDGES) -> Iterator[Union]:
    """Iterate over unions of the neighbourhoods of the targets, each with at most `max_edges` edges or one target.

    >>> path = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    >>> union = next(unions(path, torch.tensor([2, 1]), hops=1))
    >>> union.graph.edge_index.tolist(), union.at.tolist()
    ([[0, 2], [1, 3]], [1, 3])
    """
    parts: list[_Neighbourhood] = []
    edge_index, nodes = require(graph, "edge_index"), int(graph.num_nodes or 0)
    for target in targets.tolist():
        around, edges, at, inside = k_hop_subgraph(target, hops, edge_index, True, nodes)
        part = _Neighbourhood(around, edges, at, inside.nonzero()[:, 0])
        if parts and sum(len(other.edges) for other in [*parts, part]) > max_edges:
            yield _union(graph, parts)
            parts = []
        parts.append(part)
    if parts:
        yield _union(graph, parts)


def _union(graph: Data, parts: list[_Neighbourhood]) -> Union:
    """Return the disjoint union; attributes of nodes and edges are selected, all others are left out."""
    starts = list(accumulate((len(part.nodes) for part in parts), initial=0))[:-1]
    nodes, edges = torch.cat([part.nodes for part in parts]), torch.cat([part.edges for part in parts])
    ends = torch.cat([part.edge_index + start for part, start in zip(parts, starts, strict=True)], 1)
    union = select_parts(graph, nodes, edges, ends)
    at = torch.cat([part.at + start for part, start in zip(parts, starts, strict=True)])
    return Union(union, nodes[at], at)


def _margins(logits: Tensor, predictions: Tensor) -> Tensor:
    """Return best other logit - logit of the clean prediction; [T, C] -> [T]."""
    own = logits.gather(1, predictions[:, None])
    return logits.scatter(1, predictions[:, None], -torch.inf).max(-1).values - own[:, 0]
