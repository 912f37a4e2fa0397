"""Choice of the nodes that injected nodes link to: at random, by degree, by what they cover, or with large margins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.gains import binary_logits
from fgai.errors import SettingError
from fgai.graph import degree, edge_keys, require
from fgai.reading import Reading
from fgai.registry import Registry
from fgai.settings import SEEDS
from fgai.topk import rank_within

GRAIN = 2.0**-20
PER_GRAPH = ("random", "degree")  # link choices of a batch of graphs


@dataclass(frozen=True)
class LinkBudget:
    """Number of links, the nodes that may be linked to, and the seed of the choice."""

    nodes: int
    edges: int  # per injected node, at most the length of `allowed`
    allowed: Tensor  # [A], the nodes that may be linked to, ascending, on the CPU
    seed: int = 0

    @property
    def seeds(self) -> list[int]:
        """A seed for each injected node."""
        return [(self.seed * 1_000_003 + i) % SEEDS for i in range(self.nodes)]


LinkChoice = Callable[[Data, LinkBudget, Reading | None], Tensor]  # -> [nodes, edges], distinct within a row
LINKS: Registry[LinkChoice] = Registry("link choice")


@LINKS.register("random")
def random_links(graph: Data, budget: LinkBudget, clean: Reading | None = None) -> Tensor:
    """Links to random nodes; the first links of a node do not depend on `edges`.

    >>> random_links(Data(), LinkBudget(2, 3, torch.arange(9))).shape
    torch.Size([2, 3])
    """
    size = len(budget.allowed)
    return torch.stack([budget.allowed[_distinct(budget.edges, size, seed)] for seed in budget.seeds])


@LINKS.register("degree")
def degree_links(graph: Data, budget: LinkBudget, clean: Reading | None = None) -> Tensor:
    """Links to the nodes of highest degree, each used once while there are enough.

    >>> star = Data(edge_index=torch.tensor([[1, 2, 3], [0, 0, 0]]), num_nodes=4)
    >>> degree_links(star, LinkBudget(1, 1, torch.arange(4)))
    tensor([[0]])
    """
    degrees = degree(require(graph, "edge_index")[1].cpu(), int(graph.num_nodes or 0))[budget.allowed]
    return _assign(budget.allowed[degrees.sort(descending=True, stable=True).indices], budget)


@LINKS.register("random-by-degree")
def random_degree_links(graph: Data, budget: LinkBudget, clean: Reading | None = None) -> Tensor:
    """Links to random nodes, drawn in proportion to their degree: the nodes with the largest log(u) / degree.

    >>> star = Data(edge_index=torch.tensor([[1, 2, 3], [0, 0, 0]]), num_nodes=4)
    >>> random_degree_links(star, LinkBudget(2, 2, torch.arange(4))).shape
    torch.Size([2, 2])
    """
    degrees = degree(require(graph, "edge_index")[1].cpu(), int(graph.num_nodes or 0))[budget.allowed].clamp(min=1)
    generator = torch.Generator().manual_seed((budget.seed * 1_000_003 + 17) % SEEDS)
    draws = [torch.rand(len(degrees), generator=generator, dtype=torch.double) for _ in range(budget.nodes)]
    return torch.stack([budget.allowed[(draw.log() / degrees).topk(budget.edges).indices] for draw in draws])


@LINKS.register("coverage")
def coverage_links(graph: Data, budget: LinkBudget, clean: Reading | None = None) -> Tensor:
    """Links that cover as many nodes of low margin as possible: the linked nodes and their neighbours.

    Greedy maximum coverage: a link to v covers v and each node that v has an edge to. The weight of a node is
    1.01 - (p_1 - p_2), where p_1 and p_2 are its two largest predicted probabilities in the `clean` reading; without a
    reading it is 1. When all nodes are covered, the count starts again.

    >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]), num_nodes=5)
    >>> coverage_links(path, LinkBudget(1, 2, torch.arange(5))).sort().values
    tensor([[1, 3]])
    """
    nodes = int(graph.num_nodes or 0)
    begin, ends = _closed_neighbours(require(graph, "edge_index").cpu(), nodes)
    count = min(budget.nodes * budget.edges, len(budget.allowed))
    return _assign(_greedy_cover(begin, ends, _node_weights(clean, nodes), budget.allowed, count), budget)


@LINKS.register("reach")
def reach_links(graph: Data, budget: LinkBudget, clean: Reading | None = None) -> Tensor:
    """Links that cover as many nodes as possible, whatever their margins: `coverage` with equal weights.

    It is the better choice where an injected node changes the class of whatever it reaches.

    >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]), num_nodes=5)
    >>> sure = Reading(torch.tensor([[9.0, 0.0], [9.0, 0.0], [9.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), {})
    >>> one = LinkBudget(1, 1, torch.arange(5))
    >>> reach_links(path, one, sure), coverage_links(path, one, sure)
    (tensor([[1]]), tensor([[3]]))
    """
    return coverage_links(graph, budget)


@LINKS.register("safe")
def safe_links(graph: Data, budget: LinkBudget, clean: Reading | None = None) -> Tensor:
    """Links to nodes whose neighbourhood has large margins, for an attacker who must not change predictions.

    A node is ranked by the least margin, log p_1 - log p_2 in the `clean` reading, of itself and the nodes it has an
    edge to. Without a reading all ranks are equal.

    >>> path = Data(edge_index=torch.tensor([[0, 2], [1, 3]]), num_nodes=4)
    >>> sure = Reading(torch.tensor([[9.0, 0.0], [1.0, 0.0], [5.0, 0.0], [4.0, 0.0]]), {})
    >>> safe_links(path, LinkBudget(1, 2, torch.arange(4)), sure).sort().values
    tensor([[2, 3]])
    """
    nodes = int(graph.num_nodes or 0)
    begin, ends = _closed_neighbours(require(graph, "edge_index").cpu(), nodes)
    top = _top_two(clean, nodes)
    margin = torch.zeros(nodes, dtype=torch.double) if top is None else top[:, 0] - top[:, 1]
    owner = torch.arange(nodes).repeat_interleave(begin.diff())
    least = torch.full_like(margin, torch.inf).scatter_reduce(0, owner, margin[ends], "amin")[budget.allowed]
    return _assign(budget.allowed[least.sort(descending=True, stable=True).indices], budget)


def links_per_graph(graph: Data, budget: LinkBudget, choice: str) -> Tensor:
    """Return the links of a batch of graphs: `budget.nodes` new nodes in each graph, with links inside it.

    The links of a graph depend on its own nodes and the seed, not on the other graphs of the batch. A node of a graph
    with fewer than `edges` nodes that may be linked to is linked to all of them.

    Args:
        graph: The batch.
        budget: The number of new nodes in each graph and of their links.
        choice: `random`, or `degree` for the nodes of highest degree, as in `LINKS`.

    Returns:
        New nodes, numbered from N graph by graph, above the nodes that they are linked to; [2, L].

    >>> two = Data(edge_index=torch.tensor([[0, 2], [1, 3]]), batch=torch.tensor([0, 0, 1, 1, 1]), num_nodes=5)
    >>> links_per_graph(two, LinkBudget(1, 3, torch.arange(5)), "random")[0]
    tensor([5, 5, 6, 6, 6])
    """
    if choice not in PER_GRAPH:
        raise SettingError(f"links={choice!r} is for one graph; in a batch of graphs, give {' or '.join(PER_GRAPH)}")
    nodes, batch = int(graph.num_nodes or 0), require(graph, "batch").cpu()[budget.allowed]
    owner = batch.unique(return_inverse=True)[1]  # graphs without a node to link to get none
    size = degree(owner, int(owner.max()) + 1)
    place = rank_within(-budget.allowed.double(), owner, len(size))  # of a node in its graph
    degrees = degree(require(graph, "edge_index")[1].cpu(), nodes)[budget.allowed].double()
    pairs = []
    for number, seed in enumerate(budget.seeds):
        draw = torch.rand(int(size.max()), generator=torch.Generator().manual_seed(seed), dtype=torch.double)
        first = 0 if choice == "random" else number * budget.edges
        rank = rank_within(draw[place] if choice == "random" else degrees, owner, len(size))
        chosen = ((rank - first) % size[owner] < budget.edges).nonzero().flatten()
        pairs.append(torch.stack([nodes + owner[chosen] * budget.nodes + number, budget.allowed[chosen]]))
    links = torch.cat(pairs, dim=1)
    return links[:, links[0].argsort(stable=True)]


def _top_two(clean: Reading | None, nodes: int) -> Tensor | None:
    """Return the two largest log-probabilities of each node, [N, 2]; None if there is none per node."""
    if clean is None or len(clean.logits) != nodes:
        return None
    return binary_logits(clean).detach().cpu().double().log_softmax(-1).topk(2, dim=1).values


def _node_weights(clean: Reading | None, nodes: int) -> Tensor:
    """Return the weight of each node, 1.01 minus its margin, above zero; [N].

    Weights are multiples of `GRAIN`, so that sums are exact and ties do not depend on the order of the edges.
    """
    top = _top_two(clean, nodes)
    if top is None:
        return torch.ones(nodes, dtype=torch.double)
    weight = 1.01 - (top[:, 0].exp() - top[:, 1].exp())
    return (weight / GRAIN).round() * GRAIN


def _closed_neighbours(edge_index: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Return a list per node, of itself and the nodes it has an edge to, in CSR form: offsets [N + 1], entries [L]."""
    loops = torch.arange(nodes).expand(2, -1)
    keys = edge_keys(torch.cat([edge_index, loops], 1).flip(0), max(nodes, 1)).unique()
    begin = torch.cat([torch.zeros(1, dtype=torch.long), degree(keys // max(nodes, 1), nodes).cumsum(0)])
    return begin, keys % max(nodes, 1)


def _greedy_cover(begin: Tensor, ends: Tensor, weight: Tensor, allowed: Tensor, count: int) -> Tensor:
    """Return `count` nodes; each next one has the list with the most weight that is not covered; [count]."""
    nodes = len(weight)
    owner = torch.arange(nodes).repeat_interleave(begin.diff())
    by_end = owner[ends.argsort(stable=True)]  # the owners of the lists that contain a node, node by node
    first = torch.cat([torch.zeros(1, dtype=torch.long), degree(ends, nodes).cumsum(0)])
    total = torch.zeros_like(weight).index_add_(0, owner, weight[ends])
    barred = torch.ones(nodes, dtype=torch.bool).index_fill_(0, allowed, False)
    remaining, covered, chosen = total.masked_fill(barred, -torch.inf), torch.zeros_like(barred), []
    for _ in range(count):
        if float(remaining.max()) < 1e-6:  # all nodes are covered
            remaining, covered = total.masked_fill(barred, -torch.inf), torch.zeros_like(barred)
        chosen.append(node := int(remaining.argmax()))
        new = ends[begin[node] : begin[node + 1]]
        new = new[~covered[new]]
        owners = torch.cat([by_end[first[n] : first[n + 1]] for n in new.tolist()]) if len(new) else new
        remaining.index_add_(0, owners, -weight[new].repeat_interleave(first[new + 1] - first[new]))
        covered[new], barred[node], remaining[node] = True, True, -torch.inf
    return torch.tensor(chosen, dtype=torch.long)


def _assign(ranked: Tensor, budget: LinkBudget) -> Tensor:
    """Distribute the first of `ranked` in an order by the seed; if there are too few, repeat them; [nodes, edges]."""
    pool = ranked[: budget.nodes * budget.edges]
    generator = torch.Generator().manual_seed(budget.seed)
    pool = pool[torch.randperm(len(pool), generator=generator)]
    return pool[torch.arange(budget.nodes * budget.edges) % len(pool)].view(budget.nodes, budget.edges)


def _distinct(count: int, size: int, seed: int) -> Tensor:
    """Return the first `count` different numbers of a random sequence below `size`."""
    generator = torch.Generator().manual_seed(seed)
    numbers: dict[int, None] = {}  # a set that keeps the order
    while len(numbers) < count:
        numbers |= dict.fromkeys(torch.randint(size, (64,), generator=generator).tolist())
    return torch.tensor(list(numbers)[:count])
