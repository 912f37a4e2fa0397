import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.explain import Explainer
from torch_geometric.nn import GATConv, GATv2Conv, HeteroConv, TransformerConv
from torch_geometric.utils import k_hop_subgraph

import fgai
from fgai.attention import Attention
from fgai.errors import MissingExtraError, SettingError, TapError, UnknownNameError
from fgai.explanations import EXPLANATIONS, attribution, compare_nodes
from fgai.explanations.catalogue import tree
from fgai.reading import Reader, Reading
from loose import loose
from strategies import HEADS, edge_index, edge_lists, eighths

HOW = {
    "explanation_type": "model",
    "edge_mask_type": "object",
    "model_config": {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
}


class Net(nn.Module):
    def __init__(self, layer=GATConv, depth=2, features=4, classes=3, **settings):
        super().__init__()
        self.convs = nn.ModuleList(
            layer(features, classes if last else features, heads=2, concat=False, **settings)
            for last in [False] * (depth - 1) + [True]
        )

    def forward(self, x, edge_index):
        for conv in self.convs[:-1]:
            x = conv(x, edge_index).tanh()
        return self.convs[-1](x, edge_index)


def random_graph(nodes=20, edges=60, seed=0, features=4):
    generator = torch.Generator().manual_seed(seed)
    ends = torch.randint(nodes, (2, edges), generator=generator)
    return loose(Data(x=torch.randn(nodes, features, generator=generator), edge_index=ends[:, ends[0] != ends[1]]))


def net(layer=GATConv, **settings):
    torch.manual_seed(0)
    return Net(layer, **settings).eval()


@st.composite
def chains(draw):
    """One to three layers, each on its own edges; a batch's later layers compute fewer nodes."""
    sizes = sorted((draw(st.integers(1, 5)) for _ in range(draw(st.integers(1, 3)))), reverse=True)
    sources = [draw(st.integers(sizes[0], 6)), *sizes[:-1]]
    sites = {}
    for number, (size, below) in enumerate(zip(sizes, sources, strict=True)):
        pairs = [(s % below, t % size) for s, t in draw(edge_lists(6))]
        weight = draw(eighths(len(pairs), draw(HEADS), dtype=torch.float64))
        sites[f"conv{number}"] = Attention(weight, edge_index(pairs), size)
    return sites


def enumerated(sites, node, skip):
    """Every path from the node down, edge by edge: {(source, target): [weight, hop]}."""
    layers = [(a.edge_index.T.tolist(), a.weight.mean(1).tolist(), a.num_targets) for a in sites.values()]
    counted = {}

    def walk(at, depth, product):
        if depth == len(layers):
            return
        edges, weights, _ = layers[-1 - depth]
        for (source, target), weight in zip(edges, weights, strict=True):
            if target == at:
                entry = counted.setdefault((source, target), [0.0, depth + 1])
                entry[0] += product * weight
                entry[1] = min(entry[1], depth + 1)
                walk(source, depth + 1, product * weight)
        if [at, at] not in edges and skip:
            walk(at, depth + 1, product * skip)

    walk(node, 0, 1.0)
    return counted


@given(chains(), st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 40))
def test_weights_along_the_tree_are_those_of_all_paths(sites, skip, entries):
    found = attribution("tree", sites, skip)
    nodes = torch.arange(found.num_nodes).flip(0)
    total = dict.fromkeys(map(tuple, found.edge_index.T.tolist()), 0.0)
    met = []
    for rows in found.chunks(nodes, entries):
        met += rows.nodes.tolist()
        for row, node in enumerate(rows.nodes.tolist()):
            own = rows.row == row
            ends = map(tuple, rows.edge_index[:, rows.edge[own]].T.tolist())
            mine = dict(zip(ends, zip(rows.weight[own].tolist(), rows.hop[own].tolist(), strict=True), strict=True))
            truth = enumerated(sites, node, skip)
            assert mine.keys() == truth.keys()
            for edge, (weight, hop) in truth.items():
                assert abs(mine[edge][0] - weight) < 1e-10 and mine[edge][1] == hop
                total[edge] += weight
    assert met == nodes.tolist()
    assert np.allclose(found.total().numpy(), list(total.values()), atol=1e-10)


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv, TransformerConv])
def test_a_real_model_is_explained_along_its_tree(layer):
    graph, model = random_graph(), net(layer, depth=3)
    reading = fgai.read(model, graph)
    truth = enumerated(reading.attention, 5, skip=1.0)
    explained = reading.explain(5)
    assert len(explained.weight) == len(truth)
    for edge in explained.top(10**6):
        weight, hop = truth[edge.source, edge.target]
        assert abs(edge.weight - weight) < 1e-6 and edge.hop == hop
    assert any("no self-loop" in note for note in explained.notes) == (layer is TransformerConv)


def test_weights_of_a_normalised_chain_sum_to_the_number_of_layers():
    found = fgai.read(net(depth=3), random_graph()).attribution("tree")
    rows = found.of_nodes(torch.arange(20))
    sums = torch.zeros(20, dtype=torch.double).index_add(0, rows.row, rows.weight)
    assert torch.allclose(sums, torch.full_like(sums, 3.0), atol=1e-5)


def test_one_layer_alone_is_its_own_attention():
    reading = fgai.read(net(), random_graph())
    for name, site in {"last": "convs.1", "first": "convs.0", "layer:convs.0": "convs.0"}.items():
        found = reading.attribution(name)
        weight = reading.attention[site].mean_heads().weights_at(found.edge_index)[:, 0].double()
        assert torch.allclose(found.total(), weight)
        rows = found.of_nodes(torch.tensor([3, 3, 1]))
        assert set(found.edge_index[1, rows.edge[rows.row == 2]].tolist()) == {1}
        assert (rows.hop == 1).all()


def test_leave_one_out_is_what_the_margin_loses():
    """Against the definition: the weight of one edge set to zero, the others scaled up, the model run again."""
    graph, model = random_graph(), net(GATConv)
    read = Reader(model)
    with torch.no_grad():
        reading = read(graph)
    last = reading.attention["convs.1"]
    explained = reading.explain(7, "leave-one-out", read=read, graph=graph)
    answer, rival = reading.logits[7].topk(2).indices.tolist()
    for edge in explained.top(100):
        gone = (last.source == edge.source) & (last.target == edge.target)
        mine = last.target == edge.target

        def edit(site, attention, gone=gone, mine=mine):
            weight = attention.weight.clone()
            if site == "convs.1":
                weight[gone] = 0.0
                weight[mine] /= weight[mine].sum(0)
            return weight

        with torch.no_grad():
            left = read(graph, edit=edit).logits[7]
        before, after = (float(z[answer] - z[rival]) for z in (reading.logits[7], left))
        assert abs(before - after - edge.weight) < 1e-4


def test_leave_one_out_with_one_edge_takes_the_whole_aggregate():
    graph = Data(x=torch.eye(2, 4), edge_index=torch.zeros(2, 0, dtype=torch.long))
    read = Reader(net(depth=1))
    with torch.no_grad():
        reading = read(graph)
    (edge,) = reading.explain(0, "leave-one-out", read=read, graph=graph).top()
    assert abs(edge.weight - float(reading.logits[0].topk(2).values @ torch.tensor([1.0, -1.0]))) < 1e-5


def test_leave_one_out_refuses_what_is_not_linear():
    class Squashed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net()

        def forward(self, x, edge_index):
            return self.inner(x, edge_index).exp()

    read, graph = Reader(Squashed().eval()), random_graph()
    with torch.no_grad():
        reading = read(graph)
    with pytest.raises(TapError, match="nonlinear operation follows it"):
        reading.explain(0, "leave-one-out", read=read, graph=graph)
    with pytest.raises(SettingError, match="give the reader and the graph"):
        reading.explain(0, "leave-one-out")


def test_every_explanation_says_what_it_is():
    assert list(EXPLANATIONS) == ["tree", "last", "first", "leave-one-out"]
    assert all(EXPLANATIONS.about(name) for name in EXPLANATIONS)
    reading = fgai.read(net(), random_graph())
    with pytest.raises(UnknownNameError, match="convs"):
        reading.explain(0, "layer:conv9")
    with pytest.raises(SettingError, match="node 20 does not exist"):
        reading.explain(20)


def test_layers_that_are_no_chain_are_refused():
    wide, narrow = (Attention(torch.ones(1, 1), edge_index([(4, 0)]), size) for size in (2, 1))
    reading = Reading(torch.zeros(1, 2), {"a": wide, "b": narrow})
    with pytest.raises(TapError, match="'b' reads the nodes 0 to 4"):
        reading.explain(0)
    assert reading.top(0, explanation="last") == [(4, 0, 1.0, 1)]


def test_relations_side_by_side_are_refused():
    relations = {("a", "to", "a"): GATConv(2, 2), ("a", "from", "a"): GATConv(2, 2)}
    graph = HeteroData(a={"x": torch.ones(3, 2)})
    for relation in relations:
        graph[relation].edge_index = edge_index([(0, 1), (1, 2)])
    conv = HeteroConv(loose(relations))
    reading = fgai.read(conv, graph, call=lambda model, g: model(g.x_dict, g.edge_index_dict)["a"])
    with pytest.raises(TapError, match="run in parallel"):
        reading.explain(1)
    assert reading.top(1, k=1, explanation="last")


def test_a_layer_that_runs_twice_is_a_chain_of_two():
    class Twice(nn.Module):
        def __init__(self, other=False):
            super().__init__()
            self.conv, self.other = GATConv(4, 4), other

        def forward(self, x, edge_index):
            return self.conv(self.conv(x, edge_index), edge_index.flip(0) if self.other else edge_index)

    graph = random_graph()
    reading = fgai.read(Twice(), graph)
    assert len(reading.explain(5).weight) == len(enumerated(reading.attention, 5, skip=1.0))
    with pytest.raises(TapError, match="ran several times"):
        fgai.read(Twice(other=True), graph).explain(5)


def test_the_weight_of_the_skip_can_be_chosen():
    reading = fgai.read(net(loose(TransformerConv)), random_graph())
    found = reading.attribution(lambda *args: tree(*args, skip=0.25))
    truth = enumerated(reading.attention, 3, skip=0.25)
    rows = found.of_nodes(torch.tensor([3]))
    assert abs(float(rows.weight.sum()) - sum(weight for weight, _ in truth.values())) < 1e-6


def test_an_explanation_can_be_printed_and_handed_on():
    graph = random_graph()
    explained = fgai.read(net(), graph).explain(5)
    assert repr(explained).startswith(f"node 5 by 'tree': {len(explained.weight)} edges, up to 2 hops away\n")
    assert repr(explained).count("->") == 5
    drawn = explained.to_networkx()
    assert drawn.number_of_edges() == len(explained.weight)
    first = explained.top(1)[0]
    assert drawn.edges[first.source, first.target] == {"weight": first.weight, "hop": first.hop}
    alone = explained.to_pyg()
    assert alone.validate_masks() and alone.edge_index.equal(explained.edge_index)
    whole = explained.to_pyg(graph)
    inside = k_hop_subgraph(5, 2, graph.edge_index, num_nodes=20, directed=True)[3]
    assert whole.validate_masks() and (whole.edge_mask[~inside] == 0).all() and (whole.edge_mask[inside] > 0).all()


def test_a_table_needs_pandas(monkeypatch):
    explained = fgai.read(net(), random_graph()).explain(5)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        explained.to_frame()

    class Pandas:
        @staticmethod
        def DataFrame(rows, columns):
            return columns, rows

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    columns, rows = explained.to_frame()
    assert columns == ["source", "target", "weight", "hop"] and rows == explained.top(10**6)


@pytest.mark.parametrize("name", ["tree", "last", "layer:convs.0", "leave-one-out"])
def test_the_explainer_marks_only_what_counts_for_the_index(name):
    graph, model = random_graph(nodes=100, edges=400), net()
    explain = Explainer(model, fgai.AttentionExplainer(name), **HOW)
    mask = explain(graph.x, graph.edge_index, index=3).edge_mask
    hops = 2 if name == "tree" else 1
    inside = k_hop_subgraph(3, hops, graph.edge_index, num_nodes=100, directed=True)[3]
    assert 0 < int(inside.sum()) < len(mask)
    assert (mask[~inside] == 0).all() and (mask[inside] != 0).all()
    whole = explain(graph.x, graph.edge_index).edge_mask
    each = [loose(explain(graph.x, graph.edge_index, index=node)).edge_mask for node in range(100)]
    assert torch.allclose(whole, torch.stack(each).sum(0), atol=1e-4)
    some = explain(graph.x, graph.edge_index, index=torch.tensor([3, 4])).edge_mask
    assert torch.allclose(some - mask, explain(graph.x, graph.edge_index, index=4).edge_mask, atol=1e-5)


@given(chains(), chains(), st.sampled_from([1, 2, 0.5]), st.integers(1, 30))
def test_two_explanations_are_compared_edge_by_edge(one, other, k, entries):
    first, second = attribution("tree", one), attribution("tree", other)
    nodes = torch.arange(min(first.num_nodes, second.num_nodes))
    found = compare_nodes(first, second, nodes, k=k, entries=entries)
    for node in nodes.tolist():
        rows = [{e: w for e, (w, _) in enumerated(sites, node, 0.0).items()} for sites in (one, other)]
        if not rows[0]:
            assert found.overlap[node].isnan() and found.jsd[node].isnan()
            continue
        edges = sorted({*rows[0], *rows[1]})
        p, q = (np.array([row.get(edge, 0.0) for edge in edges]) for row in rows)
        p, q = (w / w.sum() if w.sum() else w for w in (p, q))
        if p.sum() and q.sum():
            assert abs(float(found.jsd[node]) - jensenshannon(p, q) ** 2) < 1e-9
        tops = [_top(row, k) for row in rows]
        assert abs(float(found.overlap[node]) - len(tops[0] & tops[1]) / len(tops[0])) < 1e-12


def _top(row, k):
    count = min(k, len(row)) if isinstance(k, int) else int(np.ceil(round(k * len(row), 9)))
    ranked = sorted(row, key=lambda edge: (-round(row[edge], 12), edge[1], edge[0]))
    return set(ranked[:count])


def test_an_unchanged_explanation_keeps_everything():
    found = fgai.read(net(), random_graph()).attribution()
    same = compare_nodes(found, found, torch.arange(20))
    assert (same.overlap == 1).all() and (same.jsd.abs() < 1e-12).all()
