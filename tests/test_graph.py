import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from fgai.errors import DataError, MatchError
from fgai.graph import (
    add_edges,
    add_nodes,
    degree,
    delete_edges,
    edge_keys,
    locate,
    match,
    require,
    segment_sum,
    sort_edges,
    union,
)
from loose import loose
from strategies import edge_index, edge_lists

NODES = 5
pairs = edge_lists(NODES)


def labelled(dense=True, **more):
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    return Data(
        x=x if dense else x.to_sparse(),
        edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 1, 0]]),
        edge_attr=torch.arange(8.0).view(4, 2),
        edge_type=torch.tensor([0, 1, 0, 1]),
        y=torch.tensor([2, 0, 1]),
        train_mask=torch.tensor([True, False, True]),
        pe=torch.ones(3, 4, dtype=torch.double),
        scale=torch.tensor(2.0),
        name="small",
        **more,
    )


def same_graph(one, two):
    one, two = one.to_dict(), two.to_dict()
    return one.keys() == two.keys() and all(same(one[name], two[name]) for name in one)


def same(one, two):
    if isinstance(one, torch.Tensor):
        return torch.equal(one.to_dense(), two.to_dense()) and one.is_sparse == two.is_sparse
    return one == two


@given(pairs)
def test_keys_are_equal_where_both_ends_are_and_sort_by_target(edges):
    keys = edge_keys(edge_index(edges), base=NODES).tolist()
    by_key = [edge for _, edge in sorted(zip(keys, edges, strict=True))]
    assert by_key == sorted(edges, key=lambda edge: edge[::-1])
    assert len(set(keys)) == len(set(edges))


@given(pairs, pairs)
def test_an_edge_is_found_whatever_its_row_and_of_repeated_ones_the_first(asked, known):
    expected = [known.index(edge) if edge in known else -1 for edge in asked]
    assert locate(edge_index(asked), edge_index(known)).tolist() == expected


@given(pairs.flatmap(lambda known: st.tuples(st.just(known), st.permutations(known))))
def test_shuffled_edges_are_all_matched(both):
    known, asked = map(edge_index, both)
    assert torch.equal(known[:, match(asked, known)], asked)


def test_an_edge_of_a_node_beyond_the_known_ones_is_not_found():
    assert locate(torch.tensor([[9, 0], [0, 9]]), torch.tensor([[0], [1]])).tolist() == [-1, -1]


def test_an_unmatched_edge_is_named_and_counted():
    with pytest.raises(MatchError, match=r"2 of 3 edges are not among the 1 given, the first is 4 -> 0"):
        match(torch.tensor([[0, 4, 1], [1, 0, 0]]), torch.tensor([[0], [1]]))


@given(pairs)
def test_the_degree_counts_arriving_edges(edges):
    expected = [sum(target == node for _, target in edges) for node in range(NODES + 1)]
    assert degree(edge_index(edges)[1], NODES + 1).tolist() == expected


@given(pairs, st.sampled_from([(), (2,), (2, 3)]))
def test_sums_by_index_equal_a_loop(edges, shape):
    value = torch.arange(1.0, len(edges) * 6 + 1)[: len(edges) * torch.Size(shape).numel()].view(-1, *shape)
    expected = torch.zeros(NODES, *shape)
    for row, (_, target) in enumerate(edges):
        expected[target] += value[row]
    assert torch.equal(segment_sum(value, edge_index(edges)[1], NODES), expected)


@pytest.mark.parametrize("dense", [True, False])
def test_added_nodes_and_edges_come_last_and_other_attributes_are_filled(dense):
    x, edges = torch.tensor([[5.0, 0.0], [0.0, 6.0]]), torch.tensor([[3, 4, 0], [0, 3, 4]])
    more = loose(add_nodes(labelled(dense), x, edges))
    assert more.x.is_sparse is not dense
    assert more.x.to_dense().tolist() == [[1, 0], [0, 2], [3, 4], [5, 0], [0, 6]]
    assert more.edge_index.tolist() == [[0, 1, 1, 2, 3, 4, 0], [1, 0, 1, 0, 0, 3, 4]]
    assert more.edge_attr.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], *[[2, 3]] * 3]  # the lower median
    assert more.edge_type.tolist() == [0, 1, 0, 1, 0, 0, 0]  # the most frequent type, of equal ones the smallest
    assert more.y.tolist() == [2, 0, 1, -1, -1]
    assert more.train_mask.tolist() == [True, False, True, False, False]
    assert more.pe.tolist() == [[1] * 4] * 3 + [[0] * 4] * 2
    assert (more.pe.dtype, more.train_mask.dtype, more.y.dtype) == (torch.double, torch.bool, torch.long)
    assert (more.num_nodes, float(more.scale), more.name) == (5, 2.0, "small")
    assert more.validate()


@pytest.mark.parametrize("x", [torch.tensor([4, 0, 7]), torch.tensor([[4], [0], [7]]), None])
def test_edges_are_added_to_a_graph_of_ids_or_without_features(x):
    data = Data(x=x, edge_index=torch.tensor([[0], [1]]), pe=torch.ones(3, 2), edge_weight=torch.ones(1), num_nodes=3)
    more = loose(add_edges(data, torch.tensor([[2, 1], [0, 0]])))
    assert more.edge_index.tolist() == [[0, 2, 1], [1, 0, 0]] and more.edge_weight.tolist() == [1, 1, 1]
    assert (more.x is None) == (x is None) and same(more.x, x)
    assert more.num_nodes == 3 and more.pe.shape == (3, 2)
    with pytest.raises(DataError, match="the graph has no `x`"):
        add_nodes(Data(edge_index=data.edge_index, num_nodes=3), torch.ones(1, 1), torch.tensor([[3], [0]]))


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("more", [{}, {"num_nodes": 3}])
def test_the_original_stays_as_it_was_when_nodes_are_added_or_edges_deleted(dense, more):
    data, before = labelled(dense, **more), labelled(dense, **more)
    add_nodes(data, torch.ones(2, 2), torch.tensor([[3], [0]])).x.mul_(7)
    delete_edges(data, torch.tensor([True, False, False, True]))
    assert same_graph(data, before)


def test_an_explicit_number_of_nodes_grows_too():
    assert add_nodes(labelled(num_nodes=3), torch.ones(2, 2), torch.tensor([[3], [0]])).num_nodes == 5


@pytest.mark.parametrize("dense", [True, False])
def test_gradients_reach_every_entry_of_the_new_rows_also_exact_zeros(dense):
    x = torch.tensor([[0.0, 1.0], [0.0, 0.0]], requires_grad=True)
    factor = torch.tensor([[2.0, 3.0, 5.0], [7.0, 11.0, 13.0]])
    more = add_nodes(labelled(dense), x, torch.tensor([[3, 4], [0, 0]]))
    (more.x @ factor).sum().backward()
    assert x.grad.tolist() == [[10.0, 31.0]] * 2  # row sums of `factor`
    assert dense or more.x._nnz() == 4 + x.numel()


def test_no_nodes_and_no_edges_add_nothing():
    data = labelled()
    assert same_graph(add_nodes(data, torch.empty(0, 2), torch.empty(2, 0, dtype=torch.long)), data)


@pytest.mark.parametrize("missing", ["x", "edge_index"])
def test_nodes_need_features_and_edges_to_join(missing):
    data = labelled(num_nodes=3)
    del data[missing]
    with pytest.raises(DataError, match=f"`{missing}`"):
        add_nodes(data, torch.ones(1, 2), torch.tensor([[3], [0]]))


@given(st.data(), pairs)
def test_deleting_edges_keeps_the_rest_in_order_with_their_attributes(draw, edges):
    gone = draw.draw(st.lists(st.booleans(), min_size=len(edges), max_size=len(edges)))
    data = Data(
        x=torch.ones(NODES, 1),
        edge_index=edge_index(edges),
        edge_attr=torch.arange(len(edges)).view(-1, 1),
        edge_y=torch.arange(len(edges)),
        y=torch.arange(NODES),
    )
    left = loose(delete_edges(data, torch.tensor(gone, dtype=torch.bool)))
    kept = [row for row in range(len(edges)) if not gone[row]]
    assert left.edge_index.t().tolist() == [list(edges[row]) for row in kept]
    assert left.edge_attr.flatten().tolist() == left.edge_y.tolist() == kept
    assert (left.num_nodes, left.y.tolist()) == (NODES, list(range(NODES)))


@given(st.integers(0, 3), st.integers(0, 3))
def test_rows_added_to_sparse_features_store_every_entry(rows, columns):
    x = torch.arange(float(rows * columns)).view(rows, columns).sub(2).relu()
    nothing = Data(x=torch.zeros(0, columns).to_sparse(), edge_index=torch.empty(2, 0, dtype=torch.long))
    stored = loose(add_nodes(nothing, x, torch.empty(2, 0, dtype=torch.long))).x
    assert stored.is_coalesced()
    assert stored.values().numel() == x.numel()
    assert torch.equal(stored.to_dense(), x)


def test_links_to_predict_keep_their_two_rows_when_nodes_are_added():
    data = Data(x=torch.zeros(4, 1), edge_index=torch.tensor([[0, 1], [1, 0]]))
    data.edge_label_index = torch.tensor([[2, 3], [3, 2]])  # as many as there are edges
    more = add_nodes(data, torch.ones(1, 1), torch.tensor([[4], [0]]))
    assert more.edge_label_index.tolist() == [[2, 3], [3, 2]]


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_the_union_of_sorted_keys_is_that_of_the_sets(one, other):
    first, second = (torch.tensor(sorted(keys), dtype=torch.long) for keys in (one, other))
    keys, at, among = union(first, second)
    assert keys.tolist() == sorted(one | other)
    assert torch.equal(keys[at], first) and torch.equal(keys[among], second)


def test_edges_are_sorted_with_what_belongs_to_them():
    graph = sort_edges(labelled())
    assert graph.edge_index.tolist() == [[1, 2, 0, 1], [0, 0, 1, 1]]
    assert graph.edge_type.tolist() == [1, 1, 0, 0]
    assert graph.edge_attr[:, 0].tolist() == [2.0, 6.0, 0.0, 4.0]
    assert torch.equal(require(graph, "y"), require(labelled(), "y"))


def test_keys_of_int32_edges_do_not_overflow():
    edges = torch.tensor([[5, 99_999], [99_998, 99_999]])
    assert edge_keys(edges.int(), 100_000).tolist() == edge_keys(edges, 100_000).tolist() == [9_999_800_005, 10**10 - 1]
