"""The attention of typed layers against dense formulas, and laws of what is read."""

import copy
import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import leaky_relu
from torch_geometric.data import Data, HeteroData
from torch_geometric.explain import Explainer
from torch_geometric.nn import GATConv, HANConv, HeteroConv, HGTConv
from torch_geometric.utils import softmax

import fgai
from fgai import AttentionExplainer
from fgai.auditing.sanity import without_attention
from fgai.errors import CallError, DataError, SettingError, TapError
from fgai.reading import Reader
from fgai.typed import join
from loose import loose
from worlds import FILM_MODELS, HGTFilms, film_model, films, table, widths


def dense(scores):
    """The softmax over all given scores {source type: [S, movies, H]}, -inf without an edge, as {(id, id): weight}."""
    start, found = {"director": 14, "actor": 19}, {}
    weight = torch.cat(list(scores.values())).softmax(0).detach()
    for (source, score), block in zip(scores.items(), weight.split([len(p) for p in scores.values()]), strict=True):
        for i, j in (score[:, :, 0] > -math.inf).nonzero().tolist():
            found[start[source] + i, j] = float(block[i, j].mean())
    return found


def scores_of(data, source, score):
    """Scores [S, T, H] where an edge source -> movie exists, else -inf."""
    edges = data[source, "to", "movie"].edge_index
    full = torch.full_like(score, -math.inf)
    full[edges[0], edges[1]] = score[edges[0], edges[1]]
    return full


def test_hgt_is_a_softmax_over_all_relations_into_a_node():
    data, conv = films(), HGTConv(widths(films()), 8, films().metadata(), heads=2).eval()
    for parameter in conv.p_rel.values():
        nn.init.uniform_(parameter)
    kqv = {name: lin(data[name].x).view(-1, 3, 2, 4) for name, lin in conv.kqv_lin.lins.items()}
    scores = {}
    for source in ("director", "actor"):
        number = data.edge_types.index((source, "to", "movie"))
        rel = torch.stack([loose(conv.k_rel.weight)[head * 4 + number] for head in range(2)])
        keys = torch.einsum("nhd,hde->nhe", kqv[source][:, 0], rel)
        score = torch.einsum("she,the->sth", keys, kqv["movie"][:, 1]) * conv.p_rel[f"{source}__to__movie"] / 2
        scores[source] = scores_of(data, source, score)
    read = fgai.read(conv, data).explanation
    assert table(read) == pytest.approx(dense(scores), abs=1e-5)
    assert torch.allclose(torch.zeros(14).index_add(0, read.target, read.weight.mean(1)), torch.ones(14))


def test_han_is_a_softmax_over_each_relation_times_its_semantic_attention():
    data, conv = films(), HANConv(widths(films()), 8, films().metadata(), heads=2).eval()
    _, shares = conv(data.x_dict, data.edge_index_dict, return_semantic_attention_weights=True)
    want = {}
    for place, source in enumerate(("director", "actor")):
        h = {name: conv.proj[name](data[name].x).view(-1, 2, 4) for name in (source, "movie")}
        one = (h[source] * conv.lin_src[f"{source}__to__movie"]).sum(-1)
        other = (h["movie"] * conv.lin_dst[f"{source}__to__movie"]).sum(-1)
        score = scores_of(data, source, leaky_relu(one[:, None] + other[None], 0.2))
        only = dense({source: score})
        want |= {edge: weight * float(shares["movie"][place].detach()) for edge, weight in only.items()}
    assert table(fgai.read(conv, data).explanation) == pytest.approx(want, abs=1e-5)


def test_relations_of_a_hetero_conv_have_equal_shares():
    data, model = films(), film_model("hetero-conv")
    with torch.no_grad():
        hidden = {name: value.relu() for name, value in model.conv1(data.x_dict, data.edge_index_dict).items()}
        want = {}
        for source, start in (("director", 14), ("actor", 19)):
            relation = (source, "to", "movie")
            conv, pair = model.conv2.convs[relation], (hidden[source], hidden["movie"])
            _, (edges, weight) = conv(pair, data[relation].edge_index, return_attention_weights=True)
            for (s, t), value in zip(edges.t().tolist(), weight.mean(1).tolist(), strict=True):
                want[start + s, t] = value / 2
    assert table(fgai.read(model, data).explanation) == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("name", FILM_MODELS)
def test_reading_a_typed_graph_returns_the_logits_of_the_model_and_leaves_it_as_it_was(name):
    data, model = films(), film_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    reading = fgai.read(model, data)
    assert torch.allclose(reading.logits, logits_of_films(model, data), atol=1e-6)
    assert list(reading.attention)[-1].endswith("conv2") and reading.explanation.num_targets == 14
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", FILM_MODELS)
@pytest.mark.parametrize("explanation", ["tree", "last"])
def test_uniform_attention_is_that_of_a_softmax_of_equal_scores(name, explanation, monkeypatch):
    data, model = films(), film_model(name)
    for parameter in model.parameters():
        parameter.data *= 3
    found = without_attention(model, join(data), explanation)
    before = fgai.read(model, data)
    _, calls = flattened(monkeypatch, model, data, start=math.inf)
    start = calls // 2 if explanation == "last" else 0  # as many calls of the softmax belong to each of two layers
    after, _ = flattened(monkeypatch, model, data, start)
    want = (before.probs - after.softmax(1)).abs().sum(1).mean() / 2
    assert found.g_tvd == pytest.approx(float(want), abs=1e-6) and want > 0.001


def flattened(monkeypatch, model, data, start):
    """The logits with equal scores in all calls of PyG's softmax from the number `start` on, and how many there are."""
    number = itertools.count()

    def equal(scores, *args, **named):
        return softmax(torch.zeros_like(scores) if next(number) >= start else scores, *args, **named)

    with monkeypatch.context() as patch:
        for name in ("gat_conv", "gatv2_conv", "han_conv", "hgt_conv"):
            patch.setattr(f"torch_geometric.nn.conv.{name}.softmax", equal)
        return logits_of_films(model, data), next(number)


def logits_of_films(model, data):
    with torch.no_grad():
        output = model(data) if isinstance(model, HGTFilms) else model(data.x_dict, data.edge_index_dict)
    return output["movie"] if isinstance(output, dict) else output


class OneForAll(nn.Module):
    """A HeteroConv whose relations share one layer, or have copies of it."""

    def __init__(self, relations, layer):
        super().__init__()
        self.conv = HeteroConv({relation: layer() for relation in relations})

    def forward(self, x_dict, edge_index_dict):
        return self.conv(x_dict, edge_index_dict)["a"]


@pytest.mark.filterwarnings("ignore:There exist node types")
@pytest.mark.parametrize("same", [False, True], ids=["other-edges", "same-edges"])
def test_a_layer_that_relations_share_is_read_as_copies_of_it(same):
    data, draw = HeteroData(), torch.Generator().manual_seed(0)
    data["a"].x, data["b"].x = (torch.randn(30, 8, generator=draw) for _ in range(2))
    data["a"].y = torch.randint(3, (30,), generator=draw)
    relations = [("b", "to", "a"), ("a", "self", "a"), ("a", "again", "a")]
    for relation in relations:
        data[relation].edge_index = torch.randint(30, (2, 200), generator=draw)
    if same:
        data[relations[2]].edge_index = data[relations[1]].edge_index
    layer = GATConv((8, 8), 3, add_self_loops=False)
    one, two = OneForAll(relations, lambda: layer), OneForAll(relations, lambda: copy.deepcopy(layer))
    first, second = fgai.read(one, data), fgai.read(two, data)
    assert list(first.attention) == list(second.attention) == ["conv"]
    assert table(first.explanation) == table(second.explanation)


@pytest.mark.filterwarnings("ignore:There exist node types")
def test_a_shared_layer_on_equal_edges_of_different_types_is_refused():
    data = HeteroData(a={"x": torch.randn(9, 8), "y": torch.arange(9) % 3}, b={"x": torch.randn(9, 8)})
    relations = [("b", "to", "a"), ("a", "self", "a")]
    for relation in relations:
        data[relation].edge_index = torch.tensor([[0, 1, 2], [3, 4, 5]])
    layer = GATConv((8, 8), 3, add_self_loops=False)
    with pytest.raises(TapError, match="of which relation"):
        fgai.read(OneForAll(relations, lambda: layer), data)


def test_a_layer_that_runs_twice_has_a_tree():
    data = films()

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.ModuleDict({kind: nn.Linear(width, 8) for kind, width in widths(data).items()})
            self.conv, self.last = HGTConv(8, 8, data.metadata(), heads=2), nn.Linear(8, 3)

        def forward(self, x_dict, edge_index_dict):
            x_dict = {kind: self.first[kind](x) for kind, x in x_dict.items()}
            for _ in range(2):
                x_dict = self.conv(x_dict, edge_index_dict)
            return self.last(x_dict["movie"])

    reading = fgai.read(Twice(), data)
    assert list(reading.attention) == ["conv", "conv@1"]
    assert {edge.hop for edge in reading.top(0, 99)} == {1, 2}


@pytest.mark.parametrize("name", FILM_MODELS)
def test_the_numbers_of_nodes_and_edges_do_not_matter(name):
    data, model, moved = films(), film_model(name), films()
    order = {kind: torch.randperm(data[kind].num_nodes) for kind in data.node_types}
    for kind, nodes in order.items():
        moved[kind].x = data[kind].x[nodes]
    for source, via, target in data.edge_types:
        edges = data[source, via, target].edge_index
        edges = torch.stack([order[source].argsort()[edges[0]], order[target].argsort()[edges[1]]])
        moved[source, via, target].edge_index = edges[:, torch.randperm(edges.size(1))]
    one, other = fgai.read(model, data), fgai.read(model, moved)
    assert torch.allclose(one.logits[order["movie"]], other.logits, atol=1e-5)
    start, to = {"movie": 0, "director": 14, "actor": 19}, {}
    for kind, nodes in order.items():
        to |= {start[kind] + place: start[kind] + node for place, node in enumerate(nodes.tolist())}
    again = {(to[s], to[t]): weight for (s, t), weight in table(other.explanation).items()}
    assert table(one.explanation) == pytest.approx(again, abs=1e-5)


def test_an_explanation_names_types_and_sums_by_them():
    explained = fgai.read(film_model("hgt"), films()).explain(3)
    assert str(explained).startswith("movie 3 by 'tree': ") and " -> movie 3 " in str(explained)
    sums = explained.by_type()
    assert set(sums) == {("director", "movie"), ("actor", "movie"), ("movie", "director"), ("movie", "actor")}
    assert sum(sums.values()) == pytest.approx(float(explained.weight.sum()))


def test_the_explainer_of_pyg_gets_a_mask_for_each_relation():
    data, model = films(), film_model("han")
    how = {"explanation_type": "model", "edge_mask_type": "object"}
    config = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    explain = Explainer(model, AttentionExplainer(), model_config=loose(config), **loose(how))
    explained = explain(data.x_dict, data.edge_index_dict, index=3)
    own = fgai.read(model, data).explain(3)
    masks = torch.cat([loose(explained)[relation].edge_mask for relation in data.edge_types])
    assert torch.allclose(masks, own.mask(loose(join(data)).edge_index), atol=1e-6) and masks.sum() > 0
    same = own.to_pyg(data)
    assert torch.allclose(masks, torch.cat([loose(same)[r].edge_mask for r in data.edge_types]), atol=1e-6)
    with pytest.raises(SettingError, match=r"AttentionExplainer\(answer"):
        AttentionExplainer()._typed({"a": torch.ones(2, 1), "b": torch.ones(2, 1)}, {}, 2)


class OwnNames(nn.Module):
    """Layers of relations under names that say nothing; each is called on the edges of one."""

    def __init__(self, doubled=False):
        super().__init__()
        self.one, self.two = (GATConv((w, 6), 3, add_self_loops=False) for w in (5, 4))
        self.doubled = doubled

    def forward(self, x_dict, edge_index_dict):
        movie, extra = x_dict["movie"], 2 if self.doubled else 1
        by_director = edge_index_dict["director", "to", "movie"].repeat(1, extra)
        return self.one((x_dict["director"], movie), by_director) + self.two(
            (x_dict["actor"], movie), edge_index_dict["actor", "to", "movie"]
        )


def test_a_relation_is_known_by_its_edges_or_refused_in_words():
    reading = fgai.read(OwnNames(), films())
    assert list(reading.attention) == [""] and reading.explanation.edge_index.size(1) == 14 * 4
    with pytest.raises(TapError, match="neither its name nor its edges say of which relation"):
        fgai.read(OwnNames(doubled=True), films())


def test_what_cannot_be_done_with_typed_attention_is_refused_in_words():
    data, model = films(), film_model("hgt")
    graph = join(data)
    with pytest.raises(TapError, match=r"cannot be perturbed; attack the graph with fgai\.TypedInjection"):
        Reader(model)(graph, weight_delta={"conv2": torch.zeros(1, 1)})
    with pytest.raises(DataError, match=r"`certify` is for graphs with one type"):
        fgai.certify(model, loose(data))
    with pytest.raises(DataError, match="one type of nodes; `top`"):
        fgai.Reading(torch.zeros(1, 2), {"": fgai.read(GATConv(2, 2), one_node()).explanation}).explain(0).by_type()
    del data["movie"].y
    with pytest.raises(CallError, match="dict"):
        fgai.read(film_model("hetero-conv"), data)


def one_node():
    return Data(x=torch.ones(1, 2), edge_index=torch.tensor([[0], [0]]))
