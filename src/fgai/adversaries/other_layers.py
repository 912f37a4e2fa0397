"""Links in layers without attention: searches that hide candidate links in attention must not try thousands at once."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.adversaries.base import Best
from fgai.adversaries.perturbation import Perturbation, pairs_of, undirected
from fgai.graph import add_edges, degree, locate, require
from fgai.reading import Reader, Reading

CHECKED = 1_000  # random links of the check
HIDDEN = -1e4  # added to the score of a link: beside another one, its weight is 0
TOLERANCE = 1e-3  # relative to the largest logit
SHARES = (1, 5, 25, 125)  # the candidates of a search, divided by these
DRAWS = 10  # sets of random links


def uses_links_elsewhere(read: Reader, graph: Data, clean: Reading, seed: int = 0) -> bool:
    """Return whether new links change the logits although no attention layer over edges gives them weight.

    Two forward passes, with random links between nodes that have a neighbour already.

    Args:
        read: The reader of the model, in evaluation mode.
        graph: The graph.
        clean: Its reading.
        seed: The seed of the random links.

    >>> from torch_geometric.nn import GATConv
    >>> ring = Data(x=torch.rand(9, 2), edge_index=torch.stack([torch.arange(9), torch.arange(9).roll(1)]))
    >>> read = Reader(GATConv(2, 2).eval())
    >>> uses_links_elsewhere(read, ring, read(ring))
    False
    """
    edges, generator = require(graph, "edge_index"), torch.Generator().manual_seed(seed)
    linked = degree(edges[1], int(graph.num_nodes or 0)) > 0
    pairs = random_pairs(pairs_of(edges), len(linked), CHECKED, generator)
    new = undirected(pairs[:, linked[pairs].all(0)])
    if not new.size(1):
        return False
    augmented = add_edges(graph, new)
    with torch.no_grad():
        sites = {site: a for site, a in read(augmented).attention.items() if a.over == "edges"}
        hidden = {site: HIDDEN * (locate(a.edge_index, new) >= 0).to(a.weight) for site, a in sites.items()}
        scores = {site: score[:, None].expand_as(sites[site].weight) for site, score in hidden.items()}
        logits = read(augmented, score_delta=scores).logits
    rows = int(graph.get("batch_size") or len(logits))  # of a sampled batch, the other rows may be left out
    before, now = clean.logits[:rows].detach(), logits[:rows]
    allowed = max(TOLERANCE, 16 * torch.finfo(now.dtype).eps) * before.abs().max()
    return bool((now - before).abs().max() > allowed)


def random_pairs(taken: Tensor, nodes: int, count: int, generator: torch.Generator) -> Tensor:
    """Return random pairs that are not in `taken`, at most `count`; the smaller id first, [2, P].

    >>> random_pairs(torch.tensor([[0, 0], [1, 2]]), 3, 9, torch.Generator().manual_seed(0)).tolist()
    [[1], [2]]
    """
    pairs = pairs_of(torch.randint(nodes, (2, 2 * count), generator=generator).to(taken.device))
    pairs = pairs[:, locate(pairs, taken) < 0]
    return pairs[:, torch.randperm(pairs.size(1), generator=generator)[:count]]


def sizes(candidates: int, budget: int) -> list[int]:
    """Return the numbers of candidates to search with, the largest first; the others are at least twice the budget.

    >>> sizes(10_000, 200), sizes(300, 200)
    ([10000, 2000, 400], [300])
    """
    smaller = {max(candidates // share, 2 * budget) for share in SHARES}
    return sorted({candidates, *(size for size in smaller if size < candidates)}, reverse=True)


def evaluate_draws(best: Best, graph: Data, count: int, seed: int, both_ways: bool) -> None:
    """Evaluate ten sets of `count` random new links, in both directions or, otherwise, from the smaller id."""
    edges, generator = require(graph, "edge_index"), torch.Generator().manual_seed(seed)
    for _ in range(DRAWS):
        pairs = random_pairs(pairs_of(edges), int(graph.num_nodes or 0), count, generator)
        best.evaluate(Perturbation(added=undirected(pairs) if both_ways else pairs))
