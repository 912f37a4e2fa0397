from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GINConv, GPSConv, global_mean_pool
from torch_geometric.nn.aggr.utils import PoolingByMultiheadAttention
from torch_geometric.utils import to_dense_batch

import fgai
from fgai import multihead
from fgai.adversaries import gains
from fgai.errors import TapError
from loose import loose

SIZES = (3, 5)


def ring(size):
    ends = torch.stack([torch.arange(size), torch.arange(size).roll(1)])
    x = torch.randn(size, 4, generator=torch.Generator().manual_seed(size))
    return Data(x=x, edge_index=torch.cat([ends, ends.flip(0)], 1), y=torch.tensor([size % 2]))


def two() -> Any:
    return loose(Batch.from_data_list([ring(size) for size in SIZES]))


class Dense(nn.Module):
    """Self-attention over the nodes of each graph; a row of logits for each node."""

    def __init__(self, heads=2, batch_first=True, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(4, heads, batch_first=batch_first, **settings)

    def forward(self, x, batch):
        x, mask = to_dense_batch(x, batch)
        given = x if self.attention.batch_first else x.transpose(0, 1)
        out, _ = self.attention(given, given, given, key_padding_mask=~mask, need_weights=False)
        return (out if self.attention.batch_first else out.transpose(0, 1))[mask]


def by_ends(attention):
    return {tuple(ends): row for ends, row in zip(attention.edge_index.t().tolist(), attention.weight, strict=True)}


@pytest.mark.parametrize("batch_first", [True, False])
def test_weights_of_pairs_are_those_that_torch_returns(batch_first):
    model, data = Dense(batch_first=batch_first).eval(), two()
    read = by_ends(fgai.read(model, data).attention["attention"])
    start, expected = 0, {}
    for size in SIZES:
        part = data.x[start : start + size].unsqueeze(0 if batch_first else 1)
        _, weight = model.attention(part, part, part, average_attn_weights=False)
        expected |= {
            (start + key, start + query): weight[0, :, query, key] for query in range(size) for key in range(size)
        }
        start += size
    assert read.keys() == expected.keys()  # no pair across two graphs, none with the padding
    assert all(torch.allclose(read[ends], expected[ends], atol=1e-6) for ends in expected)


def test_the_model_answers_the_same_while_it_is_read():
    model, data = Dense().eval(), two()
    plain = model(data.x, data.batch)
    assert torch.allclose(fgai.read(model, data).logits, plain, atol=1e-6)
    assert torch.backends.mha.get_fastpath_enabled() and type(model.attention) is nn.MultiheadAttention


def test_a_perturbed_weight_changes_the_output_as_the_formula_says():
    model, data = Dense(heads=1).eval(), ring(5)
    data.batch = torch.zeros(5, dtype=torch.long)
    read = fgai.Reader(model)
    clean = read(data).detach().attention["attention"]
    delta = 0.1 * torch.randn(clean.weight.shape, generator=torch.Generator().manual_seed(1))
    perturbed = read(data, weight_delta={"attention": delta}).logits
    layer = model.attention
    value = data.x @ layer.in_proj_weight[8:].t() + layer.in_proj_bias[8:]
    weight = torch.zeros(5, 5).index_put((clean.target, clean.source), (clean.weight + delta)[:, 0])
    assert torch.allclose(perturbed, layer.out_proj(weight @ value), atol=1e-6)
    score = read(data, score_delta={"attention": delta}).attention["attention"]
    dense = torch.zeros(5, 5).index_put((clean.target, clean.source), (loose(clean.score) + delta)[:, 0]).softmax(1)
    assert torch.allclose(score.weight[:, 0], dense[clean.target, clean.source], atol=1e-6)


def test_weights_are_read_before_the_dropout():
    model, data = Dense(dropout=0.5), two()
    assert model.training
    weight = fgai.Reader(model)(data).attention["attention"].weight
    total = torch.zeros(8, 2).index_add(0, fgai.Reader(model)(data).attention["attention"].target, weight)
    assert torch.allclose(total, torch.ones(8, 2), atol=1e-6)


def test_masked_pairs_are_no_pairs():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Dense().attention

        def forward(self, x, edge_index):
            allowed = torch.eye(len(x), dtype=torch.bool)
            allowed[edge_index[1], edge_index[0]] = True
            return self.attention(x, x, x, attn_mask=~allowed)[0]

    data = ring(6)
    attention = fgai.read(Masked(), data).attention["attention"]
    assert set(by_ends(attention)) == {*map(tuple, data.edge_index.t().tolist()), *((i, i) for i in range(6))}
    assert loose(attention.score).isfinite().all()


def test_nodes_of_a_batch_that_is_not_sorted_keep_their_ids():
    model, data = Dense().eval(), two()
    order = torch.tensor([5, 0, 3, 1, 7, 2, 6, 4])
    mixed = Data(x=data.x[order], edge_index=order.argsort()[data.edge_index], batch=data.batch[order], num_graphs=2)
    before, after = (fgai.read(model, graph).attention["attention"] for graph in (data, mixed))
    assert torch.allclose(before.weights_at(order[after.edge_index]), after.weight, atol=1e-6)


def test_pooling_by_seeds_has_a_head_per_seed():
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.pool, self.out = PoolingByMultiheadAttention(4, 2, heads=2), nn.Linear(8, 2)

        def forward(self, x, batch):
            dense, mask = to_dense_batch(x, batch)
            return self.out(self.pool(dense, mask).flatten(1))

    model, data = Pool().eval(), two()
    reading = fgai.read(model, data)
    attention = reading.attention["pool.mab.attn"]
    assert (attention.over, attention.num_targets, attention.heads) == ("graphs", 2, 4)
    assert torch.equal(attention.edge_index, torch.stack([torch.arange(8), data.batch]))
    keys = model.pool.lin(data.x[3:]).relu()[None]
    _, weight = model.pool.mab.attn(model.pool.seed, keys, keys, average_attn_weights=False)
    assert torch.allclose(attention.weight[3:].view(5, 2, 2), weight[0].permute(2, 0, 1), atol=1e-6)
    with pytest.raises(TapError, match="a weight per node"):
        reading.attribution("last")


def test_too_many_pairs_are_named_and_not_read(monkeypatch):
    data = ring(5)
    torch.manual_seed(0)
    local = GPSConv(4, GATConv(4, 4), heads=2)
    assert list(fgai.read(local, data).attention) == ["conv", "attn"]
    monkeypatch.setattr(multihead, "PAIRS", 24)
    reading = fgai.read(local, data)
    assert list(reading.attention) == ["conv"] and reading.unread == ("attn",)
    with pytest.raises(TapError, match="'attn': it attends over 25 pairs of nodes, and fgai reads at most 24"):
        fgai.read(GPSConv(4, GINConv(nn.Linear(4, 4)), heads=2), data)


def test_attention_over_something_else_is_named():
    class Steps(nn.Module):
        """Attention over three copies of each node, after a GAT layer."""

        def __init__(self):
            super().__init__()
            self.conv, self.steps = GATConv(4, 4), nn.MultiheadAttention(4, 1, batch_first=True)

        def forward(self, x, edge_index):
            x = self.conv(x, edge_index)[:, None].expand(-1, 3, -1)
            return self.steps(x, x, x)[0].mean(1)

    reading = fgai.read(Steps(), ring(5))
    assert list(reading.attention) == ["conv"] and reading.unread == ("steps",)


def test_an_encoder_with_padding_is_read_without_torchs_fused_kernels():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            self.encoder, self.out = nn.TransformerEncoder(layer, 2), nn.Linear(4, 2)

        def forward(self, x, batch):
            dense, mask = to_dense_batch(x, batch)
            dense = self.encoder(dense, src_key_padding_mask=~mask)
            return self.out(global_mean_pool(dense[mask[:, : dense.size(1)]], batch))

    model, data = Encoder().eval(), two()
    reading = fgai.read(model, data)
    assert [a.weight.shape for a in reading.attention.values()] == [(34, 2), (34, 2)]
    assert torch.allclose(reading.logits, model(data.x, data.batch), atol=1e-5)
    tree = reading.attribution("tree")
    assert tree.over == "pairs" and tree.edge_index.size(1) == 34


def test_the_ball_of_a_dense_layer_is_attacked_and_last_stays_the_layer_over_edges():
    torch.manual_seed(0)
    model, data = GPSConv(4, GATConv(4, 4), heads=2), ring(5)
    with fgai.open_reader(model) as read:
        gain = gains.kl(read(data).detach())
        chosen = fgai.AttentionBall(0.1, steps=2, sites=("attn",))(read, data, gain)
        default = fgai.AttentionBall(0.1, steps=2)(read, data, gain)
    delta = loose(chosen.perturbation.weight_delta["attn"])
    assert list(default.perturbation.weight_delta) == ["conv"] and gain(chosen) > 0
    assert torch.zeros(5, 2).index_add(0, chosen.attention["attn"].target, delta.abs()).max() <= 0.1 + 1e-6
    reading = fgai.read(model, data)
    assert reading.explanation is reading.attention["conv"]
    assert any("left out: attn" in note for note in reading.attribution("tree").notes)
    assert reading.attribution("layer:attn").over == "pairs"
