"""A typed graph as one graph and back."""

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from fgai.errors import DataError
from fgai.graph import add_nodes, delete_edges
from fgai.items import items_of
from fgai.typed import join, rows_of, split
from loose import loose
from worlds import films


def with_edge_features():
    data = films()
    for relation, width in (("movie", "to", "actor"), 2), (("actor", "to", "movie"), 3):
        data[relation].edge_attr = torch.randn(data[relation].edge_index.size(1), width)
    return data


@pytest.mark.parametrize("sparse", [False, True])
def test_split_undoes_join(sparse):
    data = with_edge_features()
    if sparse:
        for name in data.node_types:
            data[name].x = data[name].x.to_sparse().coalesce()
    again = split(join(data)).graph
    assert set(again.node_types) == set(data.node_types) and again.edge_types == data.edge_types
    for name in data.node_types:
        assert torch.equal(again[name].x.to_dense(), data[name].x.to_dense())
    for relation in data.edge_types:
        assert torch.equal(again[relation].edge_index, data[relation].edge_index)
        if "edge_attr" in data[relation]:
            assert torch.equal(again[relation].edge_attr, data[relation].edge_attr)


def test_the_answers_come_first_whatever_the_order_of_the_types():
    joined = loose(join(films()))
    assert joined.typed.node_types == ("movie", "director", "actor")
    assert items_of(joined).count == len(joined.y) == 14
    assert [joined.typed.name(node) for node in (0, 14, 19)] == ["movie 0", "director 0", "actor 0"]
    assert joined.names[19] == "actor 0"


def test_added_and_deleted_parts_reach_the_model_by_type():
    data = with_edge_features()
    joined = loose(join(data))
    links = torch.tensor([[27, 3], [3, 27]])  # a new director, linked to movie 3 both ways
    relation = [data.edge_types.index(("director", "to", "movie")), data.edge_types.index(("movie", "to", "director"))]
    types = {"node_type": torch.tensor([1]), "edge_type": torch.tensor(relation)}
    x = torch.full((1, 6), 7.0, requires_grad=True)
    more = split(add_nodes(joined, x, links, **types)).graph
    assert more["director"].x[-1].tolist() == [7.0] * 5 and more["director"].num_nodes == 6
    assert more["director", "to", "movie"].edge_index[:, -1].tolist() == [5, 3]
    more["director"].x.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[1.0] * 5 + [0.0]]
    assert torch.equal(more["movie"].x, data["movie"].x) and not more["movie"].x.requires_grad
    fewer = split(delete_edges(joined, joined.edge_index[1] == 3)).graph
    for name in ("director", "actor"):
        edges = data[name, "to", "movie"].edge_index
        assert torch.equal(fewer[name, "to", "movie"].edge_index, edges[:, edges[1] != 3])
    assert torch.equal(loose(delete_edges(joined, joined.edge_index[1] == 3)).y, joined.y)


def test_the_row_of_an_added_answer_is_its_place_among_the_answers():
    joined = loose(join(films()))
    empty = torch.empty(2, 0, dtype=torch.long)
    types = {"node_type": torch.tensor([1, 0]), "edge_type": torch.empty(0, dtype=torch.long)}
    more = add_nodes(joined, torch.zeros(2, 6), empty, **types)
    assert rows_of(more, torch.tensor([3, 28])).tolist() == [3, 14]


def test_nodes_without_a_type_are_refused():
    joined = loose(join(films()))
    with pytest.raises(DataError, match=r"need types; attack typed graphs with fgai\.TypedInjection"):
        add_nodes(joined, torch.zeros(1, 6), torch.tensor([[27], [0]]))


def unlabelled():
    data = films()
    del data["movie"].y
    return data


def other(change):
    data = films()
    change(data)
    return data


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (unlabelled(), r"3 kinds of nodes and 4 of edges, and 0 of them have labels.*data\.answer"),
        (other(lambda d: setattr(d, "answer", "film")), r"`answer` is 'film'"),
        (other(lambda d: setattr(d["movie"], "batch_size", 3)), r"a sampled batch of a typed graph"),
        (other(lambda d: d["actor"].pop("x")), r"nodes of type 'actor' have no features"),
        (other(lambda d: setattr(d["actor"], "x", torch.ones(8, 4).long())), r"of the dtype and layout of the other"),
        (
            other(lambda d: d["movie", "to", "actor"].edge_index.add_(9)),
            r"refer to the nodes .* of type .*number the nodes of each type from 0",
        ),
        (
            other(lambda d: setattr(d["movie", "to", "studio"], "edge_index", torch.zeros(2, 1).long())),
            r"names nodes of type \['studio'\], which the graph does not have",
        ),
        (other(lambda d: d["movie", "to", "actor"].pop("edge_index")), r"has no `edge_index` \[2, E\]"),
        (other(lambda d: setattr(d["movie", "to", "actor"], "edge_attr", torch.ones(3))), r"must be floats \[E, D\]"),
    ],
)
def test_graphs_that_cannot_be_joined_are_refused_in_words(data, says):
    with pytest.raises(DataError, match=says):
        join(data)


def test_the_answer_may_be_named():
    data = unlabelled()
    data.answer = "actor"
    assert join(data).typed.answer == "actor"
    assert isinstance(data, HeteroData) and isinstance(join(data), Data)
