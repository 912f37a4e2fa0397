import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components
from torch_geometric.data import Data
from torch_geometric.utils import to_scipy_sparse_matrix

import fgai
from fgai import backbones, datasets
from fgai.adversaries import GAINS
from fgai.backbones import BACKBONES, build, laplacian_encodings
from fgai.backbones.base import dropout
from fgai.calling import call_by_signature
from fgai.datasets.split import split_links
from fgai.errors import DataError, UnknownNameError
from fgai.graph import add_nodes
from fgai.reading import read
from fgai.seeding import seeded
from loose import loose
from strategies import generators
from worlds import asked

each = pytest.mark.parametrize("name", BACKBONES)


def sparse_and_dense(community, name):
    """The same graph twice; three of four features are zero."""
    dense = BACKBONES[name].prepare(asked(community.clone(), name))
    dense.x = dense.x * (dense.x > 0.7)
    sparse = dense.clone()
    sparse.x = dense.x.to_sparse()
    return sparse, dense


@each
def test_sparse_features_give_the_logits_of_dense_ones(community, name):
    sparse, dense = sparse_and_dense(community, name)
    model = build(name, dense).eval()
    torch.testing.assert_close(call_by_signature(model, sparse), call_by_signature(model, dense), rtol=0, atol=1e-5)


@each
def test_sparse_features_give_the_gradients_of_dense_ones(community, name):
    sparse, dense = sparse_and_dense(community, name)
    with seeded(0):
        model = BACKBONES[name](16, 4, dropout=0.0).train()
    loss = [call_by_signature(model, graph).logsumexp(1).mean() for graph in (sparse, dense)]
    gradients = [torch.autograd.grad(each, list(model.parameters()), materialize_grads=True) for each in loss]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)


@each
@pytest.mark.parametrize("training", [False, True])
def test_gradients_to_added_nodes_are_those_of_dense_features(community, name, training):
    edges, gradients = torch.tensor([[200, 201], [0, 1]]), []
    with seeded(0):
        model = BACKBONES[name](16, 4, dropout=0.0).train(training)
    for graph in sparse_and_dense(community, name):
        x = torch.eye(2, 16).requires_grad_()
        call_by_signature(model, add_nodes(graph, x, edges)).logsumexp(1).sum().backward()
        gradients.append(x.grad)
    assert bool(gradients[1].all())
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)


@each
def test_a_backbone_is_built_by_its_seed_and_leaves_the_generators_alone(community, name):
    before = generators()
    one, same, other = (build(name, asked(community, name), seed=seed).state_dict() for seed in (1, 1, 2))
    assert generators() == before
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


@each
def test_the_hidden_layer_has_eight_heads_and_the_explanation_one(community, name):
    graph = BACKBONES[name].prepare(asked(community, name))
    reading = read(build(name, graph), graph)
    *hidden, last = [attention.heads for attention in reading.attention.values() if attention.over == "edges"]
    special = {"gat-graphs": [8, 8], "gatv2-graphs": [8, 8], "soft-median": [1]}
    assert hidden == special.get(name, [8]) and last == 1
    shapes = {"links": (graph.num_edges, 2), "graphs": (1, 4)}
    assert reading.logits.shape == shapes.get(name.rpartition("-")[2], (200, 4))


@each
def test_preparing_leaves_the_graph_as_it_was(community, name):
    names = community.keys()
    BACKBONES[name].prepare(community)
    assert community.keys() == names


@pytest.mark.parametrize("missing", ["x", "y"])
def test_a_backbone_needs_features_and_labels(missing):
    data = Data(x=torch.ones(2, 1), y=torch.tensor([0, 1]))
    del data[missing]
    with pytest.raises(DataError, match=f"`{missing}`"):
        build("gat", data)


def test_an_unknown_backbone_is_answered_with_the_nearest(community):
    with pytest.raises(UnknownNameError, match="did you mean 'gat'"):
        build("gatt", community)


def test_dropout_of_sparse_features_keeps_their_mean_and_their_zeros():
    dense = (torch.arange(200_000) % 4 == 0).float().view(400, 500) * 3
    x = dense.to_sparse()
    with seeded(0):
        dropped = dropout(x, 0.6, training=True)
    values = dropped.to_dense()[dense > 0]
    assert not dropped.to_dense()[dense == 0].any()
    assert values.unique().tolist() == pytest.approx([0, 3 / 0.4], rel=1e-4)  # sixteen bits to decide with
    deviation = (0.6 * 0.4 / 50_000) ** 0.5
    assert float((values == 0).float().mean()) == pytest.approx(0.6, abs=4 * deviation)
    assert float(values.mean()) == pytest.approx(3, abs=4 * 3 / 0.4 * deviation)
    assert torch.equal(x.to_dense(), dense)


def test_dropout_does_nothing_in_evaluation_and_the_same_to_dense_features_as_to_sparse_ones():
    dense = torch.rand(20, 30)
    for x in (dense, dense.to_sparse()):
        assert torch.equal(dropout(x, 0.6, training=False).to_dense(), dense)
    runs = []
    for x in (dense, dense.to_sparse()):
        with seeded(1):
            runs.append(dropout(x, 0.6, training=True).to_dense())
    assert torch.equal(*runs) and bool((runs[0] == 0).any())


def test_gradients_reach_stored_features_that_are_not_dropped():
    x = torch.eye(50).to_sparse().requires_grad_()
    with seeded(2):
        dropped = dropout(x, 0.5, training=True)
    torch.sparse.sum(dropped).backward()
    assert torch.equal(x.grad.to_dense().diagonal(), dropped.detach().to_dense().diagonal())  # 2 or 0 each


def ring(nodes, chords):
    """A ring with random chords, in one direction only: connected, and without symmetry."""
    rng = np.random.default_rng(nodes)
    ends = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes])
    return torch.from_numpy(np.concatenate([ends, rng.integers(0, nodes, (2, chords))], axis=1))


def dense_encodings(edge_index, nodes, size):
    """The definition: L = I - D^-1/2 A D^-1/2, its eigenvectors by rising eigenvalue, but the first."""
    adjacency = np.zeros((nodes, nodes))
    adjacency[edge_index[0], edge_index[1]] = adjacency[edge_index[1], edge_index[0]] = 1
    root = np.sqrt(adjacency.sum(1))
    values, vectors = np.linalg.eigh(np.eye(nodes) - adjacency / root / root[:, None])
    return values[: size + 2], vectors[:, 1 : size + 1]


@pytest.mark.parametrize(("nodes", "tolerance", "error"), [(40, 1e-3, 1e-5), (150, 1e-8, 1e-5), (150, 1e-3, 0.02)])
def test_encodings_are_the_eigenvectors_of_the_dense_laplacian(nodes, tolerance, error):
    edges = ring(nodes, chords=nodes)
    values, expected = dense_encodings(edges, nodes, size=8)
    assert connected_components(to_scipy_sparse_matrix(edges, num_nodes=nodes))[0] == 1
    assert np.diff(values).min() > 1e-3  # so that each eigenvector is one
    found = laplacian_encodings(edges, nodes, tolerance=tolerance).double().numpy()
    assert found.shape == (nodes, 8)
    signs = np.sign((found * expected).sum(0))
    np.testing.assert_allclose(found, expected * signs, rtol=0, atol=error)


@pytest.mark.parametrize("nodes", [40, 150])
def test_the_largest_entry_of_an_encoding_is_positive(nodes):
    found = laplacian_encodings(ring(nodes, chords=nodes), nodes)
    assert bool((found.max(0).values >= found.abs().max(0).values).all())


@pytest.mark.parametrize("nodes", [40, 150])
def test_encodings_are_the_same_every_time_and_whichever_way_the_edges_point(nodes):
    edges = ring(nodes, chords=nodes)
    before = generators()
    found = laplacian_encodings(edges, nodes)
    assert generators() == before
    for same in (edges, edges.flip(0), torch.cat([edges, edges.flip(0)], dim=1)):
        assert torch.equal(laplacian_encodings(same, nodes), found)


@pytest.mark.parametrize("nodes", [1, 3, 8, 9])
def test_a_graph_too_small_for_all_encodings_gets_zeros_at_the_end(nodes):
    edges = torch.stack([torch.arange(nodes - 1), torch.arange(1, nodes)])
    found = laplacian_encodings(edges, nodes)
    filled = min(8, nodes - 1)
    assert found.shape == (nodes, 8)
    assert not found[:, filled:].any()
    torch.testing.assert_close(found[:, :filled].t() @ found[:, :filled], torch.eye(filled))


@pytest.mark.parametrize("nodes", [40, 150])
def test_isolated_nodes_do_no_harm(nodes):
    found = laplacian_encodings(ring(nodes, chords=nodes), nodes + 5)
    assert bool(found.isfinite().all())
    assert float(found[nodes:].abs().max()) < 1e-2
    torch.testing.assert_close(found[:nodes], laplacian_encodings(ring(nodes, chords=nodes), nodes), rtol=0, atol=0.05)


@pytest.mark.parametrize(("chords", "size"), [(None, 8), (300, 64)], ids=["no edges", "64 encodings"])
def test_encodings_of_large_graphs_without_edges_or_in_great_number_can_be_had(chords, size):
    edges = ring(200, chords) if chords else torch.empty(2, 0, dtype=torch.long)
    assert laplacian_encodings(edges, 200, size=size).shape == (200, size)


@pytest.mark.parametrize("name", ["gat-links", "gatv2-links"])
def test_a_pair_is_a_link_by_the_product_of_its_two_embeddings(name):
    data = loose(split_links(datasets.synthetic(nodes=60, edges=200), seed=0))
    model = backbones.build(name, data).eval()
    base = super(backbones.GATLinks, loose(model))
    z, logits = base.forward(data.x, data.edge_index), fgai.read(model, data).logits
    assert logits[:, 1].sub((z @ z.t())[tuple(data.edge_label_index)]).abs().max() < 1e-4
    assert not logits[:, 0].any()


def test_injected_nodes_leave_the_pairs_as_they_were():
    data = split_links(datasets.synthetic(nodes=60, edges=200), seed=0)
    model = backbones.build("gat-links", data).eval()
    read = fgai.Reader(model)
    attacked = fgai.NodeInjection(2, 3, steps=2)(read, data, GAINS["cross-entropy"](read(data).detach()))
    assert attacked.logits.shape == (data.edge_label_index.size(1), 2)
    for name in ("y", "test_mask", "edge_label_index"):
        assert torch.equal(attacked.graph[name], data[name])
    report = fgai.audit(model, data, fgai.NodeInjection(2, 3, steps=2), seeds=1)
    assert 0 <= report.attacked["auc"].mean <= 1


@pytest.mark.parametrize(("backbone", "data"), [("gat", "synthetic-links"), ("gat-links", "synthetic")])
def test_nodes_and_pairs_are_not_mistaken_for_each_other(backbone, data):
    with pytest.raises(DataError, match="use a backbone for"):
        build(backbone, datasets.load(data))


def test_a_large_row_sends_a_large_message_in_gat_and_not_in_gat_norm(community):
    ratios = {}  # of the message of a row that grows a hundredfold to the message before
    for name in ("gat", "gat-norm"):
        model, rows = loose(build(name, community).eval()), []
        model.conv1.register_forward_pre_hook(lambda _, inputs, rows=rows: rows.append(inputs[0]))
        for size in (1.0, 100.0):
            call_by_signature(model, Data(x=community.x * size, edge_index=community.edge_index))
        small, large = (model.conv1.lin(row).norm(dim=1) for row in rows)
        ratios[name] = float((large / small).detach().max())
    assert ratios["gat"] == pytest.approx(100, rel=1e-3)
    assert ratios["gat-norm"] < 2
