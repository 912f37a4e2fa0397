"""Graphs in the record of an audit: what they hold is what the model and the data say."""

import json
from dataclasses import replace
from itertools import combinations
from math import dist

import pytest
import torch
from torch_geometric.data import Data

from fgai import GraphInjection
from fgai.adversaries import GAINS
from fgai.auditing import AuditReport, GraphView, audit
from fgai.auditing.graph_view import CHANGED, MAX_ATOMS, OTHERS, graph_views
from fgai.backbones import build
from fgai.errors import DataError
from fgai.reading import open_reader, read
from fgai.trial import attacked_trial, clean_trial
from loose import loose
from worlds import community, links, molecules, named_molecules, table, trained

ATTACK = GraphInjection(2, 2, steps=1)


@pytest.fixture(scope="module", name="batch")
def _batch():
    return named_molecules()


@pytest.fixture(scope="module", name="model")
def _model(batch):
    return build("gat-graphs", batch).eval()


@pytest.fixture(scope="module", name="found")
def _found(batch, model):
    return audit(model, batch, ATTACK, seeds=2)


def views_of(model, data, seeds=1, nodes=(), graphs=()):
    """What an audit keeps of the graphs, without the rest of the audit."""
    with open_reader(model) as reader:
        clean = clean_trial(reader, data, "tree")
        trials = [attacked_trial(ATTACK, "cross-entropy", clean, seed) for seed in range(seeds)]
        return graph_views(clean, trials, nodes, graphs)


@pytest.fixture(scope="module", name="attacked")
def _attacked(batch, model):
    """The readings of the two attacks."""
    with open_reader(model) as reader:
        gain = GAINS["cross-entropy"](reader(batch))
        return [replace(ATTACK, seed=seed)(reader, batch, gain).detach() for seed in (0, 1)]


def tree(reading, nodes):
    """The weight of each edge by the formula of `tree`, with dense matrices: summed over nodes and layers."""
    total, value = {}, torch.ones(nodes, dtype=torch.double)
    for layer in reversed(reading.attention.values()):
        weights, below = table(layer), torch.zeros(nodes, dtype=torch.double)
        for (source, target), weight in weights.items():
            along = float(value[target]) * weight
            total[source, target] = total.get((source, target), 0.0) + along
            below[source] += along
        value = below
    return total


def test_the_weight_of_a_bond_is_its_sum_over_the_nodes_before_and_after(found, batch, model, attacked):
    before = tree(read(model, batch), batch.num_nodes)
    after = [tree(reading, loose(reading.graph).num_nodes) for reading in attacked]
    for view in found.graph_views:
        nodes = {atom[0] for atom in view.atoms}
        own = {pair for pair in {*before, *after[view.seed]} if {*pair} <= nodes}
        assert {bond[:2] for bond in view.bonds} == own
        for source, target, old, new, *_ in view.bonds:
            expected = before.get((source, target)), after[view.seed].get((source, target))
            assert (old, new) == tuple(None if w is None else pytest.approx(w, rel=1e-3) for w in expected)


def test_atoms_and_bonds_have_their_names_reasons_and_classes(found, batch, model, attacked):
    reasons = dict(zip(links(batch.edge_index), batch.edge_mask.tolist(), strict=True))
    clean = read(model, batch).probs.argmax(1)
    for view in found.graph_views:
        now = loose(attacked[view.seed].graph)
        kinds = dict(zip(links(now.edge_index), now.edge_attr.argmax(1).tolist(), strict=True))
        assert [atom[0] for atom in view.atoms] == (now.batch == view.graph).nonzero().flatten().tolist()
        assert len(view.atoms) == int((batch.batch == view.graph).sum()) + 2
        for node, kind, _, _, known in view.atoms:
            assert kind == batch.element_names[int(now.x[node].argmax())]
            assert known == (node < batch.num_nodes and bool(batch.node_mask[node]))
        for source, target, _, _, kind, known in view.bonds:
            assert kind == (batch.bond_names[kinds[source, target]] if (source, target) in kinds else "")
            assert known == reasons.get((source, target), False)
        assert (view.label, view.answer) == (int(batch.y[view.graph]), int(clean[view.graph]))
        assert view.answer_attacked == int(attacked[view.seed].probs[view.graph].argmax())


def test_graphs_that_changed_most_come_first_and_each_under_its_worst_attack(model):
    many = named_molecules(100)
    views = views_of(model, many, seeds=2)
    with open_reader(model) as reader:
        clean = reader(many).detach()
        hit = [replace(ATTACK, seed=s)(reader, many, GAINS["cross-entropy"](clean)).detach().probs for s in (0, 1)]
    change = torch.stack([(probs - clean.probs).abs().sum(1) / 2 for probs in hit])
    tested = many.test_mask.nonzero().flatten().tolist()
    ranked = sorted(tested, key=lambda graph: -float(change.mean(0)[graph]))
    shown = [view.graph for view in views]
    assert shown[:CHANGED] == ranked[:CHANGED] and CHANGED < len(shown) <= CHANGED + OTHERS
    assert {*shown} <= {*tested} and len({*shown}) == len(shown)
    assert all(change[view.seed, view.graph] == change[:, view.graph].max() for view in views)


def test_asked_for_graphs_and_those_of_the_reference_are_there_and_large_ones_are_not(batch, model):
    outside, of_other = (~batch.test_mask).nonzero().flatten().tolist()[3:5]
    shown = {view.graph for view in views_of(model, batch, 1, [int(batch.ptr[outside])], [of_other, 10**6])}
    assert shown == {outside, of_other, *batch.test_mask.nonzero().flatten().tolist()}
    ring = torch.arange(MAX_ATOMS + 1)
    large = Data(x=torch.eye(4)[ring % 4], edge_index=torch.stack([ring, ring.roll(1)]), y=torch.tensor([0]))
    few = views_of(model, [*molecules(3), large], nodes=[30])
    assert {view.graph for view in few} == {0, 1, 2}


def test_places_are_the_same_each_time_apart_and_inside_no_bond(found, batch, model):
    assert tuple(views_of(model, batch, seeds=2)) == found.graph_views
    for view in found.graph_views:
        places = {atom[0]: atom[2:4] for atom in view.atoms}
        assert min(dist(a, b) for a, b in combinations(places.values(), 2)) > 0.3
        own = [places[node] for node in places if node < batch.num_nodes]
        across, down = (max(p[axis] for p in own) - min(p[axis] for p in own) for axis in (0, 1))
        assert across >= down - 1e-3
        lengths = [dist(places[s], places[t]) for s, t, old, *_ in view.bonds if s != t and old is not None]
        assert sum(lengths) / len(lengths) == pytest.approx(1.0, abs=0.01)


def test_without_names_kinds_are_columns_and_other_features_have_none(model):
    plain = molecules(6)
    view = views_of(model, plain)[0]
    assert [atom[1] for atom in view.atoms[:2]] == [str(int(row.argmax())) for row in plain[view.graph].x[:2]]
    assert {bond[4] for bond in view.bonds} == {""} and not any(part[-1] for part in (*view.atoms, *view.bonds))
    soft = [graph.clone() for graph in plain]
    for graph in soft:
        graph.x, graph.y = graph.x * 0.5, None
    view = views_of(model, soft)[0]
    assert {atom[1] for atom in view.atoms} == {""} and view.label is None


def test_names_of_columns_are_lists(model):
    wrong = named_molecules(6)
    wrong.element_names = "CNOH"
    with pytest.raises(DataError, match="`element_names` is 'CNOH'; give a list with a name for each column"):
        audit(model, wrong, ATTACK, seeds=1)


def test_models_of_nodes_have_no_graphs():
    with open_reader(trained()) as reader:
        clean = clean_trial(reader, community(), "tree")
        assert graph_views(clean, [clean], [3], []) == []


@pytest.fixture(scope="module", name="told")
def _told(found):
    return json.loads(found.json())


def test_a_record_is_read_back_as_it_was_and_an_old_one_without_graphs_too(found, told, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(told))
    assert AuditReport.load(tmp_path / "a.json").graph_views == found.graph_views
    old = {name: value for name, value in told.items() if name != "graph_views"}
    (tmp_path / "old.json").write_text(json.dumps(old))
    assert AuditReport.load(tmp_path / "old.json").graph_views == ()


@pytest.mark.parametrize(
    ("part", "value", "why"),
    [
        ("graph", 30, "a graph that the batch does not have"),
        ("atoms", [[0, "C", 0.0, 0.0, False]] * 2, "no atom, or one twice"),
        ("atoms", [], "no atom, or one twice"),
        ("atoms", [[2**60, "C", 0.0, 0.0, False]], "out of range"),
        ("atoms", [[0, "C", None, 0.0, False]], "no place"),
        ("atoms", [[0, "C", 1e9, 0.0, False]], "no place"),
        ("atoms", [[0, "C" * 41, 0.0, 0.0, False]], "longer than 40"),
        ("atoms", [[0, 6, 0.0, 0.0, False]], "str is required"),
        ("atoms", [[0, "C"]], "has 2 entries"),
        ("bonds", [[0, 10**6, 0.1, 0.1, "", False]], "atoms that it does not show"),
        ("bonds", "injected", "an injected atom has a bond before the attack"),
        ("bonds", [[0, 1, "much", 0.1, "", False]], "required"),
        ("answer", "<b>", "int is required"),
    ],
)
def test_a_graph_that_cannot_be_drawn_is_refused(told, tmp_path, part, value, why):
    view = {**told["graph_views"][0], **({"bonds": []} if part == "atoms" else {})}
    if value == "injected":
        value = [[view["atoms"][0][0], view["atoms"][-1][0], 0.1, 0.1, "", False]]
    view[part] = value
    (tmp_path / "a.json").write_text(json.dumps({**told, "graph_views": [view]}))
    with pytest.raises(DataError, match=why):
        AuditReport.load(tmp_path / "a.json")
    twice = {**told, "graph_views": told["graph_views"][:1] * 2}
    (tmp_path / "b.json").write_text(json.dumps(twice))
    with pytest.raises(DataError, match="shown twice"):
        AuditReport.load(tmp_path / "b.json")


def test_a_view_prints_on_one_line():
    assert repr(GraphView(3, 0, 1, 1, 0, (), ())) == "GraphView(graph=3, seed=0, label=1, answer=1, answer_attacked=0)"
