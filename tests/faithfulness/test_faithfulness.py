import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, GraphNorm, TransformerConv

import fgai
from fgai.attending import AttentionPoint
from fgai.attention import Attention
from fgai.errors import CallError, DataError, SettingError, UnknownNameError
from fgai.explanations import attribution
from fgai.faithfulness import measure_faithfulness, pyg_scores
from fgai.faithfulness.deletions import Deletions, Incoming, _append_copies, copied_logits, full_graph_logits
from fgai.faithfulness.selection import ranked
from fgai.intervals import Interval
from fgai.reading import Reader
from loose import loose
from strategies import edge_index, edge_lists


class Stack(nn.Module):
    def __init__(self, *layers, norm=None):
        super().__init__()
        torch.manual_seed(0)
        self.convs, self.norm = nn.ModuleList(layer(4, 4) for layer in layers), norm

    def forward(self, x, edge_index):
        for conv in self.convs:
            x = conv(x, edge_index).tanh()
            x = x if self.norm is None else self.norm(x)
        return 3 * x


STACKS = [
    (GATConv,),
    (GATConv, GATv2Conv),
    (TransformerConv,) * 2,
    (GATConv,) * 3,
    (GCNConv, GATConv),
    (GATConv, GCNConv),
]


@given(edge_lists(6, max_size=16), st.sampled_from(STACKS), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 15))))
def test_copies_answer_as_the_whole_graph_does(pairs, layers, gone):
    """Any edges may go, for any node, with self-loops and repeated edges among them."""
    graph = Data(x=torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), edge_index=edge_index(pairs))
    gone = sorted({(node, column) for node, column in gone if column < len(pairs)})
    case, column = (torch.tensor([pair[at] for pair in gone], dtype=torch.long) for at in (0, 1))
    deletions = Deletions(torch.tensor([0, 1, 2, 3, 4, 5]), case, column)
    read = Reader(Stack(*layers).eval())
    early = int(GCNConv in layers)
    copied = copied_logits(read, graph, deletions, Incoming(loose(graph.edge_index), 6), len(layers), early)
    assert torch.allclose(copied, full_graph_logits(read, graph, deletions), atol=1e-5)


@pytest.mark.parametrize("layers", STACKS, ids=lambda layers: "-".join(layer.__name__ for layer in layers))
def test_copies_answer_for_edges_of_every_hop(layers):
    """Every edge of a sparse graph goes alone, for every node: most go far from it."""
    graph = random_graph(nodes=14, edges=24)
    edges = graph.num_edges
    node, column = torch.arange(14).repeat_interleave(edges), torch.arange(edges).repeat(14)
    deletions = Deletions(node, torch.arange(14 * edges), column)
    read = Reader(Stack(*layers).eval())
    copied = copied_logits(
        read, graph, deletions, Incoming(loose(graph.edge_index), 14), len(layers), int(GCNConv in layers)
    )
    truth = torch.cat([_each_alone(read, graph, one) for one in range(edges)], dim=1)  # [14, edges x classes]
    assert torch.allclose(copied.view(14, -1), truth, atol=1e-5)


def _each_alone(read, graph, column):
    left = torch.arange(graph.num_edges) != column
    with torch.no_grad():
        return read(Data(x=graph.x, edge_index=graph.edge_index[:, left])).logits


def test_attributes_of_nodes_and_edges_are_copied():
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.one, self.two = GATConv(4, 4, edge_dim=2), GATConv(4, 3, edge_dim=2)

        def forward(self, x, edge_index, edge_attr, bias):
            return self.two(self.one(x, edge_index, edge_attr).tanh() + bias, edge_index, edge_attr)

    graph = random_graph(nodes=30, edges=90)
    graph.edge_attr, graph.bias = torch.randn(graph.num_edges, 2), torch.randn(30, 1)
    deletions = Deletions(torch.arange(10), torch.arange(10), torch.arange(10) * 3)
    read = Reader(Weighted().eval())
    copied = copied_logits(read, graph, deletions, Incoming(loose(graph.edge_index), 30), 2)
    assert torch.allclose(copied, full_graph_logits(read, graph, deletions), atol=1e-5)


def test_sparse_features_are_copied_as_dense_ones_are():
    graph = random_graph(nodes=30, edges=90)
    graph.x = graph.x.relu()
    sparse = Data(x=graph.x.to_sparse(), edge_index=graph.edge_index)
    deletions = Deletions(torch.arange(10), torch.arange(10), torch.arange(10) * 3)
    incoming = Incoming(loose(graph.edge_index), 30)
    read = Reader(Stack(GATConv, GATConv).eval())
    dense, copied = (copied_logits(read, one, deletions, incoming, 2) for one in (graph, sparse))
    assert torch.allclose(copied, dense, atol=1e-6)
    wider = _append_copies(graph.x.to_sparse(), torch.tensor([7, 7, 3]))
    assert wider.is_coalesced() and torch.equal(wider.to_dense(), torch.cat([graph.x, graph.x[[7, 7, 3]]]))


def random_graph(nodes=200, edges=1200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    return Data(x=torch.randn(nodes, 4, generator=generator), edge_index=ends[:, ends[0] != ends[1]])


class Planted(nn.Module):
    """The answer is a mean over neighbours of evidence that is known; the attention that is read does not act."""

    def __init__(self, graph, attention, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        edges, nodes = graph.edge_index, graph.num_nodes
        graph.reason = (torch.rand(edges.size(1), generator=generator) < 0.5).float()
        noise = torch.rand(edges.size(1), generator=generator)
        graph.planted = {
            "true": graph.reason + 0.1 * noise,
            "reversed": -graph.reason + 0.1 * noise,
            "random": noise,
            "uniform": torch.zeros_like(noise),
        }[attention]
        graph.pull = graph.reason * (1 + torch.randn(edges.size(1), generator=generator).abs())
        self.point, self.nodes = AttentionPoint(), nodes

    def forward(self, x, edge_index, planted, pull):
        self.point(planted[:, None], edge_index, num_targets=len(x))
        yes = torch.zeros(len(x)).index_add(0, edge_index[1], pull)
        return torch.stack([torch.zeros_like(yes), yes - 1], dim=1)


@pytest.mark.parametrize(
    ("attention", "grade"),
    [("true", "supported"), ("reversed", "contradicted"), ("random", "unknown"), ("uniform", "unknown")],
)
@pytest.mark.parametrize("explanation", ["tree", "last"])
def test_planted_attention_is_graded_as_it_was_planted(attention, grade, explanation):
    graph = random_graph()
    graph.edge_index = graph.edge_index.unique(dim=1)  # of two parallel edges each would have a half
    found = measure_faithfulness(Planted(graph, attention), graph, explanation)
    assert found.grade.value == grade and found.explanation == explanation
    if attention == "uniform":
        assert found.nodes == 0 and found.tied > 190 and "uniform" in found.grade.sentence
    else:
        assert found.nodes > 190


def test_uniform_attention_along_the_tree_is_never_supported():
    """Products of 1/degree prefer edges, although no layer does."""
    graph, model = random_graph(), Stack(GATConv, GATConv)
    for conv in loose(model.convs):
        conv.att_src.data.zero_(), conv.att_dst.data.zero_()
    found = measure_faithfulness(model, graph, "tree")
    assert found.grade.value == "unknown" and "uniform" in found.grade.sentence


def test_differences_are_those_of_whole_graph_deletions():
    """Against a loop over nodes: half of a node's edges by attention is deleted from the graph, nothing else."""
    graph, model = random_graph(nodes=40, edges=160), Stack(GATConv, GATConv).eval()
    found = measure_faithfulness(model, graph, "last", nodes=40)
    reading, drops = fgai.read(model, graph), []
    before = reading.logits.double().log_softmax(-1)
    for node in range(40):
        mine = sorted({s for s, t in graph.edge_index.T.tolist() if t == node})
        if len(mine) < 2:
            continue
        weight = reading.explanation.weights_at(torch.tensor([mine, [node] * len(mine)]))[:, 0].tolist()
        order = [source for _, source in sorted(zip(weight, mine, strict=True), reverse=True)]
        half, answer = len(mine) // 2, int(before[node].argmax())
        after = [_without(model, graph, gone, node)[answer] for gone in (order[:half], order[-half:])]
        drops.append(float(after[1] - after[0]))
    assert found.nodes == len(drops)
    assert abs(found.against_least.mean - np.mean(drops)) < 1e-5


def _without(model, graph, sources, node):
    gone = (graph.edge_index[1] == node) & torch.isin(graph.edge_index[0], torch.tensor(sources))
    left = Data(x=graph.x, edge_index=graph.edge_index[:, ~gone])
    return fgai.read(model, left).logits[node].double().log_softmax(-1)


def test_hops_are_reported_one_by_one_and_the_seed_decides():
    graph, model = random_graph(), Stack(GATConv, GATConv)
    one, two, three = (measure_faithfulness(model, graph, nodes=60, seed=seed) for seed in (0, 0, 1))
    assert one == two and one != three
    assert [hop.hop for hop in one.hops] == [1, 2]
    assert abs(one.necessity.mean - sum(h.necessity.mean * h.necessity.count for h in one.hops) / one.nodes) < 1e-9
    assert "most - random" in str(one)


def test_answers_that_depend_on_the_whole_graph_are_still_tested():
    found = measure_faithfulness(Stack(GATConv, norm=GraphNorm(4)), random_graph(nodes=60, edges=200), nodes=10)
    assert any("full graph" in note for note in found.notes)


def test_deletions_on_the_full_graph_are_of_few_nodes_unless_nodes_are_given():
    graph, model = random_graph(), Stack(GATConv, norm=GraphNorm(4))
    assert measure_faithfulness(model, graph, "last").nodes <= 50
    assert measure_faithfulness(model, graph, "last", nodes=torch.arange(70)).nodes > 50


def test_what_cannot_be_tested_is_refused():
    graph, model = random_graph(nodes=20, edges=60), Stack(GATConv)
    with pytest.raises(SettingError, match=r"share=0.9"):
        measure_faithfulness(model, graph, share=0.9)
    with pytest.raises(CallError, match="returned 3 rows of logits for a graph of 20 nodes"):
        measure_faithfulness(model, graph, call=lambda net, g: net(g.x, g.edge_index)[:3])
    pairs = graph.clone().update({"edge_label_index": graph.edge_index[:, :3]})
    with pytest.raises(DataError, match="returns 3 rows of logits for 20 nodes"):
        measure_faithfulness(model, pairs, call=lambda net, g: net(g.x, g.edge_index)[:3])


@pytest.mark.parametrize(
    "settings",
    [
        *({"share": share} for share in (0.0, -1.0, 0.51, float("nan"), "half")),
        *({"nodes": nodes} for nodes in (0, -1, 2.5, None, torch.tensor([0.5]), torch.tensor(3), torch.tensor([99]))),
        *({"at_least": 1}, {"draws": 0}, {"seed": -1}),
        *({"explanation": name} for name in ("zzz", "layer:zzz", "layer:", "", None, 3)),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises((SettingError, UnknownNameError)):
        measure_faithfulness(Stack(GATConv, GATConv), random_graph(nodes=20, edges=60), **settings)


def test_a_graph_without_edges_has_not_enough_evidence():
    graph = Data(x=torch.ones(5, 4), edge_index=torch.zeros(2, 0, dtype=torch.long))
    found = measure_faithfulness(Stack(GATConv), graph)
    assert found.grade.value == "unknown" and found.nodes == 0


def test_ties_are_broken_at_random_and_self_loops_stay():
    edges = edge_index([(s, 0) for s in range(8)])
    tied = attribution("last", {"": Attention(torch.tensor([0.5, 0.2, *[0.05] * 6])[:, None], edges, 1)})
    rows = tied.of_nodes(torch.tensor([0]))
    firsts = set()
    for seed in range(40):
        found = ranked(rows, torch.ones(8, dtype=torch.bool), torch.Generator().manual_seed(seed))
        assert found.size.tolist() == [7] and 0 not in found.edge.tolist()
        assert found.edge[found.rank == 0].tolist() == [1]
        firsts.add(int(found.edge[found.rank == 1]))
    assert firsts == {2, 3, 4, 5, 6, 7}


def test_an_interval_covers_the_mean():
    """Coverage of the 95 % interval over 400 samples of 30 values with heavy tails."""
    generator = np.random.default_rng(0)
    inside = 0
    for seed in range(400):
        one = Interval.of(generator.standard_t(3, size=30), seed)
        assert one.outer_low <= one.low <= one.mean <= one.high <= one.outer_high
        inside += one.low <= 0 <= one.high
    assert inside / 400 > 0.93


def test_an_interval_of_normal_values_is_students():
    values = np.random.default_rng(1).normal(size=200)
    one = Interval.of(values)
    low, high = stats.t.interval(0.95, 199, values.mean(), stats.sem(values))
    assert abs(one.low - low) < 0.01 and abs(one.high - high) < 0.01
    assert not Interval.of([float("nan"), 1.0, 2.0]).above and not Interval.of([]).below


def test_the_nodes_needed_decide_about_four_times_in_five():
    generator = np.random.default_rng(2)
    needed = int(Interval.of(generator.normal(0.3, 1.0, size=5000)).nodes_needed())
    decided = [Interval.of(generator.normal(0.3, 1.0, size=needed), seed).above for seed in range(200)]
    assert 0.7 < np.mean(decided) < 0.9


def test_pygs_own_measures_are_at_hand():
    scores = pyg_scores(Stack(GATConv, GATConv), random_graph(nodes=40, edges=160), torch.arange(5))
    assert scores.nodes == 5 and 0 <= scores.fidelity_plus <= 1 and 0 <= scores.unfaithfulness <= 1
