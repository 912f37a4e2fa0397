"""Training on graphs: one batch of all, and mini-batches of a `DataLoader`."""

from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, global_mean_pool

from fgai import GraphInjection
from fgai.backbones import build
from fgai.datasets.split import split_graphs, without_test_nodes
from fgai.errors import DataError
from fgai.items import num_graphs
from fgai.large.fitting import f1_on_test, fit_graph
from fgai.methods import FGAI, METHODS, AdversarialTraining, Batches, LayerNorm, Vanilla
from killing import killed_in_epoch
from worlds import molecules

DATA: Any = split_graphs(molecules(20), seed=0)
ATTACK = GraphInjection(1, 1, steps=1)
MODEL = build("gat-graphs", DATA)


def methods(epochs=2):
    attacked: Any = {"adversary": ATTACK, "epochs": epochs}
    return [Vanilla(epochs=epochs), LayerNorm(epochs=epochs), AdversarialTraining(**attacked), FGAI(**attacked)]


def weights(fit):
    return list(fit.model.state_dict().values())


@pytest.mark.parametrize("method", methods(), ids=lambda method: type(method).__name__)
def test_every_method_trains_on_a_batch_and_on_loaders(method):
    whole = method.fit(MODEL, DATA)
    assert 0 <= f1_on_test(whole.model, DATA) <= 1
    one, two = (fit_graph(method, MODEL, DATA, batch=6) for _ in range(2))
    assert one.history == two.history and all(map(torch.equal, weights(one), weights(two)))
    plain = [graph.__class__(x=graph.x, edge_index=graph.edge_index, y=graph.y) for graph in DATA.to_data_list()]
    loaders = Batches(DataLoader(plain[:12], 5), DataLoader(plain[12:], 8))
    assert len(method.fit(MODEL, loaders).history) == 2  # all graphs of a loader without masks are trained on


class Global(nn.Module):
    """It reads features of graphs, and records whether each graph met its own: `u` tells `y`."""

    def __init__(self):
        super().__init__()
        self.conv, self.out, self.own = GATConv(4, 4), nn.Linear(6, 2), []

    def forward(self, x, edge_index, batch, u, y):
        self.own.append(len(u) == len(y) and torch.equal(u[:, 0], y.float()))
        return self.out(torch.cat([global_mean_pool(self.conv(x, edge_index), batch), u], dim=1))


def loader_of(batch):
    return DataLoader(batch.to_data_list(), 6)


@pytest.mark.parametrize(
    "fit",
    [
        lambda model, batch: Vanilla(epochs=2).fit(model, batch),
        lambda model, batch: Vanilla(epochs=2).fit(model, Batches([batch, batch], [batch])),
        lambda model, batch: Vanilla(epochs=2).fit(model, Batches(loader_of(batch), loader_of(batch))),
        lambda model, batch: fit_graph(Vanilla(epochs=2), model, batch),
        lambda model, batch: fit_graph(Vanilla(epochs=2), model, batch, batch=6),
    ],
    ids=["batch", "list", "loader", "fit_graph", "fit_graph in batches"],
)
def test_every_graph_is_trained_with_its_own_features(fit):
    graphs = molecules(20)
    for graph in graphs:
        graph.u = torch.tensor([[float(graph.y), 1.0]])
    model = fit(Global(), split_graphs(graphs, seed=0)).model
    assert len(model.own) >= 4 and all(model.own)


def test_plain_training_takes_the_steps_of_a_loop_of_pyg():
    model: Any = build("gat-graphs", DATA, seed=1)
    model.dropout = 0.0
    fit = Vanilla(epochs=3, lr=0.01, weight_decay=5e-4).fit(model, DATA)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(DATA.x, DATA.edge_index, DATA.batch)
        loss = nn.functional.cross_entropy(logits[DATA.train_mask], DATA.y[DATA.train_mask])
        loss.backward()
        losses.append(float(loss.detach()))
        optimizer.step()
    assert [epoch.terms["label"] for epoch in fit.history] == pytest.approx(losses, rel=1e-4)


def test_a_killed_run_on_graphs_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    method, file = FGAI(adversary=ATTACK, epochs=12, restart_every=5), tmp_path / "run.safetensors"
    whole = method.fit(MODEL, DATA)
    with killed_in_epoch(12, monkeypatch):
        method.fit(MODEL, DATA, checkpoint=file)
    assert file.exists() and all(map(torch.equal, weights(whole), weights(method.fit(MODEL, DATA, checkpoint=file))))


def test_the_test_graphs_are_not_read_in_training():
    spoilt: Any = DATA.clone()
    spoilt.x = torch.where(DATA.test_mask[DATA.batch][:, None], 7.0, DATA.x)
    for method in methods():
        assert all(map(torch.equal, weights(method.fit(MODEL, DATA)), weights(method.fit(MODEL, spoilt))))
    assert num_graphs(without_test_nodes(DATA)) == int((~DATA.test_mask).sum())


def test_another_list_of_graphs_does_not_continue_a_run():
    one, other = (Batches(DataLoader(DATA.to_data_list()[:size], 5)) for size in (10, 11))
    assert len(one.graphs) == 10 and len(other.graphs) == 11


def test_the_preset_of_a_batch_of_graphs_is_chosen_by_the_data():
    assert [METHODS[name].preset_for(DATA) for name in ("fgai", "at", "vanilla")] == ["graphs", "graphs", "default"]
    assert isinstance(FGAI.preset("graphs").adversary, GraphInjection)


def test_one_graph_with_one_label_is_told_to_be_a_batch():
    with pytest.raises(DataError, match=r"Batch\.from_data_list"):
        Vanilla(epochs=1).fit(MODEL, molecules(1)[0])
    assert isinstance(DATA, Batch)
