"""Self-loops that are merged into sorted edges, and edges whose order nobody sees."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv
from torch_geometric.utils import add_self_loops

from fgai.graph import delete_edges, edge_keys, require, sort_edges
from fgai.kernels.loops import add_sorted_loops
from fgai.kernels.pyg import accelerated
from fgai.reading import open_reader


def some_graph(nodes: int = 300, edges: int = 8_000, seed: int = 0) -> Data:
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    ends = ends[:, ends[0] != ends[1]]
    return Data(x=torch.randn(nodes, 6, generator=generator), edge_index=ends)


@pytest.mark.parametrize("nodes", [300, 250, 400])  # as many as the edges have, fewer as in a bipartite graph, and more
def test_loops_are_merged_where_sorting_would_put_them(nodes):
    edges = sort_edges(some_graph()).edge_index
    assert edges is not None
    merged, _ = add_sorted_loops(edges, num_nodes=nodes)
    by_hand = add_self_loops(edges, num_nodes=nodes)[0]
    assert torch.equal(merged, by_hand[:, edge_keys(by_hand, 400).argsort(stable=True)])
    assert torch.equal(add_sorted_loops(edges.int(), num_nodes=nodes)[0], merged)


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv])
def test_the_order_of_edges_changes_no_bit_of_an_output(layer):
    conv, graph = layer(6, 4, heads=2).eval(), some_graph()
    with accelerated(conv), torch.no_grad():
        for one in (graph, sort_edges(graph), delete_edges(sort_edges(graph), torch.rand(graph.num_edges) < 0.2)):
            hidden = conv(one.x, one.edge_index)
            seen, (edges, weight) = conv(one.x, one.edge_index, return_attention_weights=True)
            assert torch.equal(hidden, seen)
            assert torch.equal(
                edges[:, : one.num_edges], require(one, "edge_index")
            )  # as PyG returns them, the loops last
            assert len(weight) == one.num_edges + 300


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv])
def test_weights_that_a_model_uses_itself_keep_their_order_in_training(layer):
    conv, graph = layer(6, 4, heads=2).eval(), some_graph()
    with torch.no_grad():
        plain, (edges, weight) = conv(graph.x, graph.edge_index, return_attention_weights=True)
        with accelerated(conv, exact=False):
            by_name = conv(graph.x, graph.edge_index, return_attention_weights=True)
            by_place = conv(graph.x, graph.edge_index, None, *([None] * (layer is GATConv)), True)
    for out, (own_edges, own_weight) in (by_name, by_place):
        assert torch.equal(own_edges, edges)
        torch.testing.assert_close(out, plain, atol=1e-5, rtol=0)
        torch.testing.assert_close(own_weight, weight, atol=1e-5, rtol=0)


def test_products_of_constant_features_are_computed_once_and_cannot_be_spoilt():
    class InPlace(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.conv = torch.nn.Linear(6, 5), GATConv(5, 3)

        def forward(self, x, edge_index):
            return self.conv(self.first(x).relu_(), edge_index)

    model, graph = InPlace(), some_graph()
    with torch.no_grad():
        truth = model.eval()(graph.x, graph.edge_index)
    with open_reader(model) as read:
        for _ in range(3):
            assert torch.allclose(read(graph).logits, truth, atol=1e-5)
        require(graph, "x").add_(1)  # a feature changes in place: the product is computed again
        assert torch.allclose(read(graph).logits, model(graph.x, graph.edge_index), atol=1e-5)
        assert not torch.allclose(read(graph).logits, truth, atol=1e-3)
