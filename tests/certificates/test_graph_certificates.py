"""Certificates of models that answer for the graphs of a batch."""

from typing import Any

import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import AttentionalAggregation, GATConv, GCNConv, global_mean_pool

import fgai
from fgai.certificates.prediction import prediction_bound
from loose import loose

RADIUS = 0.05


class Mean(nn.Module):
    """GAT, the mean over nodes, and a linear layer: linear in the attention."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.out = GATConv(4, 4), nn.Linear(4, 3)

    def forward(self, x, edge_index, batch):
        return self.out(global_mean_pool(self.conv(x, edge_index), batch))


def batch() -> Any:
    graphs = []
    for number in range(4):
        draw, size = torch.Generator().manual_seed(number), 4 + number
        ends = torch.randint(size, (2, 3 * size), generator=draw).unique(dim=1)
        x = torch.randn(size, 4, generator=draw)
        graphs.append(Data(x=x, edge_index=ends, y=torch.tensor([number % 3])))
    return loose(Batch.from_data_list(graphs))


def pushed(read, data, site, scale):
    """The logits under 60 random perturbations of norm `scale` for each node, on one edge or on all."""
    attention = read(data).detach().attention[site]
    for number in range(60):
        draw = torch.Generator().manual_seed(number)
        delta = torch.randn(attention.weight.shape, generator=draw)
        if number % 2:  # all of the norm on one edge of each node, where the bound is tight
            first = torch.randperm(len(delta), generator=draw)
            pick = torch.zeros(attention.num_targets, dtype=torch.long).scatter_(0, attention.target[first], first)
            mask = torch.zeros(len(delta), dtype=torch.bool).index_fill(0, pick[attention.degree > 0], True)
            delta = delta.sign() * mask[:, None]
        norm = torch.zeros(attention.num_targets, 1).index_add(0, attention.target, delta.abs())
        yield read(data, weight_delta={site: scale * delta / norm.clamp(min=1e-9)[attention.target]}).probs.detach()


def test_the_bounds_of_graphs_hold_and_are_those_of_the_formula():
    model, data = Mean().eval(), batch()
    read = fgai.Reader(model)
    bound = loose(prediction_bound)(read, data)
    probs, class_radius = read(data).probs.detach(), bound.class_radius
    for now in pushed(read, data, "conv", RADIUS):
        assert bool((0.5 * (now - probs).abs().sum(1) <= bound.tvd(RADIUS) + 1e-6).all())
    for now in pushed(read, data, "conv", 0.999 * float(class_radius.min())):
        assert torch.equal(now.argmax(1), probs.argmax(1))
    attention = read(data).detach().attention["conv"]
    value = model.out.weight @ loose(model.conv).lin(data.x).t() / torch.bincount(data.batch)[data.batch]  # [C, N]
    each = value[:, attention.source]
    spread = each.amax(0) - each.amin(0)
    largest = torch.zeros(data.num_nodes).scatter_reduce(0, attention.target, spread, "amax")
    expected = torch.zeros(4).index_add(0, data.batch, largest)
    assert torch.allclose(bound.pull.float(), expected, atol=1e-5)


def test_a_batch_of_graphs_is_certified():
    certificate = fgai.certify(Mean(), batch(), k=2, radius=RADIUS, steps=2)
    assert certificate.alpha2.how == "bound" and len(certificate.alpha2.values) == 4
    assert len(certificate.certified) == batch().num_nodes
    assert bool((certificate.attack.values <= certificate.alpha2.values + 1e-6).all())


def test_the_weights_of_a_pooling_are_certified_for_each_graph():
    class Pool(Mean):
        def __init__(self):
            super().__init__()
            self.conv, self.pool = GCNConv(4, 4), AttentionalAggregation(nn.Linear(4, 1))

        def forward(self, x, edge_index, batch):
            return self.out(self.pool(self.conv(x, edge_index), batch))

    certificate = fgai.certify(Pool(), batch(), k=2, radius=RADIUS, steps=2)
    assert certificate.site == "pool" and len(certificate.certified) == 4 and certificate.alpha2.how == "bound"
