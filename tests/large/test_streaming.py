from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import LinkLoader
from torch_geometric.nn import GATConv, SGConv, TransformerConv
from torch_geometric.sampler.base import NodeSamplerInput, NumNeighbors

from fgai import FGAI, NodeInjection, Vanilla, Voted, certify, datasets, read
from fgai.backbones import build
from fgai.certificates import Deletions, Links, certified_radius
from fgai.datasets.split import split_nodes
from fgai.errors import CallError, DataError, UnknownNameError
from fgai.large import (
    Loader,
    audit_batches,
    batch_readings,
    certify_batches,
    concat_readings,
    convert,
    exact_loader,
    full_neighbour_loader,
    layerwise_readings,
)
from fgai.large.metrics import WEIGHTS, Streamed
from fgai.large.neighbourhoods import full_batches
from fgai.large.sampler import CSC, NeighbourSampler
from fgai.metrics.base import measure
from fgai.reading import Reader
from fgai.trial import attacked_trial, clean_trial
from loose import loose

DATA = split_nodes(datasets.synthetic(500, 6_000, features=16, classes=4, signal=1.0, seed=3), seed=3)
ATTACK = NodeInjection(nodes=2, edges=10, steps=2)


@pytest.fixture(scope="module")
def models():
    trained = Vanilla(epochs=20).fit(build("gat", DATA), DATA).model
    return trained, FGAI(adversary=ATTACK, epochs=5).fit(trained, DATA).model


class Deep(nn.Module):
    """Three layers, several heads, a norm and a skip: not a plain stack."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)
        self.a, self.b, self.c = GATConv(16, 4, heads=4), TransformerConv(16, 16), GATConv(16, 4)

    def forward(self, x, edge_index):
        x = self.norm(x)
        h = x + self.a(x, edge_index).relu()
        return self.c((h + self.b(h, edge_index)).relu(), edge_index)


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["gat", "gatv2", "deep"])
def test_whole_neighbourhoods_and_layer_by_layer_read_what_the_graph_gives(name):
    torch.manual_seed(0)
    model = Deep() if name == "deep" else build(name, DATA)
    whole, hops = read(model, DATA), 3 if name == "deep" else 2
    for found in (
        concat_readings(batch_readings(model, full_neighbour_loader(DATA, hops, batch=64)), 500),
        concat_readings(layerwise_readings(model, DATA, batch=64), 500),
    ):
        close(found.logits, whole.logits)
        look = found.explanation
        close(look.weight, whole.explanation.weights_at(look.edge_index))
        assert look.edge_index.size(1) == whole.explanation.edge_index.size(1)


def test_layer_by_layer_from_disk(tmp_path):
    model = build("gat", DATA)
    close(
        concat_readings(layerwise_readings(model, convert(DATA, tmp_path / "graph")), 500).logits,
        read(model, DATA).logits,
    )


def test_nothing_is_left_on_a_model_that_was_read_layer_by_layer():
    model = build("gat", DATA)
    before = {name: dict(vars(part)) for name, part in model.named_modules()}
    stream = loose(layerwise_readings(model, DATA, batch=100))
    next(stream)
    stream.close()
    for name, part in model.named_modules():
        assert vars(part).keys() == before[name].keys()
        assert "forward" not in vars(part) and not part._forward_hooks and not part._forward_pre_hooks


class Mixed(Deep):
    """Nodes exchange information outside PyG's layers."""

    def forward(self, x, edge_index):
        return super().forward(x - x.mean(0), edge_index)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = GATConv(16, 16)

    def forward(self, x, edge_index):
        return self.a(self.a(x, edge_index), edge_index)


@pytest.mark.parametrize("model", [Mixed(), Twice()])
def test_a_model_that_does_not_go_layer_by_layer_is_refused(model):
    with pytest.raises(CallError, match="full_neighbour_loader"):
        list(layerwise_readings(model.eval(), DATA))


class Telling(nn.Module):
    """It keeps the attention of its first layer, which PyG returns beside the output."""

    def __init__(self):
        super().__init__()
        self.a, self.b = GATConv(16, 16), GATConv(16, 4)

    def forward(self, x, edge_index):
        h, self.attention = self.a(x, edge_index, return_attention_weights=True)
        return self.b(h.relu(), edge_index)


def test_a_layer_that_returns_its_attention_is_refused_layer_by_layer_and_read_in_neighbourhoods():
    model = Telling().eval()
    with pytest.raises(CallError, match=r"a returns a tuple, .* without return_attention_weights"):
        next(layerwise_readings(model, DATA))
    parts = batch_readings(model, exact_loader(model, DATA, batch=200))
    close(concat_readings(parts, 500).logits, read(model, DATA).logits)


def test_streamed_metrics_are_those_of_the_whole_graph(models):
    """The attack is made on the whole graph; what it does is then counted batch by batch."""
    vanilla, _ = models
    trial = clean_trial(Reader(vanilla.eval()), DATA)
    hit = attacked_trial(ATTACK, "cross-entropy", trial, 0)
    told, metrics = measure(hit), {name: Streamed(name) for name in WEIGHTS}
    for part in torch.arange(500).split(60):
        for metric in metrics.values():
            metric.update(only(hit, part))
    for name, metric in metrics.items():
        assert float(metric.compute()) == pytest.approx(told[name], abs=1e-5), name


def only(trial, nodes):
    """The trial as if these nodes were all there are: seeds first."""
    order = torch.cat([nodes, torch.tensor(sorted(set(range(len(trial.now.logits))) - set(nodes.tolist())))])
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))

    def moved(reading):
        looks = {s: replace(a, edge_index=place[a.edge_index]) for s, a in reading.attention.items()}
        return replace(reading, logits=reading.logits[order[order < len(reading.logits)]], attention=looks)

    seeds = len(nodes)
    return replace(
        trial,
        clean=moved(trial.clean).head(seeds),
        now=moved(trial.now),
        y=trial.y[nodes],
        eval_mask=trial.eval_mask[nodes],
    )


def test_an_audit_of_batches_is_exact_on_the_clean_graph_and_attacks_each_batch(models):
    vanilla, _ = models
    found = audit_batches(vanilla, full_neighbour_loader(DATA, hops=2, batch=100), ATTACK, seeds=2)
    told = measure(clean_trial(Reader(vanilla.eval()), DATA))
    for name, value in found.clean.items():
        assert value == pytest.approx(told[name], abs=1e-5), name
    assert found.attacked["g_tvd"].mean > 1e-3 and found.attacked["overlap"].mean < 1
    assert len(set(found.attacked["g_tvd"].values)) == 2
    assert "overlap" in found.text() and "Explanation: last" in found.text()


def test_batches_without_test_nodes_count_for_all_metrics_but_f1(models):
    last = loose(DATA.clone())
    last.test_mask = torch.arange(500) >= 450
    last.edge_index = torch.arange(500).expand(2, 500)  # no batch has a test node as a neighbour
    found = audit_batches(models[0], full_neighbour_loader(last, hops=2, batch=250), ATTACK)
    expected = measure(clean_trial(Reader(models[0].eval()), last))
    for name in ("f1", "nonuniformity"):
        assert found.clean[name] == pytest.approx(expected[name], abs=1e-5), name
    assert 0 < found.attacked["f1"].mean < 1 and found.attacked["g_tvd"].mean > 0
    with pytest.raises(DataError, match="no seed node of the batches is in `test_mask`"):
        audit_batches(models[0], full_neighbour_loader(last, hops=2, batch=500, seed_nodes=~last.test_mask), ATTACK)


def test_one_batch_with_all_nodes_is_the_audit_of_the_graph(models):
    vanilla, _ = models
    found = audit_batches(vanilla, [DATA], ATTACK)
    told = measure(attacked_trial(ATTACK, "cross-entropy", clean_trial(Reader(vanilla.eval()), DATA), 0))
    for name, figure in found.attacked.items():
        assert figure.mean == pytest.approx(told[name], abs=1e-6), name


def test_certificates_of_batches_are_those_of_the_graph(models):
    vanilla, faithful = models
    whole = certify(faithful, DATA, vanilla, k=3, steps=1)
    parts = certify_batches(faithful, full_neighbour_loader(DATA, hops=2, batch=128), vanilla, k=3, steps=1)
    for name in ("beta1", "beta2", "alpha1", "alpha2"):
        close(getattr(parts, name).values, getattr(whole, name).values)
    close(parts.certified, whole.certified)
    torch.testing.assert_close(parts.class_radius, whole.class_radius, atol=1e-5, rtol=1e-4)
    close(parts.earlier["conv1"].tvd, whole.earlier["conv1"].tvd)
    assert parts.median == pytest.approx(whole.median, abs=1e-5)


@pytest.mark.parametrize("against", [Links(1), Deletions(1)])
def test_proofs_of_batches_are_those_of_the_graph(models, against):
    model = Voted(models[1], groups=5) if isinstance(against, Links) else models[1]
    whole = certify(model, DATA, against=against)
    parts = certify_batches(model, full_neighbour_loader(DATA, hops=2, batch=300), against=against)
    assert (parts.how, parts.reason) == (whole.how, whole.reason)
    for name in ("prediction", "budget", "label", "test", "plain", "without_links"):
        assert torch.equal(getattr(parts, name), getattr(whole, name)), name
    assert parts.shares() == whole.shares() and whole.shares()["certified"]


def test_votes_of_batches_without_the_numbers_of_nodes_are_refused(models):
    (batch,) = full_neighbour_loader(DATA, hops=2, batch=500)
    del batch.n_id
    with pytest.raises(DataError, match=r"no `n_id`.*data\.n_id = torch\.arange"):
        certify_batches(Voted(models[0], groups=5), [batch], against=Links(1))


def test_one_batch_without_a_bound_is_enough_to_prove_nothing():
    class Sometimes(nn.Module):
        """Local, unless the batch has a node of the last class."""

        def __init__(self):
            super().__init__()
            self.layer = GATConv(16, 4)

        def forward(self, x, edge_index, y):
            return self.layer(x + (x.mean(0) if bool((y == 3).any()) else 0), edge_index)

    numbered = loose(DATA.clone())
    numbered.n_id = torch.arange(500)
    parts = [numbered.subgraph(numbered.y != 3), numbered]
    model = Voted(Sometimes(), groups=5)
    assert [certify(model, part, against=Links(1)).how for part in parts] == ["vote", "none"]
    proof = certify_batches(model, parts, against=Links(1))
    assert proof.how == "none" and "no vote is safe" in proof.reason and int(proof.budget.sum()) == 0


def test_certified_radii_stream_layer_by_layer(models):
    _, faithful = models
    parts = layerwise_readings(faithful, DATA, batch=99)
    found = torch.cat([certified_radius(part.reading.explanation, 3) for part in parts])
    torch.testing.assert_close(found, certified_radius(read(faithful, DATA).explanation, 3), atol=1e-5, rtol=0)


def test_a_metric_that_is_no_mean_is_refused():
    with pytest.raises(UnknownNameError, match="auc"):
        Streamed("auc")


def test_a_loader_has_a_hop_for_each_run_of_a_layer_and_refuses_models_that_reach_further():
    torch.manual_seed(0)
    model = Twice()
    parts = concat_readings(batch_readings(model, exact_loader(model, DATA, batch=200)), 500)
    close(parts.logits, read(model, DATA).logits)
    with pytest.raises(CallError, match="exchange messages elsewhere"):
        exact_loader(Mixed(), DATA)


class Powers(nn.Module):
    """Its first layer exchanges messages three times."""

    def __init__(self):
        super().__init__()
        self.a, self.b = SGConv(16, 16, K=3), GATConv(16, 4)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index).relu(), edge_index)


def directed():
    """Each edge goes from the lower id to the higher one, as a paper cites older ones: the first nodes are shallow."""
    graph = loose(DATA.clone())
    graph.edge_index = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]]
    return graph


@pytest.mark.parametrize("graph", [DATA, directed()], ids=["undirected", "directed"])
def test_a_layer_that_reads_several_hops_is_refused(graph):
    torch.manual_seed(0)
    model = Powers().eval()
    with pytest.raises(CallError, match="several times in a layer"):
        exact_loader(model, graph)
    with pytest.raises(CallError, match="several times in a layer"):
        list(layerwise_readings(model, graph))
    deep = Deep().eval()
    close(concat_readings(layerwise_readings(deep, graph), 500).logits, read(deep, graph).logits)
    assert loose(exact_loader(deep, graph)).node_sampler.fanout == (-1, -1, -1)


@pytest.mark.parametrize(
    "job",
    [
        lambda model, loader: next(batch_readings(model, loader)),
        lambda model, loader: audit_batches(model, loader, ATTACK),
        lambda model, loader: certify_batches(model, loader, k=3, steps=1),
        lambda model, loader: certify_batches(Voted(model, groups=5), loader, against=Links(1)),
    ],
    ids=["readings", "audit", "certificate", "votes"],
)
def test_seed_nodes_that_lack_neighbours_are_refused(models, job):
    with pytest.raises(DataError, match=r"at most \(3, -1\) neighbours per hop"):
        job(models[0], Loader(DATA, (3, -1), batch=50))
    with pytest.raises(DataError, match="reads more than the 1 hops"):
        job(models[0], full_neighbour_loader(DATA, hops=1, batch=50))


class PairSampler(NeighbourSampler):
    """What PyG's own sampler does for pairs, which needs an extension."""

    def sample_from_edges(self, index, neg_sampling=None):
        nodes, at = torch.stack([index.row, index.col]).unique(return_inverse=True)
        sample = self.sample_from_nodes(NodeSamplerInput(input_id=None, node=nodes))
        return replace(sample, metadata=(index.input_id, at, index.label, None))


@pytest.mark.parametrize("fanout", [(2, 2), (-1, -1)])
def test_loaders_and_batches_of_pairs_are_refused(models, fanout):
    graph, model = loose(DATA.__class__(x=DATA.x, edge_index=DATA.edge_index)), models[0]
    loader = LinkLoader(graph, PairSampler(CSC.of(graph), fanout), graph.edge_index[:, :40], batch_size=20)
    for job in (batch_readings, audit_batches, certify_batches):
        with pytest.raises(DataError, match=r"LinkLoader .*, to fgai\.audit or fgai\.certify"):
            list(loose(job)(model, loader))
        with pytest.raises(DataError, match="this is a sampled batch: its"):
            list(loose(job)(model, [*loader]))


def after_isolated(count):
    """The graph with nodes without links before its own."""
    labels = {name: torch.cat([DATA[name][:count], DATA[name]]) for name in ("x", "y", "test_mask")}
    return DATA.__class__(edge_index=DATA.edge_index + count, **labels)


def test_too_few_hops_are_noticed_after_batches_with_whole_neighbourhoods(models):
    loader = full_neighbour_loader(after_isolated(50), hops=1, batch=50)
    for job in (batch_readings, audit_batches):
        with pytest.raises(DataError, match="reads more than the 1 hops"):
            list(loose(job)(models[0], loader))
    lonely = loose(DATA.clone())
    lonely.edge_index = torch.arange(500).expand(2, 500)  # to itself: every neighbourhood is whole
    parts = concat_readings(batch_readings(models[0], full_neighbour_loader(lonely, hops=1, batch=50)), 500)
    close(parts.logits, read(models[0], lonely).logits)


def test_batches_of_node_ids_are_read_as_the_graph():
    class Ids(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.conv = nn.Embedding(500, 8), GATConv(8, 3)

        def forward(self, x, edge_index):
            return self.conv(self.embed(x), edge_index)

    model, graph = Ids(), Data(x=torch.arange(500), edge_index=DATA.edge_index)
    parts = concat_readings(batch_readings(model, full_neighbour_loader(graph, hops=1, batch=200)), 500)
    close(parts.logits, read(model, graph).logits)


def test_enough_hops_are_known_in_directed_graphs_with_parallel_layers_and_by_pyg():
    class Parallel(nn.Module):
        """Two layers side by side: one hop."""

        def __init__(self):
            super().__init__()
            self.one, self.two = GATConv(16, 4), GATConv(16, 4)

        def forward(self, x, edge_index):
            return self.one(x, edge_index) + self.two(x, edge_index)

    parts = list(full_batches(Parallel(), full_neighbour_loader(directed(), hops=1, batch=50)))
    assert len(parts) == 10
    sampler = SimpleNamespace(num_neighbors=NumNeighbors([-1, 5]))  # a stand-in: PyG's loader needs an extension
    with pytest.raises(DataError, match=r"\(-1, 5\) neighbours"):
        next(full_batches(Parallel(), SimpleNamespace(node_sampler=sampler)))  # pyright: ignore[reportArgumentType]
