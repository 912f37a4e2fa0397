import math

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv
from torch_geometric.utils import to_dense_adj

from fgai.backbones import SoftMedianConv, SoftMedianGCN
from fgai.backbones.soft_median import weighted_median
from fgai.graph import require
from fgai.reading import read


def neighbours(dense: torch.Tensor, node: int) -> torch.Tensor:
    return dense[:, node].nonzero().flatten()


@pytest.fixture(name="dense")
def _dense(community):
    """GCN's normalised adjacency, [source, target], from its formula."""
    adjacency = to_dense_adj(require(community, "edge_index"), max_num_nodes=200)[0].double() + torch.eye(200)
    scale = adjacency.sum(0).rsqrt()
    return scale[:, None] * adjacency * scale[None]


def test_the_weighted_median_is_that_of_a_loop(dense):
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0)).double()
    edges = dense.nonzero().t()
    chosen = weighted_median(x, edges, dense[edges[0], edges[1]])
    for node in range(200):
        near = neighbours(dense, node)
        for column in range(3):
            near = near[x[near, column].argsort()]
            share = np.cumsum(dense[near, node].numpy())
            assert chosen[node, column] == near[int(np.argmax(share >= share[-1] / 2 - 1e-8))]


def test_a_layer_is_its_formula(community, dense):
    torch.manual_seed(0)
    layer = SoftMedianConv(16, 5, temperature=0.3).double()
    torch.nn.init.normal_(layer.bias)
    x = require(community, "x").double()
    out, h = layer(x, require(community, "edge_index")), x @ layer.lin.weight.t()
    for node in range(0, 200, 7):
        near = neighbours(dense, node)
        a = dense[near, node]
        centre = []
        for column in range(5):
            order = near[h[near, column].argsort()]
            share = dense[order, node].cumsum(0)
            centre.append(h[order[(share >= share[-1] / 2 - 1e-8).nonzero()[0, 0]], column])
        distance = (h[near] - torch.stack(centre)).norm(dim=1) / (0.3 * math.sqrt(5))
        weight = a * (-distance).exp()
        expected = a.sum() * (weight / weight.sum()) @ h[near] + layer.bias
        torch.testing.assert_close(out[node], expected)


def test_at_a_high_temperature_it_is_gcn(community):
    torch.manual_seed(0)
    layer, gcn = SoftMedianConv(16, 5, temperature=1e9).double(), GCNConv(16, 5).double()
    gcn.lin.weight.data = layer.lin.weight.data
    x, edges = require(community, "x").double(), require(community, "edge_index")
    torch.testing.assert_close(layer(x, edges), gcn(x, edges))


def test_a_neighbour_far_from_the_others_gets_little_weight():
    torch.manual_seed(0)
    model = SoftMedianGCN(4, 2).eval()
    x = torch.ones(6, 4)
    x[5] = 50.0
    edges = torch.stack([torch.tensor([1, 2, 3, 4, 5]), torch.zeros(5).long()])
    attention = read(model, Data(x=x, edge_index=edges)).attention["conv1"]
    of_target = {
        int(a): float(w) for (a, b), w in zip(attention.edge_index.t(), attention.weight[:, 0], strict=True) if b == 0
    }
    assert of_target[5] < 0.01 * of_target[1]
