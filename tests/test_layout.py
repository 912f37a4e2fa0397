from itertools import combinations
from math import dist

import networkx
import pytest

from fgai.layout import plane_layout


def test_distances_in_the_plane_follow_those_in_the_graph():
    graph = networkx.path_graph(5)
    graph.add_edges_from([(1, 5), (3, 6)])
    places = plane_layout(7, graph.edges)
    steps = dict(networkx.all_pairs_shortest_path_length(graph))
    ratio = [dist(places[a], places[b]) / steps[a][b] for a, b in combinations(range(7), 2)]
    assert max(ratio) / min(ratio) < 1.6
    assert plane_layout(7, graph.edges) == places


def test_a_ring_is_round():
    places = plane_layout(6, [(node, (node + 1) % 6) for node in range(6)])
    sides = [dist(places[node], places[(node + 1) % 6]) for node in range(6)]
    assert sides == pytest.approx([sides[0]] * 6, rel=1e-2)


def test_parts_without_a_link_keep_their_size_and_stay_apart():
    places = plane_layout(8, [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6)])  # 7 is alone
    one, other = [places[node] for node in range(4)], [places[node] for node in (4, 5, 6)]
    assert min(dist(a, b) for a in one for b in (*other, places[7])) > 0.8 * dist(one[0], one[1])
    assert dist(other[0], other[2]) > 0.6 * dist(one[0], one[2])


@pytest.mark.parametrize("nodes", [0, 1, 2])
def test_few_nodes_have_places_too(nodes):
    assert len(set(plane_layout(nodes, []))) == nodes
