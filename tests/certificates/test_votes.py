"""Votes over hashed links: no change of links inside the budget moves an answer, by enumeration and by attack."""

from itertools import combinations, combinations_with_replacement, product

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, GraphNorm, TransformerConv
from torch_geometric.utils import k_hop_subgraph

from fgai import backbones, datasets
from fgai.certificates.votes import Voted, Votes, is_local, link_groups
from fgai.errors import CallError, SettingError
from fgai.graph import add_nodes, require
from fgai.methods import Vanilla


class Two(nn.Module):
    """Two layers of any kind."""

    def __init__(self, layer, features=4, classes=3, **settings):
        super().__init__()
        self.one, self.two = layer(features, 8, **settings), layer(8, classes, **settings)

    def forward(self, x, edge_index, edge_attr=None):
        more = {} if edge_attr is None else {"edge_attr": edge_attr}
        return self.two(self.one(x, edge_index, **more).relu(), edge_index, **more)


def undirected(pairs):
    both = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
    return torch.cat([both, both.flip(0)], dim=1)


def flipped(links, pairs):
    """The set of links in which each pair is there if it was not."""
    return sorted(set(links) ^ set(pairs))


@pytest.mark.parametrize(
    ("layer", "settings"),
    [(GATConv, {}), (GATConv, {"add_self_loops": False}), (GCNConv, {}), (TransformerConv, {})],
    ids=["gat", "gat-no-loops", "gcn", "transformer"],
)
def test_no_one_or_two_flipped_links_of_a_small_graph_move_a_certified_answer(layer, settings):
    torch.manual_seed(0)
    nodes, violations, certified, moved = 6, 0, 0, 0
    pairs = list(combinations_with_replacement(range(nodes), 2))  # self-loops are links too
    for groups in (3, 5) * 4:
        voted = Voted(Two(layer, **settings), groups)
        for parameter in voted.parameters():
            parameter.data += torch.randn_like(parameter)
        links = [pair for pair in pairs if torch.rand(()) < 0.7]
        x = torch.randn(nodes, 4)
        clean = voted.votes(Data(x=x, edge_index=undirected(links)))
        for budget in (1, 2):
            certified += int((clean.budget >= budget).sum())
            graphs = [undirected(flipped(links, change)) for change in combinations(pairs, budget)]
            changed = side_by_side(voted, x, graphs) != clean.prediction
            moved += int(changed.sum())
            violations += int((changed & (clean.budget >= budget)).sum())
    assert violations == 0
    assert certified > 0
    assert moved > 0


def side_by_side(voted, x, graphs):
    """The answers for many graphs of the same nodes in one pass; `n_id` keeps the hash; [G, N]."""
    nodes, count = len(x), len(graphs)
    links = torch.cat([links + i * nodes for i, links in enumerate(graphs)], dim=1)
    data = Data(x=x.repeat(count, 1), edge_index=links, n_id=torch.arange(nodes).repeat(count))
    return voted.votes(data).prediction.view(count, nodes)


def test_the_budget_is_what_moving_votes_one_by_one_gives():
    total = 5
    for count in product(range(total + 1), repeat=3):
        if sum(count) == total:
            row = torch.tensor([count])
            votes = Votes(row, row, row)
            assert int(votes.budget) == budget_by_hand(count)


def budget_by_hand(count):
    own = max(range(len(count)), key=lambda c: (count[c], -c))
    reached, budget = {count}, 0
    while True:
        reached = {moved for now in reached for moved in moves(now)} | reached
        if any(max(range(len(now)), key=lambda c: (now[c], -c)) != own for now in reached):
            return budget
        budget += 1
        if budget >= sum(count):
            return budget


def moves(count):
    for a, b in product(range(len(count)), repeat=2):
        if a != b and count[a]:
            yield tuple(n - (c == a) + (c == b) for c, n in enumerate(count))


@pytest.fixture(scope="module")
def trained():
    data = datasets.load("synthetic")
    return Vanilla(epochs=40).fit(backbones.build("gat", data), data).model, data


def attacked(data, node, count, generator):
    """New nodes with wild features, a link each to the node, and a few random links between old nodes flipped."""
    some = int(torch.randint(0, count + 1, (), generator=generator))
    width, size = data.x.size(1), data.num_nodes
    x = 10 ** torch.randint(-1, 4, (some, 1), generator=generator) * torch.randn(some, width, generator=generator)
    new = torch.stack([torch.arange(size, size + some), torch.full((some,), node)])
    among = torch.combinations(torch.arange(size, size + some)).t()  # links between new nodes are free
    wide = add_nodes(data, x, torch.cat([new, new.flip(0), among, among.flip(0)], dim=1))
    for _ in range(count - some):
        links = require(wide, "edge_index")
        if torch.rand((), generator=generator) < 0.5:
            at = (links[1] == node).nonzero().flatten()
            pick = links[:, at[torch.randint(len(at), (), generator=generator)]] if len(at) else links[:, 0]
            gone = ((links == pick[:, None]).all(0)) | ((links == pick.flip(0)[:, None]).all(0))
            wide.edge_index = links[:, ~gone]
        else:
            pair = torch.tensor([[node], [int(torch.randint(size, (), generator=generator))]])
            wide.edge_index = torch.cat([links, pair, pair.flip(0)], dim=1)
    return wide


def test_no_attack_on_a_trained_model_goes_beyond_the_budget(trained):
    model, data = trained
    voted, generator = Voted(model, groups=11), torch.Generator().manual_seed(0)
    clean = voted.votes(data)
    assert (clean.budget >= 1).float().mean() > 0.5
    for node in torch.randperm(data.num_nodes, generator=generator)[:25].tolist():
        budget = int(clean.budget[node])
        if budget:
            now = voted.votes(attacked(data, node, budget, generator))
            assert now.prediction[node] == clean.prediction[node]


def greedy(voted, data, node, links, tries=4):
    """Inject a node per link: of several identities and features, the one that leaves the answer the fewest votes."""
    generator = torch.Generator().manual_seed(node)
    own = int(voted.votes(data).prediction[node])
    for _ in range(links):
        options = []
        for _ in range(tries):
            skip = int(torch.randint(0, 12, (), generator=generator))  # identities without links choose the hash
            x = 10 * torch.randn(skip + 1, data.x.size(1), generator=generator)
            pair = torch.tensor([[data.num_nodes + skip], [node]])
            options.append(add_nodes(data, x, torch.cat([pair, pair.flip(0)], dim=1)))
        data = min(options, key=lambda graph: int(voted.votes(graph).count[node, own]))
    return voted.votes(data).prediction[node]


def test_a_greedy_attack_stays_inside_the_budget_and_succeeds_beyond_it(trained):
    model, data = trained
    voted, fell = Voted(model, groups=5), 0
    clean = voted.votes(data)
    for node in range(0, data.num_nodes, 250):
        budget = int(clean.budget[node])
        assert greedy(voted, data, node, budget) == clean.prediction[node]
        fell += int(greedy(voted, data, node, budget + 2) != clean.prediction[node])
    assert fell > 0


def test_a_group_depends_on_the_two_ends_and_the_key_alone():
    links = torch.randint(1000, (2, 5000), generator=torch.Generator().manual_seed(0))
    group = link_groups(links, 11)
    assert torch.equal(group, link_groups(links.flip(0), 11))
    assert torch.equal(group[::2], link_groups(links[:, ::2], 11))
    assert not torch.equal(group, link_groups(links, 11, key=1))
    assert (group.bincount(minlength=11) - 5000 / 11).abs().max() < 5 * (5000 / 11) ** 0.5


def test_every_link_is_in_one_graph_with_its_features():
    data = Data(x=torch.randn(4, 4), edge_index=undirected([(0, 1), (1, 2), (3, 3)]), edge_attr=torch.randn(6, 2))
    parts = list(Voted(Two(GATConv, edge_dim=2), groups=3).graphs(data))
    assert sum(part.num_edges for part in parts) == 6
    assert all(part.num_nodes == 4 and part.edge_attr.size(0) == part.num_edges for part in parts)


def test_the_module_says_what_the_votes_say(trained):
    model, data = trained
    voted = Voted(model, groups=5)
    votes, out = voted.votes(data), voted(data.x, data.edge_index)
    assert torch.equal(out.argmax(1), votes.prediction)
    assert torch.allclose(out.softmax(1), (votes.count + 0.5) / (5 + votes.count.size(1) / 2))


def test_a_batch_with_the_numbers_of_its_nodes_is_answered_as_the_whole_graph(trained):
    model, data = trained
    voted = Voted(model, groups=5)
    nodes, links, at, _ = k_hop_subgraph(7, 2, data.edge_index, relabel_nodes=True)
    out = voted(data.x[nodes], links, n_id=nodes)
    assert torch.equal(out[at][0], voted(data.x, data.edge_index)[7])


def test_pairs_have_votes_of_their_own():
    data = datasets.load("synthetic-links")
    model = backbones.build("gat-links", data)
    votes = Voted(model, groups=3).votes(data)
    assert votes.count.shape == (data.edge_label_index.size(1), 2)
    assert (votes.count.sum(1) == 3).all()


def test_inputs_that_are_computed_from_the_graph_are_refused_unless_they_are_fixed():
    data = backbones.BACKBONES["gt"].prepare(datasets.load("synthetic"))
    model = backbones.build("gt", data)
    with pytest.raises(SettingError, match=r"reads \['pe'\]"):
        Voted(model, groups=3).votes(data)
    assert Voted(model, groups=3, fixed=("pe",)).votes(data).count.sum() == 3 * data.num_nodes


def test_a_graph_taken_by_its_annotation_is_checked_in_full():
    class Annotated(nn.Module):
        def forward(self, batch: Data):
            return batch.pe

    data = Data(x=torch.ones(3, 1), edge_index=undirected([(0, 1)]), pe=torch.randn(3, 2))
    with pytest.raises(SettingError, match=r"reads \['pe'\]"):
        Voted(Annotated(), groups=3).votes(data)


def test_a_model_that_returns_no_logits_is_refused():
    class Pair(nn.Module):
        def forward(self, x, edge_index):
            return x, x

    with pytest.raises(CallError, match="one dense tensor"):
        Voted(Pair(), groups=3).votes(Data(x=torch.ones(3, 2), edge_index=undirected([(0, 1)])))


def test_a_model_that_keeps_its_links_is_refused():
    with pytest.raises(SettingError, match="cached"):
        Voted(GCNConv(4, 2, cached=True))
    with pytest.raises(SettingError, match="groups=0"):
        Voted(GCNConv(4, 2), groups=0)


def test_a_norm_over_all_nodes_is_no_local_model():
    class Normed(Two):
        def __init__(self):
            super().__init__(GCNConv)
            self.norm = GraphNorm(4)

        def forward(self, x, edge_index, edge_attr=None):
            return super().forward(self.norm(x), edge_index, edge_attr)

    data = Data(x=torch.randn(5, 4), edge_index=undirected([(0, 1), (1, 2)]))
    assert is_local(Voted(Two(GCNConv), groups=2), data)
    assert not is_local(Voted(Normed(), groups=2), data)


def test_votes_that_rounding_decides_count_for_the_attacker():
    class Tied(nn.Module):
        def forward(self, x, edge_index):
            return torch.tensor([[1.0, 1.0 + 1e-7], [1.0, 2.0]])

    votes = Voted(Tied(), groups=5).votes(Data(x=torch.zeros(2, 1), edge_index=torch.zeros(2, 0, dtype=torch.long)))
    assert votes.budget.tolist() == [0, 2]


def test_calibration_takes_the_groups_that_certify_most_on_the_validation_nodes(trained):
    model, data = trained
    chosen = Voted(model).calibrate(data, links=5, groups=(3, 11, 25))
    assert chosen.groups in (11, 25)  # 3 votes cannot survive 5 links
    assert chosen.model is model


def test_calibration_never_sees_a_label_outside_the_validation_nodes(trained):
    model, data = trained
    options, links = (3, 7, 11, 25), 1

    def certified_and_right(groups):
        """The validation nodes whose label leads every other class by more than twice the links."""
        parts = Voted(model, groups).graphs(data)
        answers = torch.stack([model(part.x, part.edge_index).argmax(1) for part in parts], dim=1)
        total = 0
        for node in data.val_mask.nonzero().flatten().tolist():
            count, own = answers[node].bincount(minlength=4).tolist(), int(data.y[node])
            total += all(count[own] - count[c] - (c < own) >= 2 * links for c in range(4) if c != own)
        return total

    scores = {groups: certified_and_right(groups) for groups in options}
    best = max(scores, key=lambda groups: scores[groups])
    assert sorted(scores.values())[-2] < scores[best]
    assert best != 25
    other = data.clone()
    other.y = torch.where(data.val_mask, data.y, Voted(model, 25).votes(data).prediction)  # all others speak for 25
    for graph in (data, other):
        assert Voted(model).calibrate(graph, links, options).groups == best


def test_calibration_without_a_choice_is_refused(trained):
    model, data = trained
    for graph, groups in ((data, ()), (Data(**{**data.to_dict(), "val_mask": torch.zeros(1000).bool()}), (3,))):
        with pytest.raises(SettingError, match="at least one"):
            Voted(model).calibrate(graph, groups=groups)
