"""Votes over hashed links: no change of links inside the budget moves an answer, by enumeration and by attack."""

from itertools import combinations, combinations_with_replacement, product

import pytest
import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv, GCNConv, GraphNorm, TransformerConv
from torch_geometric.utils import k_hop_subgraph

from fgai import backbones, datasets
from fgai.certificates.votes import Voted, Votes, is_local, link_groups
from fgai.errors import CallError, SettingError
from fgai.graph import add_nodes, require
from fgai.methods import Vanilla
from fgai.typed import join, split


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


class Virtual(nn.Module):
    """Each node gets a linear map of a pool over all nodes."""

    def __init__(self, pool):
        super().__init__()
        self.pool, self.map, self.layer = pool, nn.Linear(6, 6, bias=False), GATConv(6, 3)

    def forward(self, x, edge_index):
        return self.layer(x + self.map(self.pool(x)), edge_index)


POOLS = {
    "sum": lambda x: x.sum(0),
    "mean": lambda x: x.mean(0),
    "saturated mean": lambda x: x.tanh().mean(0),
    "maximum": lambda x: x.amax(0),
    "minimum": lambda x: x.amin(0),
    "count": lambda x: torch.full((6,), 1e-3 * len(x)),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("nodes", [30, 3000])
def test_a_virtual_node_is_no_local_model(pool, nodes):
    torch.manual_seed(0)
    links = torch.randint(nodes, (2, 3 * nodes))
    for x in (torch.rand(nodes, 6), torch.randint(0, 2, (nodes, 6)) * 2.0 - 1.0):
        assert not is_local(Voted(Virtual(POOLS[pool]), groups=5), Data(x=x, edge_index=links))
        assert is_local(Voted(Virtual(torch.zeros_like), groups=5), Data(x=x, edge_index=links))


def test_a_node_with_large_logits_does_not_hide_what_changes_the_others():
    torch.manual_seed(0)
    data = Data(x=torch.rand(50, 6), edge_index=torch.randint(50, (2, 100)))
    data.x[0] = 1e12
    assert not is_local(Voted(Virtual(lambda x: torch.full((6,), 0.1 * len(x))), groups=5), data)


def test_the_locality_of_a_model_takes_two_passes_and_new_nodes_need_no_finite_logits():
    class Exponential(nn.Module):
        rows: tuple[int, ...] = ()

        def forward(self, x, edge_index):
            self.rows = (*self.rows, len(x))
            return x.exp()

    model, data = Exponential(), Data(x=torch.rand(40, 3), edge_index=torch.randint(40, (2, 80)))
    assert is_local(Voted(model, groups=3), data)
    assert model.rows == (40, 80)


class Extra(nn.Module):
    """A layer with one more input."""

    def __init__(self):
        super().__init__()
        self.one, self.two = GATConv(4, 3), GATConv(4, 3)

    def forward(self, x, edge_index, two_hop_index=None, edge_pe=None, edge_weight=None, adj=None, batch=None):
        return self.one(x, edge_index) if two_hop_index is None else self.two(x, two_hop_index)


@pytest.mark.parametrize("name", ["two_hop_index", "edge_pe"])
def test_inputs_of_links_that_are_computed_from_links_are_refused_unless_they_are_fixed(name):
    links = undirected([(0, 1), (1, 2)])
    value = {"two_hop_index": torch.tensor([[0, 2], [2, 0]]), "edge_pe": torch.ones(4, 1)}[name]
    data = Data(x=torch.randn(3, 4), edge_index=links, **{name: value})
    voted = Voted(Extra(), groups=3)
    for call in (None, lambda model, graph: model(graph.x, graph.edge_index)):
        with pytest.raises(SettingError, match=rf"reads \['{name}'\]"):
            voted.votes(data, call)
    with pytest.raises(SettingError, match=rf"reads \['{name}'\]"):
        voted(data.x, data.edge_index, **{name: value})
    assert Voted(Extra(), groups=3, fixed=(name,)).votes(data).count.sum() == 9


def test_inputs_that_belong_to_the_links_or_to_no_model_are_not_refused():
    links = undirected([(0, 1), (1, 2)])
    adj = torch.sparse_coo_tensor(links, torch.ones(4), (3, 3)).coalesce()
    data = Data(x=torch.randn(3, 4), edge_index=links, edge_weight=torch.ones(4), adj=adj, batch=torch.zeros(3).long())
    data.e_id, data.unread = torch.arange(4), torch.ones(7)
    assert Voted(Extra(), groups=3).votes(data).count.sum() == 9


def test_half_precision_makes_votes_less_sure_and_does_not_round_their_counts():
    class Constant(nn.Module):
        def __init__(self, logits):
            super().__init__()
            self.logits = nn.Parameter(torch.tensor(logits))

        def forward(self, x, edge_index):
            return self.logits.expand(len(x), -1)

    data = Data(x=torch.zeros(2, 1), edge_index=torch.zeros(2, 0, dtype=torch.long))
    for dtype, sure in ((torch.float32, 5), (torch.bfloat16, 0)):
        assert Voted(Constant([1.0, 1.125]).to(dtype), groups=5).votes(data).sure[0].tolist() == [0, sure]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert Voted(Constant([1.0, 1.125]), groups=5).votes(data).sure[0].tolist() == [0, 0]
    half = Data(x=data.x.half(), edge_index=data.edge_index)
    assert Voted(Constant([1.0, 1.001]).half(), groups=5).votes(half).sure.sum() == 0
    out = Voted(Constant([1.0, 2.0]).bfloat16(), groups=1000)(data.x.bfloat16(), data.edge_index)
    assert torch.allclose(out.exp()[:, 1], torch.tensor(1000.5 / 1001))


def test_links_of_a_narrow_integer_type_have_the_same_groups():
    links = torch.randint(1000, (2, 500), generator=torch.Generator().manual_seed(0))
    assert torch.equal(link_groups(links.int(), 11), link_groups(links, 11))


def test_a_new_node_of_any_type_leaves_the_groups_of_links_as_they_are():
    data = HeteroData(a={"x": torch.randn(20, 4), "y": torch.zeros(20).long()}, b={"x": torch.randn(15, 4)})
    data["b", "to", "a"].edge_index = torch.stack([torch.randint(15, (160,)), torch.randint(20, (160,))])
    data["b", "to", "b"].edge_index = torch.randint(15, (2, 40))
    voted = Voted(GATConv(4, 2), groups=11)

    def groups(graph):
        parts = [split(part).graph for part in voted.graphs(join(graph))]
        return [{kind: part[kind].edge_index.tolist() for kind in part.edge_types} for part in parts]

    before = groups(data)
    assert sum(len(links[0]) for part in before for links in part.values()) == 200
    for kind in ("a", "b"):
        wide = data.clone()
        wide[kind].x = torch.cat([data[kind].x, torch.randn(1, 4)])
        assert groups(wide) == before
