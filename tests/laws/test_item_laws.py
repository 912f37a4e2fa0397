"""Laws of graph classification: a graph of a batch is read, attacked and scored as it would be alone."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

import fgai
from fgai import GraphInjection, NodeInjection
from fgai.adversaries import GAINS, GRBCD, AttackEnsemble, ChosenInjection, EdgeRewiring, FeatureBall, SingleTarget
from fgai.backbones import build
from fgai.certificates import Links
from fgai.errors import DataError, FGAIError, SettingError
from fgai.large import GraphLoader, Loader, audit_batches, batch_readings
from fgai.methods import METHODS
from fgai.reading import Reader, open_reader, read
from fgai.trial import attacked_trial, clean_trial
from worlds import links, molecules, shuffled, table

BACKBONES = ("gat-graphs", "gatv2-graphs", "gps-graphs")
GRAPHS = molecules()
ATTACKS = (GraphInjection(steps=2), GraphInjection(3, 1, steps=2, links="degree"), NodeInjection(1, 9, steps=2))


def batch_of(graphs=GRAPHS) -> Any:
    return Batch.from_data_list(graphs)


def model_of(name="gat-graphs"):
    return build(name, batch_of()).eval()


def alone(graph, number):
    """One graph of a batch, as PyG would hold it alone, whatever the order of the nodes in the batch."""
    nodes = (graph.batch == number).nonzero().flatten()
    at = torch.full((graph.num_nodes,), -1).scatter(0, nodes, torch.arange(len(nodes)))
    edges = graph.edge_index[:, graph.batch[graph.edge_index[1]] == number]
    return nodes, Data(x=graph.x[nodes], edge_index=at[edges], batch=torch.zeros(len(nodes), dtype=torch.long))


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("adversary", ATTACKS)
def test_an_attacked_graph_answers_in_a_batch_as_it_does_alone(name, adversary):
    model, batch = model_of(name), batch_of()
    with open_reader(model) as reader:
        site = adversary.place(batch)
        now = site.read(reader, adversary.climb(reader, site, adversary.start(site), GAINS["margin"](reader(batch))))
    assert now.items is not None and (now.items.kind, now.items.count) == ("graphs", len(GRAPHS))
    assert now.graph.num_nodes == batch.num_nodes + adversary.nodes * len(GRAPHS)
    for number in range(len(GRAPHS)):
        nodes, graph = alone(now.graph, number)
        with torch.no_grad():
            assert torch.allclose(model(graph.x, graph.edge_index, graph.batch)[0], now.logits[number], atol=1e-5)
        one = table(read(model, graph).explanation)
        whole = table(now.explanation)
        for (source, target), weight in one.items():
            assert whole[int(nodes[source]), int(nodes[target])] == pytest.approx(weight, abs=1e-5)


@pytest.mark.parametrize("adversary", ATTACKS)
def test_new_nodes_are_linked_inside_one_graph_each_with_rows_of_the_data(adversary):
    batch, model = batch_of(), model_of()
    with open_reader(model) as reader:
        now = adversary(reader, batch, GAINS["margin"](reader(batch)))
    graph, old = now.graph, batch.num_nodes
    assert torch.equal(graph.batch[:old], batch.batch)
    assert graph.batch[old:].tolist() == [g for g in range(len(GRAPHS)) for _ in range(adversary.nodes)]
    assert all(graph.batch[source] == graph.batch[target] for source, target in links(graph.edge_index))
    for node in range(old, graph.num_nodes):
        own = [target for source, target in links(now.perturbation.added) if source == node]
        size = GRAPHS[int(graph.batch[node])].num_nodes
        assert len(own) == len(set(own)) == min(adversary.edges, size) and max(own) < old
    if adversary.features == "realistic":
        assert set(map(tuple, graph.x[old:].tolist())) <= set(map(tuple, torch.eye(4).tolist()))
    assert torch.equal(graph.y, batch.y) and graph.ptr.tolist()[-1] == graph.num_nodes


@pytest.mark.parametrize("adversary", ATTACKS)
def test_links_and_climb_of_a_graph_do_not_depend_on_the_rest_of_the_batch(adversary):
    model, order = model_of("gatv2-graphs"), [4, 1, 5, 0, 3, 2]
    model = model.double()
    graphs = [replace_x(graph) for graph in GRAPHS]
    everything, other = batch_of(graphs), batch_of([graphs[number] for number in order])
    box = adversary.place(everything).box
    with open_reader(model) as reader:
        for batch, numbers in ((other, order), *((batch_of([graph]), [i]) for i, graph in enumerate(graphs))):
            both = []
            for one in (everything, batch):
                site = replace(adversary.place(one), box=box)  # the range of the features is that of the batch
                x = adversary.climb(reader, site, adversary.start(site), GAINS["margin"](reader(one)))
                pairs = site.links[:, : site.links.size(1) // 2] - torch.tensor([[one.num_nodes], [0]])
                local = pairs - torch.stack(
                    [pairs[0] // adversary.nodes * adversary.nodes, one.ptr[one.batch[pairs[1]]]]
                )
                both.append((site.box.rows(x).view(len(one.ptr) - 1, adversary.nodes, -1), pairs[0], local))
            (x, of, every_link), (part, of_part, own) = both
            assert torch.allclose(x[numbers], part, atol=1e-9)
            for at, number in enumerate(numbers):
                mine = every_link[:, of // adversary.nodes == number]
                assert torch.equal(mine, own[:, of_part // adversary.nodes == at])


def replace_x(graph):
    graph = graph.clone()
    graph.x = graph.x.double()
    return graph


@pytest.mark.parametrize("name", BACKBONES)
def test_the_order_of_the_graphs_does_not_matter(name):
    model, order = model_of(name), [5, 3, 1, 0, 2, 4]
    one, other = (Reader(model)(batch_of(graphs)) for graphs in (GRAPHS, [GRAPHS[i] for i in order]))
    assert torch.allclose(one.logits[order], other.logits, atol=1e-6)
    reports = []
    for graphs in (GRAPHS, [GRAPHS[i] for i in order]):
        with open_reader(model) as reader:
            clean = clean_trial(reader, batch_of(graphs), "last")
            now = attacked_trial(GraphInjection(steps=1), "margin", clean, seed=1)
            reports.append(fgai.metrics.measure(now))
    first, second = reports
    ordered = ("f_slope_plus", "f_slope_minus", "g_jsd_released")  # ties of weights, and rows, go by the order of edges
    for metric in first.keys() - {*ordered}:
        assert first[metric] == pytest.approx(second[metric], abs=1e-4, nan_ok=True), metric


@pytest.mark.parametrize("name", BACKBONES)
def test_the_order_of_the_nodes_and_edges_does_not_matter(name):
    model, batch = model_of(name), batch_of()
    order = torch.randperm(batch.num_nodes, generator=torch.Generator().manual_seed(1))
    at = order.argsort()
    moved = Data(x=batch.x[order], edge_index=at[shuffled(batch).edge_index], y=batch.y, batch=batch.batch[order])
    one, other = read(model, batch), read(model, moved)
    assert torch.allclose(one.logits, other.logits, atol=1e-6)
    expected = {(int(at[s]), int(at[t])): weight for (s, t), weight in table(one.explanation).items()}
    found = table(other.explanation)
    assert found.keys() == expected.keys()
    assert all(found[pair] == pytest.approx(weight, abs=1e-6) for pair, weight in expected.items())


@pytest.mark.parametrize("name", BACKBONES)
def test_batches_of_a_loader_answer_as_one_batch_of_all(name):
    model, batch = model_of(name), batch_of()
    loader = GraphLoader(batch, batch=4, shuffle=False)
    parts = [read(model, part).logits for part in loader]
    assert [len(part) for part in parts] == [4, 2]
    assert torch.allclose(torch.cat(parts), read(model, batch).logits, atol=1e-6)


def test_a_list_a_loader_and_a_batch_are_audited_alike():
    model = model_of()
    inputs = (batch_of(), GRAPHS, DataLoader(GRAPHS, batch_size=4))
    with open_reader(model) as reader:
        trials = [clean_trial(reader, data) for data in inputs]
    assert all(torch.equal(trials[0].predictions, trial.predictions) for trial in trials[1:])
    report = fgai.audit(model, GRAPHS, seeds=1)
    assert report.graph == {"nodes": batch_of().num_nodes, "edges": batch_of().num_edges, "graphs": 6}
    assert report.faithfulness is not None and report.faithfulness.items == "graphs"
    assert report.adversary["name"] == "graph-injection"
    shift = report.moved[0]
    assert shift.answer == int(read(model, batch_of()).logits[batch_of().batch[shift.node]].argmax())


def test_without_labels_the_answers_are_of_graphs_and_the_predictions_are_the_labels():
    graphs = [Data(x=graph.x, edge_index=graph.edge_index) for graph in GRAPHS]
    with open_reader(model_of()) as reader:
        clean = clean_trial(reader, batch_of(graphs))
        assert clean.y.shape == (6,) and fgai.metrics.METRICS["f1"].compute(clean) == 1.0
        now = attacked_trial(GraphInjection(steps=1), "margin", clean, seed=0)
    assert len(now.now.logits) == 6


@pytest.mark.parametrize("kind", [AttackEnsemble, FeatureBall, SingleTarget, ChosenInjection, EdgeRewiring, GRBCD])
def test_any_other_adversary_attacks_graphs_or_refuses_in_words(kind):
    few = {"schedules": ((1, 0.5),), "surrogates": ("kl",)} if kind in (AttackEnsemble, ChosenInjection) else {}
    adversary = replace(kind(**few), **({"edges": (2,), "nodes": 1} if few else {}))
    batch, model = batch_of(), model_of()
    with open_reader(model) as reader:
        gain = GAINS["margin"](reader(batch))
        if kind in (ChosenInjection, EdgeRewiring, GRBCD):
            with pytest.raises(FGAIError, match=r"GraphInjection|give random or degree"):
                adversary(reader, batch, gain)
        else:
            assert len(adversary(reader, batch, gain).logits) == len(GRAPHS)
        with pytest.raises(DataError, match="GraphInjection"):
            SingleTarget().sweep(reader, batch, [0])


def leave_one_out(model, batch):
    with open_reader(model) as reader:
        reader(batch).attribution("leave-one-out", read=reader, graph=batch)


def test_what_serves_nodes_only_refuses_graphs_in_words():
    model, batch = model_of(), batch_of()
    for refused in (
        lambda: fgai.certify(model, batch, against=Links(1)),
        lambda: METHODS["gnnguard"](epochs=1).fit(model, batch),
        lambda: Loader(batch),
        lambda: audit_batches(model, [batch]),
        lambda: next(batch_readings(model, [batch])),
        lambda: leave_one_out(model, batch),
    ):
        with pytest.raises(FGAIError, match=r"graphs|rows of logits"):
            refused()
    with pytest.raises(SettingError, match="random or degree"):
        NodeInjection(1, 1, links="safe").place(batch)
    with pytest.raises(DataError, match="stay inside one graph"):
        fgai.Perturbation(added=torch.tensor([[0], [batch.num_nodes - 1]])).apply(batch)
