"""A budget lets through what our own attacks do, and nothing beyond it."""

import pytest
import torch
from torch_geometric.data import HeteroData

from fgai.adversaries import (
    GAINS,
    THREATS,
    AttackEnsemble,
    Budget,
    NodeInjection,
    Perturbation,
    WithinBudget,
    budget_of,
    has_budget,
)
from fgai.adversaries.perturbation import undirected
from fgai.errors import BudgetError, DataError, SettingError
from fgai.typed import join
from worlds import answers, model_of, molecule_batch, small

BUDGET = Budget(nodes=2, links=3)
PAIRS = torch.tensor([[40, 40, 40, 41, 41, 41], [0, 1, 2, 3, 4, 5]])


def allowed(**changes):
    return Perturbation(**{"x": torch.ones(2, 6), "added": undirected(PAIRS), **changes})


def test_what_stays_inside_is_let_through():
    BUDGET.check(allowed(), small())
    BUDGET.check(Perturbation(), small())
    for links, features in (("degree", "box"), ("random", "l2")):
        attack = NodeInjection(2, 3, steps=2, step=0.5, links=links, features=features)
        read, clean = answers(model_of("gat", small()), small())
        Budget(2, 3, features).check(attack(read, small(), GAINS["kl"](clean)).perturbation, small())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"x": torch.ones(3, 6)}, "injects 3 nodes, and the budget is 2"),
        ({"added": undirected(torch.cat([PAIRS, torch.tensor([[40], [9]])], 1))}, "has 4 links, and the budget is 3"),
        ({"added": undirected(torch.tensor([[0], [9]]))}, "links two nodes of the graph"),
        ({"added": PAIRS}, "in one direction only"),
        ({"added": undirected(PAIRS[:, [0, 0]])}, "adds a link twice"),
        ({"added": undirected(torch.tensor([[42], [0]]))}, "there are 42 nodes"),
        ({"x": torch.full((2, 6), 1.001)}, "0.001 outside the feature set"),
        ({"x": torch.full((2, 6), torch.nan)}, "outside the feature set"),
        ({"dropped": torch.tensor([[0], [1]])}, "changes dropped"),
        ({"x_delta": torch.zeros(40, 6)}, "changes x_delta"),
        ({"weight_delta": {"conv2": torch.zeros(3, 1)}}, "changes weight_delta"),
    ],
)
def test_what_goes_beyond_is_refused(changes, sentence):
    with pytest.raises(BudgetError, match=sentence):
        BUDGET.check(allowed(**changes), small())


def test_similar_rows_are_measured_against_the_nodes_that_they_are_linked_to():
    graph, budget = small(), Budget(2, 3, "similar")
    unlike = -graph.x[PAIRS[1]].view(2, 3, 6).mean(1).clamp(max=1)
    with pytest.raises(BudgetError, match="outside the feature set `similar`"):
        budget.check(allowed(x=unlike), graph)
    with pytest.raises(BudgetError, match="outside the feature set `similar`"):
        budget.check(allowed(x=torch.full((2, 6), 1.1), added=undirected(PAIRS[:, :3])), graph)
    budget.check(allowed(x=torch.cat([-unlike[:1], unlike[1:]]), added=undirected(PAIRS[:, :3])), graph)
    read, clean = answers(model_of("gat", graph), graph)
    for adam in (False, True):
        attack = NodeInjection(2, 3, steps=4, step=0.5, features="similar", adam=adam)
        budget.check(attack(read, graph, GAINS["kl"](clean)).perturbation, graph)


def test_typed_graphs_and_batches_of_graphs_are_refused_in_a_sentence():
    data = HeteroData(a={"x": torch.rand(6, 4), "y": torch.tensor([0, 1, 1, 0, 1, 0])}, b={"x": torch.rand(5, 3)})
    data["b", "to", "a"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 2]])
    for graph, sentence in ((join(data), "one type of nodes"), (molecule_batch(4), "a batch of 4 graphs")):
        attack = NodeInjection(2, 3, steps=0)
        site = attack.place(graph)
        with pytest.raises(DataError, match=f"budget of injected nodes and links is for .*{sentence}"):
            BUDGET.check(site.change(attack.start(site)), graph)


def test_threat_models_that_inject_have_a_budget_and_others_say_so():
    assert budget_of("ensemble") == Budget(20, 40)
    assert budget_of("realistic").features == "realistic"
    assert {name for name in THREATS if not has_budget(name)} == {"structure", "single-1", "single-2", "single-5"}
    with pytest.raises(SettingError, match="structure has no budget of injected nodes"):
        budget_of("structure")


def test_only_the_perturbation_of_an_attack_counts():
    """An attack that returns a reading of its own choice is read again."""
    read, clean = answers(model_of("gat", small()), small())
    attack = WithinBudget(NodeInjection(2, 3, steps=1), "injection-20x20", seed=4)
    now = attack(read, small(), GAINS["kl"](clean))
    torch.testing.assert_close(now.logits, read(now.perturbation.apply(small())).logits, atol=0, rtol=0)
    assert torch.equal(now.perturbation.added, NodeInjection(2, 3, seed=4).place(small()).links)


def test_a_checked_attack_still_says_which_member_found_the_perturbation():
    read, clean = answers(model_of("gat", small()), small())
    attack = AttackEnsemble(2, (3,), ("kl",), ((2, 0.5),))
    found = [one(read, small(), GAINS["kl"](clean)).found_by for one in (attack, WithinBudget(attack, "strongest"))]
    assert found[0] == found[1] != ""
