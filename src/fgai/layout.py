"""Places of the nodes of a small graph in the plane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Point = tuple[float, float]


def plane_layout(nodes: int, pairs: Iterable[tuple[int, int]]) -> list[Point]:
    """Return a place for each node, by the distances in the graph (Kamada and Kawai 1989); the same each time.

    Parts that no edge links are as far apart as the largest distance within a part, and one more.

    Args:
        nodes: The number of nodes.
        pairs: The edges.

    >>> from math import dist
    >>> places = plane_layout(3, [(0, 1), (1, 2)])
    >>> dist(places[0], places[2]) > 1.9 * dist(places[0], places[1])
    True
    """
    import networkx  # slow to import

    graph: Any = networkx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(pairs)
    distance = dict(networkx.all_pairs_shortest_path_length(graph))
    apart = 1 + max((max(row.values()) for row in distance.values()), default=0)
    distance = {one: {other: row.get(other, apart) for other in range(nodes)} for one, row in distance.items()}
    places = networkx.kamada_kawai_layout(graph, dist=distance)
    return [(float(places[node][0]), float(places[node][1])) for node in range(nodes)]
