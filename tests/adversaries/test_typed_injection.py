"""Injections into a typed graph: nodes of one type, linked along its relations."""

from functools import partial

import pytest
import torch

import fgai
from fgai import TypedInjection
from fgai.adversaries import GAINS, AttackEnsemble, ChosenInjection, Perturbation
from fgai.adversaries.typed import added_types, separate_pairs
from fgai.errors import DataError, SettingError
from fgai.reading import open_reader
from fgai.typed import join, split
from loose import loose
from worlds import film_model, films, links, small

RELATIONS = loose(films()).edge_types
ATTACKS = (
    TypedInjection(2, 3, steps=1),
    TypedInjection(2, 3, steps=1, node_type="actor", features="realistic"),
    TypedInjection(2, 3, steps=1, node_type="movie", links="degree"),
    TypedInjection(2, 3, steps=1, node_type="actor", relations=(("actor", "to", "movie"),)),
    fgai.NodeInjection(2, 3, steps=1),
)


@pytest.mark.parametrize("adversary", ATTACKS)
def test_new_nodes_have_one_type_its_range_and_links_along_relations(adversary):
    data = films()
    graph = loose(join(data))
    with open_reader(film_model("hgt")) as read:
        result = adversary(read, graph, GAINS["kl"](read(graph)))
    now, size = loose(result.graph), graph.num_nodes
    kind = getattr(adversary, "node_type", None) or "director"
    assert [graph.typed.node_types[number] for number in now.node_type[size:]] == [kind] * 2
    for (source, target), number in zip(links(result.perturbation.added), result.perturbation.edge_type, strict=True):
        ends = tuple(graph.typed.node_types[int(now.node_type[node])] for node in (source, target))
        assert ends == (RELATIONS[number][0], RELATIONS[number][2])
        assert max(source, target) >= size
    own = data[kind].x
    new = split(now).graph[kind].x[len(own) :]
    low, high = (own.min(0).values, own.max(0).values) if adversary.box is None else (-1.0, 1.0)
    assert bool(((new >= low - 1e-6) & (new <= high + 1e-6)).all())
    assert not now.x[size:, own.size(1) :].any(), "columns that the type does not have stay zero"
    again = result.perturbation.apply(graph)
    assert torch.equal(loose(again).edge_type, now.edge_type) and torch.equal(loose(again).x, now.x)
    assert torch.equal(now.y, graph.y) and len(result.logits) == 14 + (2 if kind == "movie" else 0)


@pytest.mark.parametrize("kind", [AttackEnsemble, partial(ChosenInjection, adam=())])
def test_ensembles_of_injections_attack_a_typed_graph(kind):
    graph = loose(join(films()))
    adversary = kind(nodes=2, edges=(3,), surrogates=("margin",), schedules=((1, 0.5),))
    with open_reader(film_model("hgt")) as read:
        result = adversary(read, graph, GAINS["kl"](read(graph)))
    assert loose(result.graph).node_type[27:].tolist() == [1, 1] and len(result.logits) == 14


def test_links_are_in_both_directions_unless_relations_are_chosen():
    both, one = (attack.place(join(films())).links for attack in (ATTACKS[1], ATTACKS[3]))
    assert both.size(1) == 12 and one.size(1) == 6
    assert set(links(both)) == {*links(one), *links(one.flip(0))}


def test_a_saved_perturbation_of_a_typed_graph_is_the_same(tmp_path):
    graph = join(films())
    site = ATTACKS[0].place(graph)
    change = site.change(ATTACKS[0].start(site))
    change.save(tmp_path / "change.safetensors")
    again = Perturbation.load(tmp_path / "change.safetensors")
    assert torch.equal(loose(again.apply(graph)).node_type, loose(change.apply(graph)).node_type)
    assert torch.equal(loose(again).edge_type, loose(change).edge_type)


def test_links_take_turns_among_relations_between_the_same_types():
    data = films()
    data["director", "also", "movie"].edge_index = torch.tensor([[0], [0]])
    graph = loose(join(data))
    chosen = loose(ATTACKS[0].place(graph)).types["edge_type"]
    names = [graph.typed.edge_types[number][1] for number in chosen if graph.typed.edge_types[number][2] == "movie"]
    assert names.count("to") == names.count("also") == 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"node_type": "studio"}, "node_type='studio', and the graph has"),
        ({"relations": (("movie", "to", "studio"),)}, "name some of these"),
        ({"node_type": "director", "relations": (("movie", "to", "actor"),)}, "there are only 0 nodes to link to"),
        ({"node_type": "director", "targets": (15, 16, 17)}, "no relation links a new node of type 'director'"),
        ({"edges": 15}, "only 14 nodes to link to"),
    ],
)
def test_settings_that_do_not_fit_the_graph_are_refused_in_words(settings, says):
    with pytest.raises(SettingError, match=says):
        TypedInjection(**{"nodes": 2, "edges": 3, **settings}).place(join(films()))


def test_graphs_and_links_without_a_relation_are_refused_in_words():
    with pytest.raises(SettingError, match="this graph has one type; leave them out"):
        TypedInjection(2, 3, node_type="movie").place(small())
    with pytest.raises(DataError, match="from a node of type 'actor' to one of type 'actor' was added"):
        added_types(join(films()), 0, torch.tensor([[20], [21]]))
    assert added_types(small(), 1, torch.tensor([[0], [1]])) == {}
    x, link = torch.zeros(1, 6), torch.tensor([[27], [0]])
    for wrong, says in (
        (Perturbation(x, link, node_type=torch.tensor([7])), "types up to 7"),
        (Perturbation(x, link, edge_type=torch.tensor([99])), "no such relation"),
        (Perturbation(x, link, edge_type=torch.tensor([RELATIONS.index(("actor", "to", "movie"))])), "'director' to"),
    ):
        with pytest.raises(DataError, match=says):
            wrong.apply(join(films()))
    with pytest.raises(DataError, match="an integer for each of the 1 new ones"):
        Perturbation(x, link, node_type=torch.tensor([0, 1]))
    assert loose(Perturbation(x, link).apply(join(films()))).edge_type[-1] == RELATIONS.index(
        ("director", "to", "movie")
    )


@pytest.mark.parametrize("settings", [{"node_type": 3}, {"relations": "all"}, {"relations": (("a", "b"),)}])
def test_settings_that_no_graph_fits_are_refused_when_they_are_given(settings):
    with pytest.raises(SettingError, match=r"triples \(source, relation, target\)"):
        TypedInjection(**settings)


def test_separate_pairs_have_the_types_of_each_relation():
    graph = loose(join(films()))
    new, types = separate_pairs(graph)
    kinds = [graph.typed.node_types[number] for number in types["node_type"]]
    assert [(kinds[2 * i], kinds[2 * i + 1]) for i in range(4)] == [(r[0], r[2]) for r in RELATIONS]
    assert new.t().tolist() == [[27 + 2 * i, 28 + 2 * i] for i in range(4)]
