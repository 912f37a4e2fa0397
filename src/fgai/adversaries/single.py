"""One node is the target: a few injected neighbours of it, for one target or for many, each by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import k_hop_subgraph

from fgai.adversaries.base import ADVERSARIES, Best, Gain, resolve_targets
from fgai.adversaries.features import FEATURES, Box
from fgai.adversaries.gains import binary_logits
from fgai.adversaries.injection import InjectionSite, NodeInjection
from fgai.adversaries.perturbation import AttackResult, undirected
from fgai.errors import SettingError
from fgai.graph import add_nodes, require
from fgai.reading import Reader, Reading
from fgai.tap import message_passing_layers

EDGES_AT_ONCE = 200_000


@ADVERSARIES.register("single-target")
@dataclass(frozen=True)
class SingleTarget:
    """`nodes` injected neighbours of the node `target`, linked to it and, if `among`, to each other.

    Called, it climbs the gain it is given. `sweep` attacks many targets, each as if it were the only one.

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

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """The worst reading found."""
        at = resolve_targets((self.target,), int(graph.num_nodes or 0))
        place = self._place(graph, at, FEATURES[self.features](graph, self.box))
        return self._injection(1).search(read, place, Best(read, graph, gain)).reading()

    def sweep(self, read: Reader, graph: Data, targets: Sequence[int] | Tensor) -> Sweep:
        """Attack each of `targets` by itself; what it climbs is best other logit - own logit of that target.

        Targets are read together, each in a copy of the nodes from which it can be reached in as many hops as the model
        has layers: its answer there is the one in the whole graph, which is checked.

        >>> from fgai import backbones, datasets
        >>> data = datasets.load("synthetic")
        >>> read = Reader(backbones.build("gat", data).eval())
        >>> SingleTarget(steps=2).sweep(read, data, [3, 4]).flipped.shape
        torch.Size([2])
        """
        at = torch.as_tensor(targets, dtype=torch.long)
        resolve_targets(tuple(at.tolist()), int(graph.num_nodes or 0))
        box = FEATURES[self.features](graph, self.box)
        with torch.no_grad():
            clean = binary_logits(read(graph).detach())
        hops = len(message_passing_layers(read.model))
        found = [self._together(read, union, clean, box) for union in unions(graph, at, hops)]
        margin, x = (torch.cat(parts) for parts in zip(*found, strict=True))
        return Sweep(at, margin, x)

    def _together(self, read: Reader, union: Union, clean: Tensor, box: Box) -> tuple[Tensor, Tensor]:
        """The largest margin found of each target, and the features it was found with; [T], [T, nodes, F]."""
        before = clean[union.targets]
        answers = before.argmax(-1)
        with torch.no_grad():
            again = binary_logits(read(union.graph))[union.at]
        if not torch.allclose(again, before, rtol=1e-3, atol=1e-3):
            raise SettingError(
                "the answers of this model for a node change when nodes are removed that are farther away than it has "
                "layers, so targets cannot be attacked side by side; call the adversary for each target instead"
            )
        place, most = self._place(union.graph, union.at, box), _lead(again, answers)
        attack = self._injection(len(union.at))
        features = box.rows(attack.start(place)).detach().view(len(most), self.nodes, -1).clone()
        leads = most

        def gain(now: Reading) -> Tensor:
            nonlocal leads
            leads = _lead(binary_logits(now)[union.at], answers)
            return leads.sum()

        def keep(x: Tensor, _: Tensor) -> None:
            better = leads.detach() > most
            most[better] = leads.detach()[better]
            features[better] = box.rows(x).view_as(features)[better]

        x = attack.climb(read, place, attack.start(place), gain, keep)
        with torch.no_grad():
            keep(x, gain(place.read(read, x)))
        return most, features

    def _injection(self, targets: int) -> NodeInjection:
        """The steps of an injection of all nodes of so many targets."""
        return NodeInjection(self.nodes * targets, 1, self.steps, self.step, seed=self.seed)

    def _place(self, graph: Data, at: Tensor, box: Box) -> InjectionSite:
        """Each of the targets `at` with its own injected neighbours."""
        if self.nodes < 1:
            raise SettingError(f"{self}; inject at least one node")
        size, count = int(graph.num_nodes or 0), self.nodes * len(at)
        new = torch.arange(size, size + count)
        pairs = torch.stack([new, at.repeat_interleave(self.nodes)])
        if self.among:
            inner = torch.combinations(torch.arange(self.nodes), 2).t()  # [2, P]
            first = size + self.nodes * torch.arange(len(at))
            pairs = torch.cat([pairs, (inner[:, None] + first[None, :, None]).flatten(1)], 1)
        links = undirected(pairs)
        return InjectionSite(links, add_nodes(graph, box.low.new_zeros(count, len(box.low)), links), box)


@dataclass(frozen=True)
class Sweep:
    """What attacks on single targets found: the margin of each, above zero where its answer changed."""

    targets: Tensor  # [T]
    margin: Tensor  # [T], best other logit - logit of the clean answer
    x: Tensor  # [T, nodes, F], the features of its injected neighbours

    @property
    def flipped(self) -> Tensor:
        """Which targets change their answer; [T]."""
        return self.margin > 0


@dataclass(frozen=True)
class Union:
    """Copies of the surroundings of some targets, side by side in one graph."""

    graph: Data
    targets: Tensor  # [T], in the whole graph
    at: Tensor  # [T], here


def unions(graph: Data, targets: Tensor, hops: int, edges_at_once: int = EDGES_AT_ONCE) -> Iterator[Union]:
    """The surroundings of the targets, a few at a time.

    >>> path = Data(x=torch.eye(4), edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]))
    >>> union = next(unions(path, torch.tensor([2, 1]), hops=1))
    >>> union.graph.edge_index.tolist(), union.at.tolist()
    ([[0, 2], [1, 3]], [1, 3])
    """
    some: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    edge_index, nodes = require(graph, "edge_index"), int(graph.num_nodes or 0)
    for target in targets:
        around, edges, at, inside = k_hop_subgraph(int(target), hops, edge_index, True, nodes)
        if some and sum(part[3].numel() for part in some) + int(inside.sum()) > edges_at_once:
            yield _union(graph, some)
            some = []
        some.append((around, edges, at, inside.nonzero()[:, 0]))
    if some:
        yield _union(graph, some)


def _union(graph: Data, some: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Union:
    sizes = torch.tensor([0, *(len(around) for around, *_ in some)]).cumsum(0).tolist()
    nodes, inside = torch.cat([around for around, *_ in some]), torch.cat([edges for *_, edges in some])
    union = Data(num_nodes=len(nodes))
    for name, value in graph.to_dict().items():
        if name != "edge_index" and isinstance(value, Tensor):
            if graph.is_node_attr(name):
                union[name] = value.index_select(0, nodes)
            elif graph.is_edge_attr(name):
                union[name] = value.index_select(0, inside)
    union.edge_index = torch.cat([edges + start for (_, edges, _, _), start in zip(some, sizes, strict=False)], 1)
    at = torch.cat([at + start for (_, _, at, _), start in zip(some, sizes, strict=False)])
    return Union(union, nodes[at], at)


def _lead(logits: Tensor, answers: Tensor) -> Tensor:
    """How far the best other logit is above the answer's; [T, C] -> [T]."""
    own = logits.gather(1, answers[:, None])
    return logits.scatter(1, answers[:, None], -torch.inf).max(-1).values - own[:, 0]
