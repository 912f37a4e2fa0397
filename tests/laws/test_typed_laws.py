"""Typed graphs are audited, trained and certified as other graphs are; what does not work is refused in words."""

import pytest
import torch

import fgai
from fgai import FGAI, AdversarialTraining, TypedInjection, Vanilla, Voted
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
from fgai.reading import Reader, open_reader
from fgai.report.content import content
from fgai.typed import join
from loose import loose
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
    "method", [Vanilla(epochs=1), AdversarialTraining(adversary=ATTACK, epochs=1), FGAI(adversary=ATTACK, epochs=1)]
)
def test_models_of_typed_graphs_are_trained(name, method):
    model, data = film_model(name), films()
    fit = method.fit(model, loose(data))
    assert fit.best.val_f1 is not None and all(torch.isfinite(p).all() for p in fit.model.parameters())
    changed = [not torch.equal(a, b) for a, b in zip(model.parameters(), fit.model.parameters(), strict=True)]
    assert any(changed) and fgai.read(fit.model, data).logits.shape == (14, 3)


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
        "A neighbour loader ": lambda: fit_graph(Vanilla(epochs=1), model, data, batch=4),
    }
    for what, door in doors.items():
        with pytest.raises(DataError, match=f"{what.strip()} is for graphs with one type of nodes, and this one has"):
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
