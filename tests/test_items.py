from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.utils import to_dense_batch

from fgai.errors import DataError
from fgai.graph import add_nodes, delete_edges
from fgai.items import copied, extend_batch, items_of, num_graphs, select_graphs, sort_by_graph
from loose import loose
from worlds import molecules

EDGES = torch.tensor([[0, 1], [1, 0]])


def pair(**attributes):
    """Two graphs of 2 and 3 nodes."""
    graphs: list[Any] = [Data(x=torch.full((n, 1), float(n)), edge_index=EDGES) for n in (2, 3)]
    batch = loose(Batch.from_data_list(graphs))
    for name, value in attributes.items():
        batch[name] = value
    return batch


@pytest.mark.parametrize(
    ("attributes", "rows", "kind", "count"),
    [
        ({}, None, "graphs", 2),
        ({"y": torch.zeros(2)}, None, "graphs", 2),
        ({"y": torch.zeros(5)}, None, "nodes", 5),
        ({"test_mask": torch.ones(2, dtype=torch.bool)}, None, "graphs", 2),
        ({"y": torch.zeros(2)}, 5, "nodes", 5),
        ({"y": torch.zeros(5)}, 2, "graphs", 2),
        ({"edge_label_index": torch.zeros(2, 7, dtype=torch.long)}, None, "pairs", 7),
    ],
)
def test_the_items_are_those_with_labels_or_logits(attributes, rows, kind, count):
    for data in (pair(**attributes), copied(pair(**attributes))):
        items = items_of(data, rows)
        assert (items.kind, items.count, items.batch is not None) == (kind, count, kind == "graphs")


def test_a_batch_vector_of_a_plain_graph_says_nothing_without_labels():
    data = Data(x=torch.ones(3, 1), edge_index=EDGES, batch=torch.tensor([0, 0, 1]))
    assert items_of(data).kind == "nodes" and num_graphs(data) == 2
    data.y = torch.tensor([1, 0])
    assert items_of(data).kind == "graphs"


def test_a_new_node_is_in_the_graph_it_is_linked_to_and_labels_stay():
    y, types = torch.tensor([1, 0]), torch.tensor([3, 3, 4, 5, 4])
    data = pair(y=y, node_type=types, edge_type=torch.tensor([[2, 7], [1, 7], [2, 8], [2, 8]]), n_id=torch.arange(5))
    more = loose(add_nodes(data, torch.ones(2, 1), torch.tensor([[5, 4, 6, 0], [4, 5, 0, 6]])))
    assert more.batch.tolist() == [0, 0, 1, 1, 1, 1, 0] and more.ptr.tolist() == [0, 3, 7]
    assert torch.equal(more.y, y) and more.num_graphs == 2 and not isinstance(more, Batch)
    assert more.node_type.tolist() == [3, 3, 4, 5, 4, 3, 3] and more.n_id.tolist() == [0, 1, 2, 3, 4, -1, -1]
    assert more.edge_type[4:].tolist() == [[2, 7]] * 4
    assert data.batch.tolist() == [0, 0, 1, 1, 1] and isinstance(data, Batch)


def test_edges_of_a_batch_are_deleted_and_the_labels_of_graphs_stay():
    data = pair(y=torch.tensor([1, 0]), test_mask=torch.tensor([True, False]))
    less = loose(
        delete_edges(data, torch.tensor([True, False, False, True]))
    )  # as many edges remain as there are graphs
    assert less.edge_index.tolist() == [[1, 2], [0, 3]]
    assert (
        less.y.tolist() == [1, 0]
        and less.test_mask.tolist() == [True, False]
        and less.batch.tolist() == [0, 0, 1, 1, 1]
    )
    least = loose(delete_edges(less, torch.tensor([True, False])))
    assert least.y.tolist() == [1, 0] and least.edge_index.tolist() == [[2], [3]]


@pytest.mark.parametrize(
    ("edges", "words"),
    [([[5, 5], [0, 4]], "to two"), ([[0], [1]], "node 5 to none"), ([[5, 0], [0, 4]], "to two")],
)
def test_links_between_graphs_are_refused(edges, words):
    with pytest.raises(DataError, match=words):
        add_nodes(pair(), torch.ones(1, 1), torch.tensor(edges))
    batch = torch.tensor([0, 0, 1, 1, 1])
    assert extend_batch(batch, 1, torch.tensor(edges), separate=False)[:5].tolist() == batch.tolist()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_sorted_batch_is_what_pyg_makes_of_the_same_graphs(sparse):
    more = add_nodes(pair(), torch.tensor([[7.0], [8.0]]), torch.tensor([[5, 4, 6, 0], [4, 5, 0, 6]]))
    graphs: list[Any] = [
        Data(x=torch.tensor([[2.0], [2.0], [8.0]]), edge_index=torch.tensor([[0, 1, 2, 0], [1, 0, 0, 2]])),
        Data(x=torch.tensor([[3.0], [3.0], [3.0], [7.0]]), edge_index=torch.tensor([[0, 1, 3, 2], [1, 0, 2, 3]])),
    ]
    expected = loose(Batch.from_data_list(graphs))
    if sparse:
        more.x = more.x.to_sparse()
    moved, ids = sort_by_graph(more)
    assert ids.tolist() == [0, 1, 6, 2, 3, 4, 5]
    for name in ("x", "batch", "ptr"):
        assert torch.equal(moved[name], expected[name])
    columns = [set(map(tuple, graph.edge_index.t().tolist())) for graph in (moved, expected)]
    assert columns[0] == columns[1]
    dense = [to_dense_batch(graph.x, graph.batch)[0] for graph in (moved, expected)]
    assert torch.equal(*dense)
    assert sort_by_graph(expected) == (expected, None) and sort_by_graph(7) == (7, None)


def test_selected_graphs_are_those_that_pyg_collates():
    graphs: list[Any] = molecules(5)
    batch, mask = copied(loose(Batch.from_data_list(graphs))), torch.tensor([True, False, False, True, True])
    batch.train_mask = mask
    part, expected = select_graphs(batch, mask), loose(Batch.from_data_list([graphs[0], graphs[3], graphs[4]]))
    for name in ("x", "edge_index", "batch", "ptr", "y"):
        assert torch.equal(part[name], expected[name]), name
    assert num_graphs(part) == 3 and part.train_mask.tolist() == [True] * 3


def test_features_of_graphs_go_with_their_graphs():
    graphs: list[Any] = molecules(5)
    for number, graph in enumerate(graphs):
        graph.u, graph.scale = torch.full((1, 2), float(number)), torch.tensor(float(number))
    batch = copied(loose(Batch.from_data_list(graphs)))
    batch.shared = torch.arange(7)  # no row per graph: one for all
    part = loose(select_graphs(batch, torch.tensor([False, True, False, False, True])))
    assert part.u.tolist() == [[1, 1], [4, 4]] and part.scale.tolist() == [1, 4] and part.shared.tolist() == [*range(7)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("u", torch.ones(2, 3)),  # as many rows as there are graphs, and edges
        ("v", torch.ones(6)),  # [3] per graph
        ("pair_index", torch.zeros(2, 2, dtype=torch.long)),
    ],
)
def test_attributes_that_do_not_tell_their_graph_are_refused(name, value):
    graphs: list[Any] = [Data(x=torch.ones(n, 1), edge_index=EDGES[:, :1]) for n in (2, 3)]
    data = loose(Batch.from_data_list(graphs))
    data.y, data.edge_attr = torch.tensor([0, 1]), torch.tensor([5.0, 6.0])
    part = loose(select_graphs(data, torch.tensor([False, True])))
    assert part.y.tolist() == [1] and part.edge_attr.tolist() == [6]  # by their names
    data[name] = value
    with pytest.raises(DataError, match=rf"`{name}` is .* does not tell its part for each graph; .* DataLoader"):
        select_graphs(data, torch.tensor([False, True]))


def test_adjacency_matrices_are_sorted_too():
    data = copied(pair())
    data.adj = torch.sparse_coo_tensor(data.edge_index.flip(0), torch.arange(1.0, 5), (5, 5)).coalesce()
    more = add_nodes(data, torch.ones(1, 1), torch.tensor([[5, 0], [0, 5]]))
    moved, ids = sort_by_graph(more)
    assert torch.equal(moved.adj.to_dense(), more.adj.to_dense()[ids][:, ids])
    assert torch.equal(
        moved.adj.to_dense() > 0, torch.zeros(6, 6).index_put((*moved.edge_index.flip(0),), torch.ones(6)) > 0
    )
