"""Which nodes an injected node is linked to: at random, by degree, near many doubtful nodes, or far from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.graph import degree, edge_keys, require
from fgai.reading import Reading
from fgai.registry import Registry


@dataclass(frozen=True)
class LinkBudget:
    """How many links there are to choose, among which nodes, and the seed of the choice."""

    nodes: int
    edges: int  # per injected node, no more than there are in `allowed`
    allowed: Tensor  # [A], the nodes that may be linked to, rising
    seed: int = 0


LinkChoice = Callable[[Data, LinkBudget, Reading | None], Tensor]  # -> [nodes, edges], distinct within a row
LINKS: Registry[LinkChoice] = Registry("link choice")


@LINKS.register("random")
def random_links(graph: Data, budget: LinkBudget, clean: Reading | None = None) -> Tensor:
    """Links to random nodes; a node's first links do not depend on how many it has.

    >>> random_links(Data(), LinkBudget(2, 3, torch.arange(9))).shape
    torch.Size([2, 3])
    """
    size = len(budget.allowed)
    seeds = [budget.seed * 1_000_003 + i for i in range(budget.nodes)]
    return torch.stack([budget.allowed[_distinct(budget.edges, size, seed)] for seed in seeds])


@LINKS.register("degree")
def degree_links(graph: Data, budget: LinkBudget, clean: Reading | None = None) -> Tensor:
    """Links to the nodes of highest degree, a different one for each link as long as there are enough.

    >>> star = Data(edge_index=torch.tensor([[1, 2, 3], [0, 0, 0]]), num_nodes=4)
    >>> degree_links(star, LinkBudget(1, 1, torch.arange(4)))
    tensor([[0]])
    """
    size = degree(require(graph, "edge_index")[1], int(graph.num_nodes or 0)).cpu()[budget.allowed]
    return _deal(budget.allowed[size.sort(descending=True, stable=True).indices], budget)


@LINKS.register("coverage")
def coverage_links(graph: Data, budget: LinkBudget, clean: Reading | None = None) -> Tensor:
    """Links to nodes such that as many nodes of low margin as possible are linked, or a neighbour of a linked node.

    Greedy maximum coverage: a link to v covers v and every node that v has an edge to; a node weighs
    1 - (p_1 - p_2), where p_1 and p_2 are its two largest predicted probabilities in the `clean` reading, and 1 without
    one. When all are covered, the count starts again.

    >>> path = Data(edge_index=torch.tensor([[0, 1, 1, 2, 3, 4], [1, 0, 2, 1, 4, 3]]), num_nodes=5)
    >>> coverage_links(path, LinkBudget(1, 2, torch.arange(5))).sort().values
    tensor([[1, 3]])
    """
    nodes = int(graph.num_nodes or 0)
    begin, ends = _closed_neighbours(require(graph, "edge_index").cpu(), nodes)
    count = min(budget.nodes * budget.edges, len(budget.allowed))
    return _deal(_greedy_cover(begin, ends, _doubt(clean, nodes), budget.allowed, count), budget)


@LINKS.register("safe")
def safe_links(graph: Data, budget: LinkBudget, clean: Reading | None = None) -> Tensor:
    """Links to nodes such that no answer near them is easily lost, for an attacker who must keep the answers.

    A node ranks by the least margin, log p_1 - log p_2 in the `clean` reading, of itself and the nodes it has an edge
    to; without a reading all rank alike.

    >>> path = Data(edge_index=torch.tensor([[0, 2], [1, 3]]), num_nodes=4)
    >>> sure = Reading(torch.tensor([[9.0, 0.0], [1.0, 0.0], [5.0, 0.0], [4.0, 0.0]]), {})
    >>> safe_links(path, LinkBudget(1, 2, torch.arange(4)), sure).sort().values
    tensor([[2, 3]])
    """
    nodes = int(graph.num_nodes or 0)
    begin, ends = _closed_neighbours(require(graph, "edge_index").cpu(), nodes)
    margin = torch.zeros(nodes, dtype=torch.double)
    if clean is not None and len(clean.logits) == nodes:
        best = clean.probs.detach().cpu().double().log().topk(2, dim=1).values
        margin = best[:, 0] - best[:, 1]
    owner = torch.arange(nodes).repeat_interleave(begin.diff())
    least = torch.full_like(margin, torch.inf).scatter_reduce(0, owner, margin[ends], "amin")[budget.allowed]
    return _deal(budget.allowed[least.sort(descending=True, stable=True).indices], budget)


def _doubt(clean: Reading | None, nodes: int) -> Tensor:
    """The weight of each node: one less its margin, never zero; [N]."""
    if clean is None or len(clean.logits) != nodes:  # answers for pairs have no node
        return torch.ones(nodes, dtype=torch.double)
    best = clean.probs.detach().cpu().double().topk(2, dim=1).values
    return 1.01 - (best[:, 0] - best[:, 1])


def _closed_neighbours(edge_index: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Each node and those it has an edge to, in order: where a node's list begins, [N + 1], and the lists, [L]."""
    loops = torch.arange(nodes).expand(2, -1)
    keys = edge_keys(torch.cat([edge_index, loops], 1).flip(0), max(nodes, 1)).unique()
    begin = torch.cat([torch.zeros(1, dtype=torch.long), degree(keys // max(nodes, 1), nodes).cumsum(0)])
    return begin, keys % max(nodes, 1)


def _greedy_cover(begin: Tensor, ends: Tensor, weight: Tensor, allowed: Tensor, count: int) -> Tensor:
    """The nodes whose lists add most weight that is not covered yet, one after another; [count]."""
    nodes = len(weight)
    owner = torch.arange(nodes).repeat_interleave(begin.diff())
    by_end = owner[ends.argsort(stable=True)]  # who covers a node, node by node
    first = torch.cat([torch.zeros(1, dtype=torch.long), degree(ends, nodes).cumsum(0)])
    whole = torch.zeros_like(weight).index_add_(0, owner, weight[ends])
    barred = torch.ones(nodes, dtype=torch.bool).index_fill_(0, allowed, False)
    worth, covered, picked = whole.masked_fill(barred, -torch.inf), torch.zeros_like(barred), []
    for _ in range(count):
        if float(worth.max()) < 1e-6:  # all that can be covered is covered
            worth, covered = whole.masked_fill(barred, -torch.inf), torch.zeros_like(barred)
        picked.append(node := int(worth.argmax()))
        new = ends[begin[node] : begin[node + 1]]
        new = new[~covered[new]]
        who = torch.cat([by_end[first[n] : first[n + 1]] for n in new.tolist()]) if len(new) else new
        worth.index_add_(0, who, -weight[new].repeat_interleave(first[new + 1] - first[new]))
        covered[new], barred[node], worth[node] = True, True, -torch.inf
    return torch.tensor(picked, dtype=torch.long)


def _deal(ranked: Tensor, budget: LinkBudget) -> Tensor:
    """The first of `ranked`, dealt out by the seed; where there are too few, they come again; [nodes, edges]."""
    pool = ranked[: budget.nodes * budget.edges]
    generator = torch.Generator().manual_seed(budget.seed)
    pool = pool[torch.randperm(len(pool), generator=generator)]
    return pool[torch.arange(budget.nodes * budget.edges) % len(pool)].view(budget.nodes, budget.edges)


def _distinct(count: int, size: int, seed: int) -> Tensor:
    """The first `count` different numbers of a random sequence below `size`."""
    generator = torch.Generator().manual_seed(seed)
    found: dict[int, None] = {}
    while len(found) < count:
        found |= dict.fromkeys(torch.randint(size, (64,), generator=generator).tolist())
    return torch.tensor(list(found)[:count])
