import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import dropout, elu
from torch_geometric.data import Data
from torch_geometric.explain import AttentionExplainer, Explainer
from torch_geometric.explain.algorithm.utils import clear_masks, set_masks
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, HeteroConv, MessagePassing, RGATConv, TransformerConv
from torch_geometric.utils import softmax, to_torch_csr_tensor

from fgai import AttentionPoint, Tap
from fgai.errors import TapError
from fgai.reading import Reader
from loose import loose

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0, 1, 2, 2, 3, 4, 5, 0], [1, 2, 2, 0, 0, 4, 0, 5]])  # 2 -> 2 and 4 -> 4 are self-loops


def caught(model, *inputs, **plus):
    with Tap(model).open(**plus) as catch:
        answer = model(*inputs)
    return answer, catch.attention


def by_ends(attention):
    return {
        tuple(ends): weight for ends, weight in zip(attention.edge_index.t().tolist(), attention.weight, strict=True)
    }


class Net(nn.Module):
    """A user's own model: mixed layers, one of them used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.mix = GATConv(4, 3, heads=2), TransformerConv(6, 3, heads=2)
        self.again = GATv2Conv(6, 3, heads=2)

    def forward(self, x, edge_index):
        x = elu(self.mix(elu(self.first(x, edge_index)), edge_index))
        return self.again(self.again(x, edge_index), edge_index)


class Tempered(GATConv):
    """A user's layer that reaches the softmax only through super()."""

    def edge_update(self, alpha_j, alpha_i, edge_attr, index, ptr, dim_size):
        return super().edge_update(2 * alpha_j, 2 * loose(alpha_i), edge_attr, index, ptr, dim_size)


DATA = Data(x=X, edge_index=EDGES)  # a callable global that has no hash, beside the user's layers


class Direct(MessagePassing):
    """A user's layer that calls the softmax itself."""

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x)

    def message(self, x_j, index, size_i):  # pyright: ignore[reportIncompatibleMethodOverride]
        return x_j * softmax(x_j.sum(-1, keepdim=True), index, num_nodes=size_i)


def test_globals_of_a_users_module_need_no_hash():
    assert caught(Direct(), DATA.x, DATA.edge_index)[1][""].weight.shape == (EDGES.size(1), 1)


class Marked(nn.Module):
    """A user's layer without PyG's softmax, its attention marked by a point."""

    def __init__(self):
        super().__init__()
        self.lin, self.attention = nn.Linear(4, 3), AttentionPoint()

    def forward(self, x, edge_index):
        h = self.lin(x)
        score = (h[edge_index[0]] * h[edge_index[1]]).sum(-1, keepdim=True)
        weight = self.attention(score, edge_index=edge_index, num_targets=x.size(0))
        return torch.zeros_like(h).index_add(0, edge_index[1], weight * h[edge_index[0]])


def test_every_site_has_a_name_also_where_a_layer_runs_twice():
    assert list(caught(Net(), X, EDGES)[1]) == ["first", "mix", "again", "again@1"]


def test_the_second_call_of_a_layer_is_perturbed_alone():
    net = Net().eval()
    _, plain = caught(net, X, EDGES)
    _, moved = caught(net, X, EDGES, weight_delta={"again@1": torch.ones_like(plain["again@1"].weight)})
    assert torch.equal(moved["again"].weight, plain["again"].weight)
    assert torch.equal(moved["again@1"].weight, plain["again@1"].weight + 1)


def test_self_loops_of_the_input_and_of_the_layer_are_one_edge():
    conv = GATConv(4, 3, heads=2, add_self_loops=True)
    _, (edge_index, weight) = conv(X, EDGES, return_attention_weights=True)
    seen = by_ends(caught(conv, X, EDGES)[1][""])
    assert len(seen) == 6 + 6  # six edges between nodes, one self-loop per node
    assert all(torch.equal(seen[tuple(ends)], w) for ends, w in zip(edge_index.t().tolist(), weight, strict=True))


def test_pygs_own_explainer_names_wrong_edges_where_ours_does_not():
    conv = GATConv(4, 3, heads=1).eval().requires_grad_(False)
    settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    explain = Explainer(
        conv, AttentionExplainer(), explanation_type="model", edge_mask_type="object", model_config=settings
    )
    theirs = explain(X, EDGES).edge_mask
    ours = by_ends(caught(conv, X, EDGES)[1][""])
    _, (edge_index, weight) = conv(X, EDGES, return_attention_weights=True)
    truth = dict(zip(map(tuple, edge_index.t().tolist()), weight.flatten().tolist(), strict=True))
    named = dict(zip(map(tuple, EDGES.t().tolist()), theirs.tolist(), strict=True))
    wrong = [ends for ends in named if abs(named[ends] - truth[ends]) > 1e-6]
    assert (2, 2) in wrong and (3, 0) in wrong  # rows shift where the layer takes a self-loop out
    assert all(abs(float(ours[ends]) - truth[ends]) < 1e-7 for ends in truth)


def test_weights_are_read_before_the_attention_dropout():
    conv = GATConv(4, 3, heads=2, dropout=0.6).train()
    torch.manual_seed(5)
    out, attention = caught(conv, X, EDGES)
    weight, (source, target) = attention[""].weight, attention[""].edge_index
    torch.testing.assert_close(torch.zeros(6, 2).index_add(0, target, weight), torch.ones(6, 2))
    torch.manual_seed(5)
    kept = dropout(weight, 0.6, training=True)
    told = torch.zeros(6, 2, 3).index_add(0, target, kept[..., None] * loose(conv).lin(X).view(6, 2, 3)[source])
    torch.testing.assert_close(out, told.view(6, -1) + conv.bias)


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about its own work on PyG's layers
def test_a_compiled_model_is_read_eagerly_and_says_the_same():
    net = Net().eval()
    compiled = torch.compile(net, backend="eager")
    expected = compiled(X, EDGES)
    answer, attention = caught(compiled, X, EDGES)
    torch.testing.assert_close(answer, expected)
    assert [site.removeprefix("_orig_mod.") for site in attention] == list(caught(net, X, EDGES)[1])


def test_a_sparse_adjacency_gives_the_same_edges_and_weights():
    conv = TransformerConv(4, 3, heads=2).eval()
    plain = by_ends(caught(conv, X, EDGES)[1][""])
    sparse = by_ends(caught(conv, X, to_torch_csr_tensor(EDGES.flip(0), size=(6, 6)))[1][""])
    assert plain.keys() == sparse.keys()
    assert all(torch.allclose(plain[ends], sparse[ends]) for ends in plain)


def test_a_subclass_that_reaches_the_softmax_through_super_is_read():
    conv = Tempered(4, 3, heads=2).eval()
    weight = conv(X, EDGES, return_attention_weights=True)[1][1]
    plain, attention = caught(conv, X, EDGES)
    assert torch.equal(attention[""].weight, weight)
    assert not torch.allclose(caught(conv, X, EDGES, weight_delta={"": torch.ones_like(weight)})[0], plain)


def test_a_point_marks_the_attention_of_a_custom_layer_without_new_keys():
    net = Marked()
    plain = net(X, EDGES)
    answer, attention = caught(net, X, EDGES)
    assert torch.equal(answer, plain)
    assert list(attention) == ["attention"] and set(net.state_dict()) == {"lin.weight", "lin.bias"}
    delta = torch.rand_like(attention["attention"].weight).requires_grad_()
    moved = caught(net, X, EDGES, weight_delta={"attention": delta})[0]
    change = torch.zeros(6, 3).index_add(0, EDGES[1], delta * net.lin(X)[EDGES[0]])
    torch.testing.assert_close(moved, plain + change)


def test_bipartite_sources_and_targets_keep_their_own_numbers():
    conv = GATConv((4, 4), 3, add_self_loops=False).eval()
    edges = torch.tensor([[5, 4, 5], [0, 1, 1]])
    attention = caught(conv, (X, X[:3]), edges)[1][""]
    assert torch.equal(attention.edge_index, edges)
    assert attention.num_targets == 3 and attention.degree.tolist() == [1, 2, 0]


def test_relations_of_a_heterogeneous_model_are_read_by_name():
    kinds = [("a", "to", "b"), ("b", "back", "a")]
    net = HeteroConv({kind: GATConv((4, 4), 3, add_self_loops=False) for kind in kinds})
    edges = {kinds[0]: torch.tensor([[5, 1], [2, 2]]), kinds[1]: torch.tensor([[2], [5]])}
    attention = caught(net, {"a": X, "b": X[:3]}, edges)[1]
    for kind, (site, found) in zip(kinds, attention.items(), strict=True):
        assert all(word in site for word in kind)
        assert torch.equal(found.edge_index, edges[kind])


def test_a_graph_without_edges_has_empty_attention():
    attention = caught(GATConv(4, 3, add_self_loops=False), X, EDGES[:, :0])[1][""]
    assert attention.weight.shape == (0, 1) and attention.edge_index.shape == (2, 0)


def test_nested_taps_are_refused():
    net = Net()
    with Tap(net).open(), pytest.raises(TapError, match="tapped already"):
        Tap(net)
    tap = Tap(net)
    with tap.open(), pytest.raises(TapError, match="tapped already"), tap.open():
        pass
    assert type(net.first) is GATConv


def test_a_model_without_attention_is_refused_with_the_remedy():
    with pytest.raises(TapError, match=r"fgai\.AttentionPoint"):
        Tap(GCNConv(4, 3))


def test_attention_over_parts_of_the_edges_is_refused():
    conv = RGATConv(4, 3, num_relations=2, attention_mechanism="within-relation")
    with pytest.raises(TapError, match="parts of its edges"):
        caught(conv, X, EDGES, torch.tensor([0, 1] * 4))


def test_no_global_function_is_patched():
    net = Net()
    with Tap(net).open():
        other = copy.deepcopy(GATConv(4, 3))
        assert type(other) is GATConv
        from torch_geometric.nn.conv import gat_conv

        assert gat_conv.softmax is softmax
    assert all("_tap" not in key for module in net.modules() for key in vars(module))


class Again(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = GATConv(3, 3), GATConv(3, 3)

    def forward(self, x, edge_index):
        return self.a(self.b(self.a(x, edge_index), edge_index), edge_index)


def test_sites_come_in_the_order_in_which_they_act():
    model = Again()
    with Tap(model).open() as caught:
        model(torch.ones(2, 3), torch.tensor([[0], [1]]))
    assert list(caught.attention) == ["a", "b", "a@1"]


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv, TransformerConv])
def test_a_layer_with_hooks_on_its_steps_is_not_read(layer):
    """Such a hook changes the weights after the softmax, where the tap reads them."""
    model = layer(4, 2).eval()
    removed = model.register_message_forward_hook(lambda layer, inputs, out: 0 * out)
    with pytest.raises(TapError, match="a hook or a mask on a step inside it"):
        Reader(model)(Data(x=X, edge_index=EDGES))
    removed.remove()
    assert Reader(model)(Data(x=X, edge_index=EDGES)).unread == ()


def test_of_two_layers_the_one_with_a_mask_is_named():
    model = Net().eval()
    set_masks(model.first, torch.zeros(EDGES.size(1)), EDGES)
    reading = Reader(model)(Data(x=X, edge_index=EDGES))
    assert reading.unread == ("first",) and list(reading.attention) == ["mix", "again", "again@1"]
    clear_masks(model)
    assert Reader(model)(Data(x=X, edge_index=EDGES)).unread == ()
