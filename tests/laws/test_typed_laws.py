"""Typed graphs are audited, trained and certified as other graphs are; what does not work is refused in words."""

from dataclasses import replace

import pytest
import torch
from torch_geometric.data import Batch, HeteroData

import fgai
from fgai import FGAI, AdversarialTraining, LayerNorm, TypedInjection, Vanilla, Voted
from fgai.adversaries import GAINS, EdgeRewiring, SingleTarget
from fgai.backbones import build
from fgai.certificates import Features, Links
from fgai.datasets import DATASETS, compact, fingerprint
from fgai.errors import DataError
from fgai.explanations import class_logits
from fgai.faithfulness import pyg_scores
from fgai.faithfulness.deletions import Deletions, Incoming, copied_logits, full_graph_logits
from fgai.graph import delete_edges
from fgai.large import Loader, audit_batches, convert
from fgai.large.fitting import fit_graph
from fgai.methods.layernorm import Normalised
from fgai.reading import Reader, open_reader
from fgai.report.content import content
from fgai.trial import attacked_trial, clean_trial
from fgai.typed import join
from loose import loose
from pretend_device import PretendDevice
from worlds import FILM_MODELS, film_model, films

ATTACK = TypedInjection(2, 3, steps=1)


@pytest.mark.parametrize("name", ["han", "hgt", pytest.param("hetero-conv", marks=pytest.mark.slow)])
def test_an_audit_of_a_typed_graph_has_grades_types_and_names(name):
    data = films()
    data.class_names = ["action", "comedy", "drama"]
    report = fgai.audit(film_model(name), data, ATTACK, seeds=1)
    reading = fgai.read(film_model(name), data)
    right = (reading.logits.argmax(1) == data["movie"].y)[data["movie"].test_mask]
    assert report.clean["f1"] == pytest.approx(float(right.double().mean()))
    assert report.clean["overlap"] == 1.0 and report.clean["g_tvd"] == 0.0 and report.faithfulness is not None
    assert {row.node for row in report.moved} <= set(range(14)), "only movies have answers"
    assert report.names["0"] == "movie 0" and set(report.types.values()) <= {"movie", "director", "actor"}
    injected = {kind for node, kind in report.types.items() if int(node) >= 27}
    assert injected <= {"director"} and report.class_names[0] == "action"
    full = any("each deletion ran on the full graph" in note for note in report.notes)
    assert full == (name == "han"), "the semantic attention of HAN is a mean over all nodes"
    page = content(report)
    assert page["types"] == report.types and set(page["kinds"]) == set(report.types.values())


def in_another_order(data):
    """The same graph: its node types and the edges of each relation in another order.

    The relations keep theirs: `HGTConv` of PyG takes them to be in the order of its metadata.
    """
    other = HeteroData()
    for kind in sorted(data.node_types):
        other[kind].update(data[kind].to_dict())
    for relation in data.edge_types:
        edges = data[relation].edge_index
        order = torch.randperm(edges.size(1), generator=torch.Generator().manual_seed(1))
        other[relation].edge_index = edges[:, order]
    return other


@pytest.mark.parametrize("name", FILM_MODELS)
def test_the_order_of_types_and_edges_does_not_matter(name):
    found = []
    with open_reader(film_model(name).double()) as read:
        for data in (films(), in_another_order(films())):
            for kind in data.node_types:
                data[kind].x = data[kind].x.double()
            graph = join(data)
            now = attacked_trial(replace(ATTACK, node_type="director"), "kl", clean_trial(read, graph), seed=1)
            found.append(fgai.metrics.measure(now))
    first, second = found
    ordered = ("f_slope_plus", "f_slope_minus", "g_jsd_released")  # ties of weights, and rows, go by the order of edges
    for metric in first.keys() - {*ordered}:
        assert first[metric] == pytest.approx(second[metric], abs=1e-6, nan_ok=True), metric
    assert first["g_tvd"] > 0


@pytest.mark.parametrize("name", ["hgt", "hetero-conv", "to-hetero"])
def test_a_batch_of_typed_graphs_answers_as_each_does_alone(name):
    """Not with HAN: its semantic attention is a mean over all nodes of a type."""
    one, two, model = films(), films(movies=9, directors=4), film_model(name)
    both = fgai.read(model, loose(Batch.from_data_list([one, two])))
    assert torch.allclose(both.logits, torch.cat([fgai.read(model, data).logits for data in (one, two)]), atol=1e-6)


@pytest.mark.parametrize("name", ["han", "hgt"])
def test_a_typed_model_is_attacked_and_trained_where_it_is(name):
    def job(where):
        model, data = film_model(name).to(where), films().to(where)
        model = FGAI(adversary=ATTACK, epochs=1).fit(model, data).model
        reading = fgai.read(Normalised(model, "rows"), data)
        with open_reader(model) as read:
            graph = join(data)
            attacked = ATTACK(read, graph, GAINS["kl"](read(graph).detach()))
        return reading.logits.cpu(), reading.explain(3).by_type(), attacked.logits.detach().cpu()

    logits, by_type, attacked = job("cpu")
    with PretendDevice("cuda"):
        there, also, hit = job("cuda")
    assert torch.allclose(there, logits, atol=1e-5) and torch.allclose(hit, attacked, atol=1e-5)
    assert also == pytest.approx(by_type, abs=1e-5)


@pytest.mark.parametrize("name", ["hgt", "hetero-conv"])
@pytest.mark.parametrize("sparse", [False, True])
def test_deletions_in_copies_equal_deletions_in_the_typed_graph(name, sparse):
    graph = loose(join(films()))
    if sparse:
        graph.x = graph.x.to_sparse().coalesce()
    into = [(graph.edge_index[1] == node).nonzero().flatten() for node in (2, 5)]
    deletions = Deletions(torch.tensor([2, 5]), torch.tensor([0, 1]), torch.stack([into[0][0], into[1][-1]]))
    if name == "hetero-conv" and sparse:
        return  # GATConv of pairs multiplies dense features
    with open_reader(film_model(name)) as read:
        full = full_graph_logits(read, graph, deletions)
        copied = copied_logits(read, graph, deletions, Incoming(graph.edge_index, 27), depth=2)
        clean = class_logits(read(graph).logits)[deletions.node]
    assert torch.allclose(full, copied, atol=1e-5) and not torch.allclose(full, clean, atol=1e-5)


@pytest.mark.parametrize("name", FILM_MODELS)
@pytest.mark.parametrize(
    "method",
    [
        Vanilla(epochs=1),
        LayerNorm(epochs=1),
        AdversarialTraining(adversary=ATTACK, epochs=1),
        FGAI(adversary=ATTACK, epochs=1),
    ],
)
def test_models_of_typed_graphs_are_trained(name, method):
    model, data = film_model(name), films()
    fit = method.fit(model, loose(data))
    assert fit.best.val_f1 is not None and all(torch.isfinite(p).all() for p in fit.model.parameters())
    changed = [not torch.equal(a, b) for a, b in zip(model.parameters(), fit.model.parameters(), strict=True)]
    assert any(changed) and fgai.read(fit.model, data).logits.shape == (14, 3)


@pytest.mark.parametrize(("name", "sparse"), [*((name, False) for name in FILM_MODELS), ("hgt", True)])
def test_normalised_features_of_a_typed_graph_are_those_of_each_type(name, sparse):
    data, by_hand = films(), films()
    for kind in data.node_types:
        by_hand[kind].x = data[kind].x / data[kind].x.sum(1, keepdim=True)
        data[kind].x = data[kind].x.to_sparse().coalesce() if sparse else data[kind].x
    wrapped = Normalised(film_model(name), "rows").eval()
    expected = fgai.read(film_model(name), by_hand)
    reading = fgai.read(wrapped, data)
    torch.testing.assert_close(reading.logits, expected.logits)
    torch.testing.assert_close(reading.explanation.weight, expected.explanation.weight)
    with open_reader(wrapped) as read:
        graph = join(data)
        now = ATTACK(read, graph, GAINS["kl"](read(graph).detach()))
    assert now.graph.num_nodes == graph.num_nodes + 2 and not torch.equal(now.logits, reading.logits)


def test_training_lowers_the_loss_of_the_training_movies():
    data, model = films(), film_model("hgt")
    fit = Vanilla(epochs=30, lr=0.02).fit(model, loose(data))
    terms = [epoch.terms["label"] for epoch in fit.history]
    assert terms[-1] < 0.7 * terms[0]


def test_votes_certify_a_typed_model_and_no_deleted_link_changes_a_certified_answer():
    data, model = films(), film_model("hgt")
    voted = Voted(model, groups=5)
    proof = fgai.certify(voted, loose(data), against=Links(1))
    assert proof.how == "vote" and bool((proof.budget >= 1).any())
    graph = loose(join(data))
    for column in range(0, graph.num_edges, 7):
        ends = graph.edge_index[:, column]
        pair = ((graph.edge_index == ends[:, None]) | (graph.edge_index == ends.flip(0)[:, None])).all(0)
        now = voted.votes(delete_edges(graph, pair)).prediction
        assert torch.equal(now[proof.budget >= 1], proof.prediction[proof.budget >= 1])


def test_votes_of_han_are_refused_because_its_semantic_attention_is_a_mean_over_all_nodes():
    proof = fgai.certify(Voted(film_model("han"), groups=3), loose(films()), against=Links(1))
    assert proof.how == "none" and "no vote is safe" in proof.reason and not bool(proof.budget.any())
    with pytest.raises(DataError, match=r"A proof without votes, fgai\.Voted\(model\), is for graphs with one type"):
        fgai.certify(film_model("hgt"), loose(films()), against=Features(0.1))


@pytest.mark.parametrize("by", [EdgeRewiring(2), SingleTarget(steps=1)])
def test_attacks_for_one_type_are_refused_in_words(by):
    with pytest.raises(DataError, match=r"one type of nodes|TypedInjection"):
        read, graph = Reader(film_model("hgt")), join(films())
        by(read, graph, GAINS["kl"](read(graph).detach()))


def test_functions_for_one_type_refuse_a_typed_graph_in_words(tmp_path):
    data, model = loose(films()), film_model("hgt")
    doors = {
        "A neighbour loader": lambda: Loader(data),
        "A graph store": lambda: convert(data, tmp_path / "graph"),
        "An audit of sampled batches": lambda: audit_batches(model, [data]),
        "Backbone gat": lambda: build("gat", data),
        "`pyg_scores`": lambda: pyg_scores(model, data, torch.tensor([1])),
        "Training in batches": lambda: fit_graph(Vanilla(epochs=1), model, data, batch=4),
    }
    for what, door in doors.items():
        with pytest.raises(DataError, match=f"{what} is for graphs with one type of nodes, and this one has"):
            door()
    assert fit_graph(Vanilla(epochs=1), model, data).history


def test_the_fingerprint_of_a_typed_graph_sees_each_part():
    prints = {fingerprint(films())}
    for change in (
        lambda d: d["actor"].x.add_(1),
        lambda d: d["movie"].y.sub_(1),
        lambda d: setattr(d["movie", "to", "actor"], "edge_index", d["movie", "to", "actor"].edge_index.flip(1)),
    ):
        change(data := films())
        prints.add(fingerprint(data))
    assert len(prints) == 4


def test_the_typed_dataset_is_listed_and_compact_keeps_its_types():
    assert "imdb" in DATASETS
    data = films()
    data["actor"].x = torch.eye(8, 4)
    small = compact(data)
    assert small["actor"].x.is_sparse and not small["movie"].x.is_sparse and not data["actor"].x.is_sparse
