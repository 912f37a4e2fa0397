"""The target of similarity that follows what each neighbour contributes to a prediction."""

import math

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch as Graphs
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from fgai import Reader
from fgai.adversaries import NodeInjection
from fgai.backbones.graphs import GATGraphs
from fgai.errors import SettingError
from fgai.explanations import edge_margins
from fgai.methods import FGAI
from fgai.methods.fgai import _Tasks
from fgai.methods.support import support_attention
from fgai.training.data import Batch
from loose import loose
from worlds import answers, community, trained


class Two(nn.Module):
    """Two layers of attention; the second has one head."""

    def __init__(self, last=None):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.last = GATConv(5, 4), GATConv(4, 3), last or nn.Identity()

    def forward(self, x, edge_index):
        return self.last(self.two(self.one(x, edge_index).tanh(), edge_index))


def graph():
    generator = torch.Generator().manual_seed(1)
    ends = torch.randint(12, (2, 40), generator=generator)
    return Data(x=torch.randn(12, 5, generator=generator), edge_index=ends[:, ends[0] != ends[1]].unique(dim=1))


def test_support_is_the_margin_of_each_value_vector():
    """Against the loop over nodes and neighbours, from the weights of the layer itself."""
    model, data, sharpness = Two().eval(), graph(), 1.5
    read, reading = answers(model, data)
    attention = reading.attention["two"]
    with torch.no_grad():
        value = loose(model.two).lin(model.one(data.x, data.edge_index).tanh())
    best, second = reading.logits.topk(2).indices.T.tolist()
    margins = {(j, i): float(value[j, best[i]] - value[j, second[i]]) for j, i in attention.edge_index.T.tolist()}
    near = {i: [j for j, target in margins if target == i] for i in range(12)}
    centred = {(j, i): m - sum(margins[n, i] for n in near[i]) / len(near[i]) for (j, i), m in margins.items()}
    spread = math.sqrt(sum(m * m for m in centred.values()) / len(centred))
    target = support_attention(read, data, "two", attention, sharpness)
    for (j, i), weight in zip(attention.edge_index.T.tolist(), target.weight[:, 0].tolist(), strict=True):
        total = sum(math.exp(sharpness * centred[n, i] / spread) for n in near[i])
        assert weight == pytest.approx(math.exp(sharpness * centred[j, i] / spread) / total, rel=1e-4)


def test_support_for_a_graph_is_the_slope_of_its_margin():
    """Against differences: the weight of one edge is raised and lowered, at a layer that a nonlinear one follows."""
    data = loose(Graphs.from_data_list([graph(), graph()]))
    data.x, data.y = data.x.double() * (1 + data.batch[:, None]), torch.tensor([0, 0])
    model = GATGraphs(features=5, classes=3).eval().double()
    read, reading = answers(model, data)
    attention, labels = reading.attention["conv1"], reading.logits.topk(2).indices
    margins = edge_margins(read, data, "conv1", attention.weight, linear=False)

    def margin(change):
        picked = read(data, weight_delta={"conv1": change}).logits.gather(1, labels)
        return float((picked[:, 0] - picked[:, 1]).sum())

    for edge, head in ((0, 0), (11, 3), (-1, 7)):
        step = torch.zeros_like(attention.weight)
        step[edge, head] = 1e-5
        with torch.no_grad():
            slope = (margin(step) - margin(-step)) / 2e-5
        assert float(loose(margins)[edge, head]) == pytest.approx(slope, rel=1e-5) and slope != 0
    target = support_attention(read, data, "conv1", attention, 1.5)
    order = loose(margins)[attention.target == 0, 2].argsort()
    assert target.weight[attention.target == 0, 2].argsort().equal(order)


def test_logits_that_are_not_linear_in_the_attention_are_refused():
    model, data = Two(nn.Softplus()).eval(), graph()
    read, reading = answers(model, data)
    with pytest.raises(SettingError, match="linear in the attention of 'two'"):
        support_attention(read, data, "two", reading.attention["two"], 1.5)


def test_similarity_to_support_moves_the_attention_towards_it():
    model, data = trained("gat", epochs=20), community()
    settings = {"closeness": 0.1, "prediction": 0.0, "explanation": 0.0, "similarity_metric": "kl", "sharpness": 1.5}
    fit = FGAI(target="support", similarity=20.0, epochs=25, **settings).fit(model, data)
    assert fit.history[-1].terms["similarity"] < 0.5 * fit.history[0].terms["similarity"]


def test_an_aimed_attack_raises_one_class_in_every_other_place():
    model, data = trained("gat", epochs=5), community()
    method = FGAI(aimed=True, adversary=NodeInjection(2, 3, steps=1), epochs=1)
    read = Reader(model.eval())
    clean = read(data).detach()
    task = _Tasks(method, read).of(Batch(data, 150))
    classes = clean.logits.log_softmax(-1).mean(0).tolist()
    for place in range(0, 8, 2):
        assert float(task.gain("prediction", clean, place)(clean)) == pytest.approx(classes[place // 2 % 3], rel=1e-5)
        assert float(task.gain("prediction", clean, place + 1)(clean)) == pytest.approx(0.0, abs=1e-6)
