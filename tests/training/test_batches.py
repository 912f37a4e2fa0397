import copy

import pytest
import torch
from torch_geometric.nn import BatchNorm, GATConv

from fgai import FGAI, AdversarialTraining, NodeInjection, Vanilla, datasets, read
from fgai.adversaries import gains
from fgai.backbones import build
from fgai.calling import call_by_signature
from fgai.datasets.split import split_nodes
from fgai.errors import DataError
from fgai.large import Loader, full_neighbour_loader
from fgai.methods import Batches
from fgai.reading import Reader, training_reader
from fgai.training.checks import BatchChecks
from fgai.training.data import Batch, FullGraph
from fgai.training.warm_start import WarmStart
from loose import loose

SMALL = NodeInjection(nodes=2, edges=5, steps=1)
DATA = loose(split_nodes(datasets.synthetic(600, 6_000, features=16, classes=4, signal=1.0, seed=3), seed=3))
MODEL = build("gat", DATA)


def f1(model):
    return float((read(model, DATA).logits.argmax(1) == DATA.y)[DATA.test_mask].float().mean())


def test_what_is_said_of_the_seeds_is_said_in_the_whole_graph():
    whole = read(MODEL, DATA)
    for batch in full_neighbour_loader(DATA, hops=2, batch=100):
        part = read(MODEL, batch).head(batch.batch_size)
        nodes = batch.n_id[: batch.batch_size]
        torch.testing.assert_close(part.logits, whole.logits[nodes], atol=1e-5, rtol=0)
        for site, look in part.attention.items():
            edges = batch.n_id[look.edge_index]
            torch.testing.assert_close(look.weight, whole.attention[site].weights_at(edges), atol=1e-5, rtol=0)


def test_one_batch_that_is_the_whole_graph_teaches_as_the_graph_does():
    whole = copy.copy(DATA)
    whole.batch_size = DATA.num_nodes
    method = FGAI(adversary=SMALL, epochs=3)
    expected, found = method.fit(MODEL, DATA), method.fit(MODEL, Batches([whole], validation=[whole]))
    assert [epoch.terms for epoch in expected.history] == [epoch.terms for epoch in found.history]
    for name, value in expected.model.state_dict().items():
        assert torch.equal(value, found.model.state_dict()[name]), name


def test_losses_of_whole_neighbourhoods_average_to_that_of_the_graph():
    """Without an attack the terms are means over nodes, so batches of equal size average to the whole."""
    method = FGAI(prediction=0.0, explanation=0.0, epochs=1, lr=0.0)
    model = build("gat", DATA, seed=1)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    moved = copy.deepcopy(model)
    vanilla = method.fit(model, DATA).best.terms  # a model is close to itself, and not to its sharpened attention
    batches = method.fit(moved, full_neighbour_loader(DATA, hops=2, batch=100)).best.terms
    assert vanilla["similarity"] > 0.01
    for name, value in vanilla.items():
        assert batches[name] == pytest.approx(value, abs=1e-5), name


def test_slots_average_their_gradients():
    loader = full_neighbour_loader(DATA, hops=2, batch=300, seed_nodes=DATA.train_mask)
    parts = full_neighbour_loader(DATA, hops=2, batch=30, seed_nodes=DATA.train_mask)
    plain = loose(build("gat", DATA))
    plain.dropout = plain.conv1.dropout = plain.conv2.dropout = 0.0
    method = Vanilla(epochs=3)
    whole = method.fit(plain, Batches(loader, validation=loader_of("val_mask")))
    sliced = method.fit(plain, Batches(parts, validation=loader_of("val_mask"), positions=2))
    for one, two in zip(whole.history, sliced.history, strict=True):
        assert one.terms["label"] == pytest.approx(two.terms["label"], abs=1e-5)


def loader_of(mask, **how):
    return full_neighbour_loader(DATA, hops=2, seed_nodes=DATA[mask], **how)


@pytest.mark.parametrize("method", [Vanilla(epochs=12), AdversarialTraining(adversary=SMALL, epochs=8)])
def test_methods_learn_from_batches(method):
    loader = Loader(DATA, (5, 5), batch=30, seed_nodes=DATA.train_mask)
    fit = method.fit(MODEL, Batches(loader, validation=loader_of("val_mask", batch=30)))
    assert f1(fit.model) > f1(MODEL) + 0.2
    assert fit.best.val_f1 == pytest.approx(FullGraph(DATA).validate(fit.model, call_by_signature)[0])


def test_fgai_learns_from_batches():
    trained = Vanilla(epochs=60).fit(MODEL, DATA).model
    fit = FGAI(adversary=NodeInjection(nodes=5, edges=10, steps=2, step=0.5), epochs=6).fit(
        trained, Loader(DATA, (10, 10), batch=100)
    )
    assert f1(fit.model) > f1(trained) - 0.03
    assert fit.history[-1].terms["prediction"] < 0.7 * fit.history[0].terms["prediction"]


def test_a_run_on_batches_that_was_killed_goes_on(tmp_path, monkeypatch):
    method, steps = FGAI(adversary=SMALL, epochs=4), []
    monkeypatch.setattr(BatchChecks, "check", lambda _, model, batch: steps.append(batch.step))
    expected = method.fit(MODEL, Loader(DATA, (5, 5), batch=200))
    assert steps == list(range(4 * 3))
    loader, file = Loader(DATA, (5, 5), batch=200), tmp_path / "run"

    def killed(epoch):
        if epoch == 2:
            raise KeyboardInterrupt
        Loader.set_epoch(loader, epoch)

    monkeypatch.setattr(loader, "set_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        method.fit(MODEL, loader, checkpoint=file)
    assert file.exists()
    found = method.fit(MODEL, Loader(DATA, (5, 5), batch=200), checkpoint=file)
    for name, value in expected.model.state_dict().items():
        assert torch.equal(value, found.model.state_dict()[name]), name
    assert steps == 2 * list(range(4 * 3))


def test_a_method_that_keeps_its_best_epoch_asks_for_validation():
    with pytest.raises(DataError, match="validation"):
        Vanilla(epochs=1).fit(MODEL, Loader(DATA, (5,), seed_nodes=DATA.train_mask))


def test_seeds_without_training_nodes_are_refused():
    loader = Batches(Loader(DATA, (5,), seed_nodes=DATA.test_mask), validation=loader_of("val_mask"))
    with pytest.raises(DataError, match="train_mask"):
        Vanilla(epochs=1).fit(MODEL, loader)


class Mixed(torch.nn.Module):
    """Its last layer runs first: which layers follow one does not depend on the order of registration."""

    def __init__(self):
        super().__init__()
        self.b, self.a = GATConv(16, 4), GATConv(16, 16)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index), edge_index)


@pytest.mark.parametrize(("model", "fits"), [(MODEL, True), (build("gatv2", DATA), True), (Mixed(), False)])
def test_trimmed_edges_change_nothing_for_the_seed_nodes(model, fits):
    batch = next(iter(Loader(DATA, (5, 5), batch=20)))
    model = copy.deepcopy(model).eval()
    place = NodeInjection(nodes=2, edges=5).place(batch)
    attacked = place.graph(torch.ones(2, 16))
    with torch.no_grad():
        told = [Reader(model)(graph).head(20) for graph in (batch, attacked)]
        with training_reader(model) as trimmed:
            found = [trimmed(graph) for graph in (batch, attacked)]
            logits = trimmed.logits(batch)
    assert torch.equal(logits, found[0].logits)
    for one, two in zip(told, found, strict=True):
        torch.testing.assert_close(one.logits, two.logits[:20], atol=1e-5, rtol=0)
        look = one.explanation
        torch.testing.assert_close(look.weight, two.head(20).explanation.weights_at(look.edge_index), atol=1e-5, rtol=0)
    edges = [reading.explanation.edge_index.size(1) for reading in (Reader(model)(batch), found[0])]
    assert (edges[1] < 0.6 * edges[0]) == fits


class Normed(torch.nn.Module):
    """Two layers with a batch norm between them."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = GATConv(16, 16), BatchNorm(16), GATConv(16, 4)

    def forward(self, x, edge_index):
        return self.b(self.norm(self.a(x, edge_index)).relu(), edge_index)


def test_edges_stay_where_a_batch_norm_averages_over_all_nodes():
    batch, model = next(iter(Loader(DATA, (5, 5), batch=20))), Normed().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = copy.deepcopy(model)
    told = expected(batch.x, batch.edge_index)[:20]
    with training_reader(model) as read:
        torch.testing.assert_close(read.logits(batch)[:20], told, atol=1e-5, rtol=0)
        for name, value in expected.state_dict().items():  # and its running statistics are those of one call
            torch.testing.assert_close(model.state_dict()[name], value, atol=1e-5, rtol=0)
        assert not torch.equal(before["norm.module.running_mean"], model.state_dict()["norm.module.running_mean"])
        model.eval()  # a norm that is fixed is a function of each row
        edges = read(batch).explanation.edge_index.size(1)
    assert edges < 0.6 * Reader(model)(batch).explanation.edge_index.size(1)


def test_an_adversary_links_to_nodes_that_reach_a_seed_node():
    batch = next(iter(Loader(DATA, (5, 5), batch=20)))
    part = Batch(batch, 20)
    assert part.linkable_nodes == tuple(range(sum(batch.num_sampled_nodes[:2])))
    assert Batch(DATA, DATA.num_nodes).linkable_nodes is None
    read_it = Reader(copy.deepcopy(MODEL).eval())
    hit = WarmStart(SMALL, restart_every=1).attack(read_it, part, gains.kl(read_it(batch).detach().head(20)))
    ends = hit.perturbation.added
    assert int(ends[ends < batch.num_nodes].max()) < len(part.linkable_nodes or ())


def test_a_loader_without_validation_nodes_or_batches_is_refused():
    data = datasets.load("synthetic")
    nobody = copy.copy(data)
    nobody.val_mask = torch.zeros_like(data.val_mask)
    with pytest.raises(DataError, match="val_mask"):
        Vanilla(epochs=1).fit(build("gat", data), Batches([data], [nobody]))
    with pytest.raises(DataError, match="no batch"):
        FGAI(epochs=1).fit(build("gat", data), Batches([]))
