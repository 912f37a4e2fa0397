"""Node injection: a few new nodes, linked to the graph, whose features maximise the gain."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch_geometric.data import Data, HeteroData

from fgai.adversaries.adam import Adam
from fgai.adversaries.base import ADVERSARIES, Best, Gain, check_features, gradients, resolve_targets
from fgai.adversaries.features import FEATURES, FeatureBox
from fgai.adversaries.links import LINKS, PER_GRAPH, LinkBudget, links_per_graph
from fgai.adversaries.perturbation import TYPES, AttackResult, Perturbation, undirected
from fgai.adversaries.typed import NewNodes
from fgai.errors import SettingError
from fgai.graph import add_nodes, require
from fgai.items import has_graphs, items_of, num_graphs
from fgai.modes import frozen_params
from fgai.reading import Reader, Reading
from fgai.rows import ReplaceableRows
from fgai.settings import check_box, check_choice, check_positive, check_seed, check_whole
from fgai.typed import EdgeType, is_typed


@dataclass(frozen=True)
class InjectionSite:
    """The graph with injected nodes. Only their features vary, so kernels sort its edges once."""

    nodes: int  # injected ones
    links: Tensor  # [2, 2L], both directions
    augmented: Data  # the injected nodes have zero features, or those of the last `update`
    box: FeatureBox
    types: Mapping[str, Tensor] = field(default_factory=dict)  # of the injected nodes and links, in a typed graph

    @classmethod
    def of(cls, graph: Data, pairs: Tensor, box: FeatureBox, new: NewNodes | None = None) -> InjectionSite:
        """Return the site of these links: injected nodes above the nodes that they are linked to, [2, L]."""
        nodes, links, types = int(pairs.max()) + 1 - int(graph.num_nodes or 0), undirected(pairs), {}
        if new is not None:
            links, relation = new.links(graph, pairs)
            types = {"node_type": torch.full((nodes,), new.number()), "edge_type": relation}
        width = require(graph, "x").size(1)
        augmented = add_nodes(graph, box.low.new_zeros(nodes, width), links, **types)
        return cls(nodes, links, augmented, box.linked(graph, pairs), types)

    def rows(self, x: Tensor) -> Tensor:
        """Return the features of the injected nodes, as wide as those of the graph."""
        rows, width = self.box.rows(x), require(self.augmented, "x").size(1)
        return rows if rows.size(1) == width else pad(rows, (0, width - rows.size(1)))

    @cached_property
    def _features(self) -> ReplaceableRows:
        return ReplaceableRows(require(self.augmented, "x"))

    def graph(self, x: Tensor) -> Data:
        """Return the graph with these features of the injected nodes."""
        graph = copy.copy(self.augmented)
        graph.x = self._features.replace(self.rows(x))
        return graph

    def update(self, x: Tensor) -> Data:
        """Return the same as `graph` without a copy of the other rows: the next call changes the graph of this one."""
        graph = copy.copy(self.augmented)
        graph.x = self._features.overwrite(self.rows(x))
        return graph

    def change(self, x: Tensor) -> Perturbation:
        """Return the perturbation of the original graph."""
        node_type, edge_type = (self.types.get(name) for name in TYPES)
        return Perturbation(self.rows(x), self.links, node_type=node_type, edge_type=edge_type)

    def read(self, read: Reader, x: Tensor) -> AttackResult:
        """Read the model on the graph with these features of the injected nodes."""
        graph = self.graph(x)
        return AttackResult.of(read(graph), self.change(x), graph)

    def offer(self, read: Reader, x: Tensor, best: Best, found_by: str = "") -> None:
        """Evaluate these features, without gradients, and offer them to `best`."""
        with torch.no_grad():
            best.offer(self.change(x), best.gain(read(self.update(x))), found_by)


OnStep = Callable[[Tensor, Tensor], None]  # features, gain


@ADVERSARIES.register("node-injection")
@dataclass(frozen=True)
class NodeInjection:
    """`nodes` new nodes with `edges` links each; their features by projected gradient ascent inside a box.

    x <- clamp(x + step * half-width * sign(d gain / d x)), `steps` times from a random start; with `adam`, the
    direction of Adam stands in place of the sign. The paper's budget is 20 nodes of 20 edges, features in [-1, 1],
    10 steps of 0.1; the strong one has 40 edges. In a batch of graphs, each graph gets `nodes` new nodes, linked inside
    it.

    Args:
        nodes: Injected nodes; of a batch of graphs, in each graph.
        edges: Links of each injected node, to different nodes; each link has both directions. In a graph of a batch
            with fewer nodes, to all of them.
        steps: Steps of gradient ascent; 0 keeps the features random, which is a baseline.
        step: Step size, in units of half the width of the box.
        box: Range of the injected features; None takes the range of each feature from the data.
        targets: Nodes to link to; by default all.
        seed: Seed of the links and of the random start.
        links: How the links are chosen among the targets, a name in `LINKS`: `random`, `random-by-degree`, `degree`,
            `coverage`, `reach` or `safe`.
        features: Set of the injected features, a name in `FEATURES`: `box`, its rows with the sum 1 (`unit-sum`), or
            rows that resemble the data (`realistic`, `binary`, `l1`, `l2`), which ignore `box`, or the nodes that they
            are linked to (`similar`).
        adam: Whether steps follow Adam instead of the sign of the slope.

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
    adam: bool = False

    def __post_init__(self) -> None:
        check_whole(1, nodes=self.nodes, edges=self.edges)
        check_whole(0, steps=self.steps)
        check_positive(step=self.step)
        check_box(self.box)
        check_seed(self.seed)
        check_choice(LINKS, links=self.links)
        check_choice(FEATURES, features=self.features)

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        """Return the reading with the largest gain; see `Adversary`."""
        return self.search(read, *self._begin(read, graph, gain)).reading()

    def _begin(self, read: Reader, graph: Data, gain: Gain) -> tuple[InjectionSite, Best]:
        """Return the injected nodes with their links, and the clean graph as the best so far."""
        with torch.no_grad():
            clean = read(graph).detach()  # freed at the end of this function, before gradients need memory
        return self.place(graph, clean), Best(read, graph, gain, clean)

    def search(self, read: Reader, site: InjectionSite, best: Best) -> Best:
        """Maximise the gain of `best` from a random start, and offer it the features of each step."""
        x = self.climb(read, site, self.start(site), best.gain, lambda x, value: best.offer(site.change(x), value))
        site.offer(read, x, best)
        return best

    def place(self, graph: Data, clean: Reading | None = None) -> InjectionSite:
        """Link the injected nodes to the graph; their features are set later. `clean` has the margins of the nodes."""
        check_features(graph)
        new = self._new_nodes(graph) if is_typed(graph) else None
        box = FEATURES[self.features](graph if new is None else new.features(graph), self.box)
        return InjectionSite.of(graph, self._pairs(graph, clean, new), box, new)

    def _new_nodes(self, graph: Data) -> NewNodes:
        """Return the type and the relations of the injected nodes in a typed graph."""
        return NewNodes.of(graph)

    def start(self, site: InjectionSite) -> Tensor:
        """Return random features near the middle of the box, the same ones in each graph of a batch; [M, F]."""
        box, generator = site.box, torch.Generator().manual_seed(self.seed)
        noise = torch.randn(self.nodes, box.low.numel(), generator=generator, dtype=box.low.dtype).to(box.low.device)
        noise = noise.repeat(site.nodes // self.nodes, 1)
        return box.clamp((box.low + box.high) / 2 + 0.1 * box.half * noise)

    def climb(
        self,
        read: Reader,
        site: InjectionSite,
        x: Tensor,
        gain: Gain,
        on_step: OnStep = lambda x, value: None,
        adam: Adam | None = None,
    ) -> Tensor:
        """Return the features after `steps` steps of gradient ascent; `on_step` receives each point and its gain.

        With `adam=True`, the state of Adam is `adam`, by default a new one.
        """
        adam = adam or Adam()
        with frozen_params(read.model):
            for _ in range(self.steps):
                x.requires_grad_()
                value = gain(read(site.update(x)))
                (slope,) = gradients(value, [x])
                x = x.detach()
                on_step(x, value)
                if self.adam:
                    x = site.box.move(x, adam(site.box.tangent(slope)), self.step)
                else:
                    x = site.box.ascend(x, slope, self.step)
        return x

    def _pairs(self, graph: Data, clean: Reading | None, new: NewNodes | None) -> Tensor:
        """Return the links, injected nodes above the nodes that they are linked to; [2, L]."""
        size = int(graph.num_nodes or 0)
        allowed = resolve_targets(self.targets, size)
        if new is not None and self.targets is None:
            allowed = new.targets(graph)
        if has_graphs(graph) and (num_graphs(graph) > 1 or self.links in PER_GRAPH):
            return links_per_graph(graph, LinkBudget(self.nodes, self.edges, allowed, self.seed), self.links)
        if self.edges > len(allowed):
            raise SettingError(
                f"edges={self.edges} links per injected node, but there are only {len(allowed)} nodes to link to; "
                "give no more links than there are targets"
            )
        chosen = LINKS[self.links](graph, LinkBudget(self.nodes, self.edges, allowed, self.seed), clean)
        numbers = torch.arange(size, size + self.nodes).repeat_interleave(self.edges)
        return torch.stack([numbers, chosen.flatten()])


def default_injection(data: Data | HeteroData | None = None) -> str:
    """Return the name of the injection for a graph: `graph-injection` if a model answers for the graphs of a batch.

    For a typed graph it is `typed-injection`.

    >>> default_injection(), default_injection(Data(x=torch.ones(2, 1), batch=torch.zeros(2).long(), num_graphs=1))
    ('node-injection', 'graph-injection')
    """
    if isinstance(data, HeteroData) or is_typed(data):
        return "typed-injection"
    return "graph-injection" if data is not None and items_of(data).kind == "graphs" else "node-injection"


@ADVERSARIES.register("graph-injection")
@dataclass(frozen=True)
class GraphInjection(NodeInjection):
    """The node injection sized for molecules and other small graphs: 2 nodes with 2 links each in each graph.

    The injected rows resemble the data (`realistic`): if the features are one-hot, so are they. All graphs of a batch
    are attacked at once. The links of a graph depend on the seed and on the graph, not on the rest of the batch.

    >>> from fgai import backbones, datasets
    >>> from fgai.adversaries import gains
    >>> data = datasets.load("ba-2motifs")
    >>> read = Reader(backbones.build("gat-graphs", data).eval())
    >>> attacked = GraphInjection(steps=1)(read, data, gains.margin(read(data).detach()))
    >>> attacked.graph.num_nodes - data.num_nodes, len(attacked.logits)
    (2000, 1000)
    """

    nodes: int = 2
    edges: int = 2
    steps: int = 10
    step: float = 0.5
    box: tuple[float, float] | None = None
    features: str = "realistic"


@ADVERSARIES.register("typed-injection")
@dataclass(frozen=True)
class TypedInjection(NodeInjection):
    """The node injection for a typed graph: new nodes of one type, linked along chosen relations.

    The injected features are in the range of the features of their type. `NodeInjection` attacks typed graphs too, with
    the default type, relations and its own box.

    Args:
        nodes: Injected nodes.
        edges: Links of each injected node; in each direction for which there is a relation.
        node_type: Type of the injected nodes; by default the first other type with a relation to the answer's type.
        relations: Relations of the links, as triples; by default all. If several lead from one type to another, links
            take turns.

    >>> from fgai.typed import join
    >>> data = HeteroData(a={"x": torch.ones(3, 4), "y": torch.tensor([0, 1, 1])}, b={"x": torch.ones(3, 4)})
    >>> data["b", "to", "a"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 2]])
    >>> site = TypedInjection(nodes=1, edges=2).place(join(data))
    >>> site.links[0].tolist()  # node 6 is of type b, and the only relation leads from b to a
    [6, 6]
    """

    box: tuple[float, float] | None = None
    node_type: str | None = None
    relations: tuple[EdgeType, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        given = () if self.relations is None else self.relations
        triples = isinstance(given, tuple | list) and all(
            isinstance(one, tuple | list) and len(one) == 3 and all(isinstance(part, str) for part in one)
            for one in given
        )
        if not triples or not isinstance(self.node_type, str | None):
            raise SettingError(
                f"node_type={self.node_type!r:.60}, relations={self.relations!r:.60}; give the name of a node type, "
                "and triples (source, relation, target) of names"
            )

    def _new_nodes(self, graph: Data) -> NewNodes:
        return NewNodes.of(graph, self.node_type, self.relations)

    def place(self, graph: Data, clean: Reading | None = None) -> InjectionSite:
        """Link the injected nodes to the graph; see `NodeInjection.place`."""
        if not is_typed(graph) and (self.node_type or self.relations):
            raise SettingError(
                f"node_type={self.node_type!r}, relations={self.relations!r}, and this graph has one type; leave them "
                "out, or attack a HeteroData"
            )
        return super().place(graph, clean)
