"""Models in half precision, under autocast, and on sparse adjacencies: they work, or say what to do."""

import copy

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn.models import GAT

import fgai
from fgai import datasets
from fgai.adjacency import follow_edges
from fgai.datasets.split import split_nodes
from fgai.errors import DataError, SettingError
from fgai.graph import add_nodes, delete_edges
from fgai.methods import METHODS

ATTACK = fgai.NodeInjection(nodes=2, edges=3, steps=2)
LARGE = split_nodes(datasets.synthetic(600, 9_000, 8, 3), 0)  # from 5,000 edges on layers are accelerated
SMALL = split_nodes(datasets.synthetic(100, 400, 8, 3), 0)
LAYOUTS = {"coo": torch.sparse_coo, "csr": torch.sparse_csr}


def model(**settings):
    torch.manual_seed(0)
    return GAT(8, 4, 2, 3, heads=2, **settings)


def with_adjacency(graph, layout, value=1.0):
    ones = torch.full((graph.num_edges,), value)
    adjacency = torch.sparse_coo_tensor(graph.edge_index.flip(0), ones, (graph.num_nodes,) * 2).coalesce()
    found = copy.copy(graph)
    found.adj = adjacency if layout == torch.sparse_coo else adjacency.to_sparse(layout=layout)
    return found


def on_adjacency(model, data):
    return model(data.x, data.adj)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("v2", [False, True], ids=["gat", "gatv2"])
def test_half_precision_is_read_audited_and_certified_on_a_large_graph(dtype, v2):
    graph, half = copy.copy(LARGE), model(v2=v2).to(dtype)
    graph.x = graph.x.to(dtype)
    found, plain = fgai.read(half, graph), fgai.read(copy.deepcopy(half).float(), LARGE)
    assert found.logits.dtype == dtype
    assert (found.logits.float() - plain.logits).abs().max() < 0.05 * plain.logits.abs().max()
    assert fgai.audit(half, graph, ATTACK, seeds=1).grades.line
    assert fgai.certify(half, graph, k=3, steps=1).certified.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", METHODS)
def test_training_in_half_precision_is_refused_in_a_sentence(name, dtype):
    graph = copy.copy(SMALL)
    graph.x = graph.x.to(dtype)
    with pytest.raises(SettingError, match=r"weights in torch.*float16.*model\.float\(\)"):
        METHODS[name](epochs=1).fit(model().to(dtype), graph)


def test_autocast_in_the_call():
    def call(model, data):
        with torch.autocast("cpu", torch.bfloat16):
            return model(data.x, data.edge_index)

    net = model()
    found, plain = fgai.read(net, LARGE, call).logits, fgai.read(net, LARGE).logits
    assert 0 < (found - plain).abs().max() < 0.05 * plain.abs().max()
    assert fgai.audit(net, LARGE, ATTACK, seeds=1, call=call).grades.line
    fit = fgai.FGAI(epochs=2, adversary=ATTACK).fit(net, LARGE, call=call)
    assert all(torch.isfinite(p).all() for p in fit.model.parameters())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("graph", [SMALL, LARGE], ids=["small", "large"])
def test_a_sparse_adjacency_says_what_its_edges_say(layout, graph):
    net, sparse = model(), with_adjacency(graph, LAYOUTS[layout])
    found, plain = fgai.read(net, sparse, on_adjacency), fgai.read(net, graph)
    assert torch.allclose(found.logits, plain.logits, atol=1e-5)
    edges = plain.explanation.mean_heads().coalesce()
    assert torch.allclose(found.explanation.mean_heads().weights_at(edges.edge_index), edges.weight, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_attack_and_a_training_reach_a_model_that_is_called_on_its_adjacency(layout):
    net, sparse = model().double(), with_adjacency(SMALL, LAYOUTS[layout])
    sparse.x = SMALL.x.double()
    plain = copy.copy(sparse)
    del plain.adj
    ways = ((sparse, on_adjacency), (plain, None))
    one, two = (fgai.audit(net, graph, ATTACK, seeds=1, sample=20, call=call) for graph, call in ways)
    for name in ("f1", "g_tvd", "g_jsd", "overlap", "f_slope_plus", "f_slope_minus"):
        assert one.attacked[name].mean == pytest.approx(two.attacked[name].mean, abs=1e-6), name
    assert one.attacked["g_tvd"].mean > 0
    proofs = [fgai.certify(net, graph, k=3, steps=1, call=call) for graph, call in ways]
    assert torch.allclose(proofs[0].certified, proofs[1].certified, equal_nan=True)
    method = fgai.FGAI(epochs=2, adversary=ATTACK)
    fits = [method.fit(net, graph, call=call) for graph, call in ways]
    assert fits[0].best.terms == pytest.approx(fits[1].best.terms, abs=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("by_target", [True, False])
def test_an_adjacency_follows_its_edges(layout, by_target):
    edges = torch.tensor([[0, 0, 1], [1, 2, 2]])
    at, values = edges.flip(0) if by_target else edges, torch.tensor([2.0, 3.0, 4.0])
    adjacency = torch.sparse_coo_tensor(at, values, (3, 3)).coalesce().to_sparse(layout=LAYOUTS[layout])
    graph = Data(x=torch.ones(3, 1), edge_index=edges, adj=adjacency)
    more = add_nodes(graph, torch.ones(1, 1), torch.tensor([[3], [0]])).adj
    less = delete_edges(graph, torch.tensor([True, False, False])).adj
    expected = torch.zeros(4, 4)
    expected[0, 3 if not by_target else 0], expected[0, 1], expected[0, 2], expected[1, 2] = 0, 2, 3, 4
    expected[3, 0] = 3  # the median of the others
    assert more.layout == less.layout == LAYOUTS[layout]
    assert torch.equal(more.to_dense(), expected.t() if by_target else expected)
    expected = expected[:3, :3].clone()
    expected[0, 1] = 0
    assert torch.equal(less.to_dense(), expected.t() if by_target else expected)


def test_an_adjacency_of_other_edges_is_refused():
    graph = with_adjacency(SMALL, torch.sparse_coo)
    graph.adj = (graph.adj + torch.eye(100).to_sparse()).coalesce()
    with pytest.raises(DataError, match="`adj` has other entries than `edge_index`"):
        follow_edges(copy.copy(graph), graph)
