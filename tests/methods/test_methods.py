import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv
from torch_geometric.utils import to_dense_adj

from fgai import accelerated, backbones, datasets
from fgai.adversaries import GAINS, NodeInjection
from fgai.backbones import BACKBONES, build
from fgai.calling import call_by_signature
from fgai.datasets.split import split_links, split_nodes
from fgai.errors import DataError, SettingError
from fgai.graph import add_nodes
from fgai.methods import FGAI, GNNSVD, METHODS, AdversarialTraining, GNNGuard, LayerNorm, ProGNN, Vanilla
from fgai.metrics import micro_f1
from fgai.reading import Reader
from fgai.seeding import seeded
from loose import loose
from strategies import generators
from worlds import molecule_batch


def sklearn_f1(logits, data, mask):
    return f1_score(data.y[mask], logits[mask].argmax(1), average="micro")


def same(one, two):
    return list(one) == list(two) and all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture(scope="module", name="fit")
def _fit(community):
    return Vanilla(epochs=60, seed=2).fit(build("gat", community, seed=1), community)


@pytest.mark.parametrize(
    ("name", "better"), [(name, 0.55 if name.endswith("-links") else 0.6) for name in BACKBONES]
)  # by chance 0.5 and 0.25
def test_vanilla_learns(community, name, better):
    graph = split_links(community, seed=0) if name.endswith("-links") else BACKBONES[name].prepare(community)
    graph = molecule_batch() if name.endswith("-graphs") else graph
    fit = Vanilla(epochs=30).fit(build(name, graph), graph)
    with torch.no_grad():
        logits = call_by_signature(fit.model, graph)
    assert sklearn_f1(logits, graph, graph.test_mask) > better
    assert fit.history[-1].terms["label"] < fit.history[0].terms["label"]


def test_the_given_model_and_graph_stay_as_they_were(community):
    model, graph = build("gat", community), copy.copy(community)
    weights, tensors = copy.deepcopy(model.state_dict()), graph.to_dict()
    Vanilla(epochs=2).fit(model, graph)
    assert same(model.state_dict(), weights)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert same(graph.to_dict(), tensors)


def test_the_result_has_the_class_and_the_keys_of_the_model_and_is_ready_to_use(community, fit):
    model = build("gat", community)
    assert type(fit.model) is type(model)
    assert list(fit.model.state_dict()) == list(model.state_dict())
    assert not any(module.training for module in fit.model.modules())


def test_the_same_seed_gives_the_same_weights_and_another_others(community, fit):
    model = build("gat", community, seed=1)
    before = generators()
    again, other = (Vanilla(epochs=60, seed=seed).fit(model, community) for seed in (2, 3))
    assert generators() == before
    assert same(again.model.state_dict(), fit.model.state_dict())
    assert again.history == fit.history
    assert not same(other.model.state_dict(), fit.model.state_dict())


def test_the_weights_kept_are_those_of_the_best_epoch(community, fit):
    assert fit.best == fit.history[fit.best.number] != fit.history[-1]
    assert fit.best.val_f1 == max(epoch.val_f1 for epoch in fit.history)
    with torch.no_grad():
        logits = fit.model(community.x, community.edge_index)
    assert sklearn_f1(logits, community, community.val_mask) == fit.best.val_f1


def test_training_is_the_plain_loop_written_out(community, fit):
    model, (x, edges) = build("gat", community, seed=1), (community.x, community.edge_index)
    adam = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    seen = []
    with seeded(2), accelerated(model, exact=False):  # which says what PyG says, with other masks
        for _ in range(60):
            adam.zero_grad()
            loss = nn.functional.cross_entropy(
                model.train()(x, edges)[community.train_mask], community.y[community.train_mask]
            )
            loss.backward()
            adam.step()
            with torch.no_grad():
                logits = model.eval()(x, edges)
            held = nn.functional.cross_entropy(logits[community.val_mask], community.y[community.val_mask])
            score = sklearn_f1(logits, community, community.val_mask)
            seen.append((score, -float(held), float(loss.detach()), copy.deepcopy(model.state_dict())))
    best = max(range(60), key=lambda number: seen[number][:2])
    assert [(epoch.val_f1, epoch.terms["label"]) for epoch in fit.history] == [(row[0], row[2]) for row in seen]
    assert fit.best.number == best
    assert same(fit.model.state_dict(), seen[best][3])


@pytest.mark.parametrize("patience", [1, 4])
def test_patience_ends_training_that_does_not_improve(community, patience):
    fit = Vanilla(lr=0.0, patience=patience).fit(build("gat", community), community)
    assert [epoch.number for epoch in fit.history] == list(range(patience + 1))
    assert fit.best.number == 0


@pytest.mark.parametrize("missing", ["y", "train_mask", "val_mask"])
def test_a_graph_without_labels_or_masks_is_refused_before_the_model_is_called(community, missing):
    graph, calls = copy.copy(community), []
    del graph[missing]
    with pytest.raises(DataError, match=f"no `{missing}`"):
        Vanilla(epochs=1).fit(
            build("gat", community), graph, call=lambda m, d: calls.append(d) or call_by_signature(m, d)
        )
    assert not calls


def test_a_model_is_called_as_the_user_says(community):
    class Odd(nn.Linear):
        def forward(self, input, scale):  # pyright: ignore[reportIncompatibleMethodOverride]
            return super().forward(input) * scale

    with seeded(0):
        odd = Odd(16, 4)
    fit = Vanilla(epochs=3).fit(odd, community, call=lambda model, data: model(data.x, 2.0))
    assert len(fit.history) == 3
    assert type(fit.model) is Odd


def test_training_for_no_epochs_is_refused(community):
    with pytest.raises(SettingError, match="epochs=0"):
        Vanilla(epochs=0).fit(build("gat", community), community)


def test_a_graph_without_validation_nodes_is_refused(community):
    graph = copy.copy(community)
    graph.val_mask = torch.zeros_like(graph.val_mask)
    with pytest.raises(DataError):
        Vanilla(epochs=2).fit(build("gat", graph), graph)


LABELLED = st.integers(1, 5).flatmap(  # logits without ties, and a label, for each node
    lambda classes: st.lists(st.tuples(st.permutations(range(classes)), st.integers(0, classes - 1)), min_size=1)
)


@given(LABELLED)
def test_micro_f1_is_sklearns(rows):
    logits, y = torch.tensor([row for row, _ in rows]).float(), torch.tensor([label for _, label in rows])
    expected = f1_score(y.numpy(), np.argmax(logits.numpy(), axis=1), average="micro")
    assert micro_f1(logits, y) == pytest.approx(expected, abs=1e-12)


def test_gnnguard_names_the_edges_between_nodes_that_are_not_alike():
    data = loose(datasets.synthetic(nodes=60, edges=300, features=12, seed=2))
    data.x = data.x.relu()
    x = nn.functional.normalize(data.x)
    source, target = data.edge_index
    expected = (x[source] * x[target]).sum(1) < 0.3
    assert 0 < int(expected.sum()) < data.num_edges
    assert torch.equal(GNNGuard(threshold=0.3).suspects(data), expected)
    assert torch.equal(GNNGuard(threshold=0.3).suspects(datasets.compact(data)), expected)
    more = add_nodes(data, torch.stack([data.x[5], -data.x[5]]), torch.tensor([[60, 61, 5], [5, 5, 61]]))
    assert GNNGuard(threshold=0.3).suspects(more).tolist() == [*expected.tolist(), False, True, True]


def test_gnn_svd_names_the_edges_that_a_dense_approximation_does_not_account_for():
    data = loose(datasets.synthetic(nodes=60, edges=300, seed=2))
    dense = to_dense_adj(data.edge_index, max_num_nodes=60)[0].double()
    u, s, v = torch.linalg.svd(dense)
    value = (u[:, :10] * s[:10] @ v[:10])[tuple(data.edge_index)]
    least = value.argsort(stable=True)[: round(0.1 * data.num_edges)]
    found = GNNSVD().suspects(data)
    assert value[found].sum() == pytest.approx(float(value[least].sum()), abs=1e-9)
    assert int(found.sum()) == len(least)


def test_pro_gnn_learns_what_proximal_descent_by_singular_values_does():
    data = loose(datasets.synthetic(nodes=30, edges=120, seed=2))
    a = to_dense_adj(data.edge_index, max_num_nodes=30)[0].double().numpy()
    a = np.maximum(a, a.T)
    found = a
    for _ in range(7):
        u, s, v = np.linalg.svd(found - 0.2 * 2 * (found - a))
        found = np.clip(u * np.maximum(s - 0.2 * 0.9, 0) @ v - 0.2 * 0.01, 0, 1)
    method = ProGNN(sparse=0.01, low_rank=0.9, steps=7, rate=0.2)
    assert method.learn_adjacency(data).numpy() == pytest.approx(found, abs=1e-5)


def test_pro_gnn_names_the_edges_between_cliques():
    cliques = torch.cat([torch.combinations(torch.arange(8)), 8 + torch.combinations(torch.arange(8))]).t()
    between = torch.tensor([[0, 3, 7], [9, 12, 15]])
    edges = torch.cat([cliques, between], dim=1)
    both = torch.cat([edges, edges.flip(0)], dim=1)
    found = ProGNN(drop=6 / both.size(1)).suspects(Data(x=torch.ones(16, 1), edge_index=both))
    assert found.view(2, -1).nonzero()[:, 1].tolist() == [*range(56, 59)] * 2


def test_pro_gnn_says_which_graphs_it_cannot_hold(community):
    with pytest.raises(DataError, match=r"was given 200 nodes; .* than 100, or use gnn-svd"):
        ProGNN(limit=100).fit(build("gat", community), community)


@pytest.mark.parametrize("name", ["gnnguard", "gnn-svd", "pro-gnn"])
def test_an_attack_goes_through_the_cleaning_of_a_defence(name):
    data = loose(split_nodes(datasets.synthetic(nodes=60, edges=300, seed=2), seed=0))
    method = METHODS[name](epochs=2)
    fit = method.fit(backbones.build("gat", data), data)
    read = Reader(fit.model, method.cleaned_call())
    edges = int((~method.suspects(data)).sum()) + data.num_nodes
    assert read(data).explanation.weight.size(0) == edges
    attacked = NodeInjection(2, 3, steps=2)(read, data, GAINS["kl"](read(data).detach()))
    assert attacked.logits.size(0) == 62


def test_a_cleaning_goes_with_a_call_of_your_own(community):
    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GATv2Conv(16, 4)

        def forward(self, feats, adj):
            return self.conv(feats, adj)

    def mine(model, graph):
        return model(graph.x, graph.edge_index)

    method = GNNSVD(epochs=2)
    fit = method.fit(Renamed(), community, call=mine)
    found = method.cleaned_call(mine)(fit.model, community)
    kept = community.edge_index[:, ~method.suspects(community)]
    assert torch.equal(found, fit.model(community.x, kept))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_learns_from_pairs(name):
    data = split_links(datasets.synthetic(nodes=60, edges=300, seed=2), seed=0)
    small = {"adversary": NodeInjection(2, 3, steps=1)} if "adversary" in METHODS[name].__dataclass_fields__ else {}
    fit = METHODS[name](epochs=2, **small).fit(build("gat-links", data), data)
    assert call_by_signature(fit.model, data).shape == (data.edge_label_index.size(1), 2)


def test_a_checkpoint_of_another_method_is_refused(community, tmp_path):
    class Stop(Exception):
        pass

    def killed(model, data, seen=[]):  # noqa: B006, it counts its calls
        seen.append(1)
        if len(seen) > 40:
            raise Stop
        return call_by_signature(model, data)

    with pytest.raises(Stop):
        Vanilla(epochs=60).fit(build("gat", community), community, call=killed, checkpoint=tmp_path / "run")
    assert (tmp_path / "run").exists()
    with pytest.raises(SettingError, match="another file"):
        GNNGuard(epochs=60).fit(build("gat", community), community, call=killed, checkpoint=tmp_path / "run")


NO_TERM = {"closeness": 0.0, "similarity": 0.0, "prediction": 0.0, "explanation": 0.0}


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (FGAI, {"restart_every": 0}),
        (AdversarialTraining, {"restart_every": 0}),
        (FGAI, {"anchor": "mine"}),
        (FGAI, NO_TERM),
        (LayerNorm, {"kind": "layers"}),
    ],
)
def test_settings_without_meaning_are_refused(method, settings):
    with pytest.raises(SettingError, match=r"; (give|there is)"):
        method(**settings)


@pytest.mark.parametrize("mask", ["empty", "missing"])
def test_fgai_needs_no_validation_nodes_and_says_nothing_of_them(community, mask):
    graph = copy.copy(community)
    if mask == "empty":
        graph.val_mask = torch.zeros_like(graph.val_mask)
    else:
        del graph.val_mask
    method = FGAI(adversary=NodeInjection(2, 3, steps=1), epochs=11)
    model = build("gat", community)
    fit, judged = method.fit(model, graph), method.fit(model, community)
    assert same(fit.model.state_dict(), judged.model.state_dict())
    assert all(epoch.val_f1 is None for epoch in fit.history)
    assert judged.history[8].val_f1 is None and judged.history[9].val_f1 > 0
    with pytest.raises(DataError, match="no `val_mask`"):
        Vanilla(epochs=2).fit(model, graph)


def test_one_site_may_be_named_alone(community):
    method = FGAI(adversary=NodeInjection(2, 3, steps=1), epochs=1)
    one, two = (
        replace(method, sites=sites).fit(build("gat", community), community).model for sites in ("conv1", ("conv1",))
    )
    assert same(one.state_dict(), two.state_dict())
    with pytest.raises(SettingError, match=r"no attention is called .'conv3'."):
        replace(method, sites="conv3").fit(build("gat", community), community)


def test_tied_weights_have_a_checkpoint(community, tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GATv2Conv(16, 4, share_weights=True)

        def forward(self, x, edge_index):
            return self.conv(x, edge_index)

    Vanilla(epochs=11).fit(Tied(), community, checkpoint=tmp_path / "run")
