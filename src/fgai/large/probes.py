"""Probe nodes: seed nodes whose neighbourhoods show how many hops a model reads."""

from __future__ import annotations

import torch
from torch import Tensor

from fgai.large.sampler import CSC, sample_edges

CANDIDATES = 10_000  # nodes from which walks start
WALKS = 4  # from each of them
PROBES = 4  # of which half have few neighbours, and half are random
MAX_EDGES = 100_000  # of the neighbourhood of a probe, if there are such
MAX_EXPLORED = 2_000_000  # edges read to find the probes
TRIES = 200  # neighbourhoods explored to find them


def probe_nodes(csc: CSC, hops: int) -> Tensor:
    """Return a few nodes with other nodes `hops` + 1 steps away, against the edges; or next best ones.

    A model that reads more than `hops` hops shows it on such nodes only. Random walks find candidates, and the
    neighbourhoods of some are explored. The cost is bounded, whatever the size of the graph.

    Args:
        csc: The edges, on the CPU.
        hops: Hops that the model is said to read.

    Returns:
        Ids of at most `PROBES` nodes. In a graph without nodes so far away, the largest neighbourhoods are complete,
        and they are any nodes.

    >>> path = CSC(start=torch.tensor([0, 0, 1, 2, 3, 4]), source=torch.tensor([0, 1, 2, 3]))
    >>> probe_nodes(path, hops=2)
    tensor([3, 4])
    """
    explored: list[tuple[int, int, int]] = []
    deep = edges = 0
    for node in _candidates(csc, hops + 1):
        explored.append((*_explore(csc, node, hops), node))
        deep, edges = deep + (explored[-1][0] == _DEEP), edges + min(explored[-1][1], MAX_EDGES)
        if deep == PROBES or edges > MAX_EXPLORED:
            break
    best = min(explored)[0]
    nodes = [node for rank, _, node in sorted(explored) if rank == best]
    return torch.tensor(nodes[: 2 if best == _LARGE else PROBES])


_DEEP, _CLOSED, _LARGE, _COMPLETE = range(4)  # how well a node serves as a probe, best first


def _candidates(csc: CSC, steps: int) -> list[int]:
    """Return nodes from which walks against the edges go furthest: those of low degree and random ones in turn."""
    generator, count = torch.Generator().manual_seed(0), csc.num_nodes
    few = count <= CANDIDATES
    nodes = torch.arange(count) if few else torch.randint(count, (CANDIDATES,), generator=generator).unique()
    length = torch.stack([_walk(csc, nodes, steps, generator) for _ in range(WALKS)]).amax(0)
    far = nodes[length == length.max()]
    low, shuffled = csc.degree(far).argsort(stable=True), torch.randperm(len(far), generator=generator)
    return list(dict.fromkeys(torch.stack([far[low], far[shuffled]], 1).flatten().tolist()))[:TRIES]


def _walk(csc: CSC, nodes: Tensor, steps: int, generator: torch.Generator) -> Tensor:
    """Return how many steps a random walk against the edges goes from each node until it stops or meets itself."""
    length, walker, path = torch.zeros_like(nodes), torch.arange(len(nodes)), nodes[:, None]
    for _ in range(steps):
        alive = csc.degree(path[:, -1]) > 0
        walker, path = walker[alive], path[alive]
        start, degree = csc.start[path[:, -1]], csc.degree(path[:, -1])
        offset = (torch.rand(len(path), generator=generator, dtype=torch.double) * degree).long()
        one, other = (csc.source[start + at].long() for at in (offset, (offset + 1) % degree))
        ahead = torch.where(_visited(path, one), other, one)
        new = ~_visited(path, ahead)
        walker, path = walker[new], torch.cat([path, ahead[:, None]], 1)[new]
        length[walker] += 1
    return length


def _visited(path: Tensor, nodes: Tensor) -> Tensor:
    return (path == nodes[:, None]).any(1)


def _explore(csc: CSC, node: int, hops: int) -> tuple[int, int]:
    """Return how well a node serves as a probe, and the number of edges within `hops` + 1 hops that were counted."""
    generator, edges, added = torch.Generator(), 0, 0
    near = frontier = torch.tensor([node])
    for _ in range(hops + 1):
        added = int(csc.degree(frontier).sum())
        edges += added
        if edges > MAX_EDGES:
            return _LARGE, edges
        sources = csc.source[sample_edges(csc, frontier, -1, generator)[1]].long().unique()
        frontier = sources[~torch.isin(sources, near)]
        near = torch.cat([near, frontier])
    return _DEEP if len(frontier) else _CLOSED if added else _COMPLETE, edges
