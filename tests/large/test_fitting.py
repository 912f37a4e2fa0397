import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv

from fgai import datasets
from fgai.datasets.split import split_nodes
from fgai.large import convert
from fgai.large.fitting import f1_on_test

DATA = split_nodes(datasets.synthetic(60, 300, features=8, classes=2, seed=0), seed=0)


class OneLogit(nn.Module):
    """A binary classifier with dropout; it is in training mode."""

    def __init__(self, flat):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.drop, self.flat = GATConv(8, 1), nn.Dropout(0.9), flat

    def forward(self, x, edge_index):
        logits = self.conv(self.drop(x), edge_index)
        return logits[:, 0] if self.flat else logits


@pytest.mark.parametrize("flat", [False, True], ids=["[N, 1]", "[N]"])
def test_a_single_logit_above_zero_predicts_the_class_one(flat, tmp_path):
    model = OneLogit(flat).eval()
    with torch.no_grad():
        positive = model(DATA.x, DATA.edge_index).flatten() > 0
    share = float((positive == DATA.y)[DATA.test_mask].double().mean())
    model.train()
    assert 0 < share < 1 and 0 < int(positive.sum()) < len(positive)
    assert f1_on_test(model, DATA) == pytest.approx(share)
    assert f1_on_test(model, convert(DATA, tmp_path / "graph")) == pytest.approx(share)
    assert model.training and model.drop.training
