"""Which models are taken for chains of attention layers: those that compute what their layers do, also elsewhere."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv
from torch_geometric.utils import degree, erdos_renyi_graph

from fgai.certificates import Deletions, Features, Injection, certify
from fgai.certificates.chain import NoBoundError, parse_chain
from fgai.certificates.intervals import interval_bounds
from fgai.reading import Reader
from injecting import Two, graph


class Prepared(Two):
    """A model with a step before its layers, and an activation between them."""

    def __init__(self, prepare=lambda x: x, act=functional.elu, layer=GATConv, **settings):
        super().__init__(layer, **settings)
        self.prepare, self.act = prepare, act

    def forward(self, x, edge_index):
        return self.two(self.act(self.one(self.prepare(x), edge_index)), edge_index)


def normalise(x):
    return functional.normalize(x, dim=1)


def normalised():
    torch.manual_seed(0)
    data = graph()
    data.x = normalise(data.x)
    data.x[::3] = 0.0  # as in a document without words
    return data


@pytest.mark.parametrize(
    "prepare", [normalise, lambda x: x.clamp(-1, 1), lambda x: x + 0.0 * x.sum(), lambda x: x * (x.abs() < 2)]
)
def test_a_model_that_prepares_its_features_is_a_chain_only_if_nothing_changes(prepare):
    data = normalised()
    model = Prepared(prepare).eval()
    assert torch.allclose(model(data.x, data.edge_index), Prepared.forward(model, prepare(data.x), data.edge_index))
    if prepare(torch.full((1, 1), 9.0)) == 9:
        assert parse_chain(model, data).first is not None
        return
    for against in (Features(0.01), Injection(1), Deletions(1)):
        proof = certify(model, data, against=against)
        assert proof.how == "none" and not proof.certified().any() and "features" in proof.reason


def test_a_call_that_prepares_the_features_is_seen():
    def call(model, data):
        return model(normalise(data.x), data.edge_index)

    model, data = Two(GATConv).eval(), normalised()
    assert parse_chain(model, data).first is not None
    assert certify(model, data, against=Features(0.01), call=call).how == "none"


def test_a_model_that_fails_on_other_features_has_no_bound():
    def strict(x):
        assert x.abs().max() <= 1
        return x

    proof = certify(Prepared(strict).eval(), normalised(), against=Features(0.01))
    assert proof.how == "none" and "other features" in proof.reason


def test_links_that_a_model_keeps_from_before_are_seen():
    data = normalised()

    class Keeps(Two):
        def forward(self, x, edge_index):
            return super().forward(x, data.edge_index)

    assert certify(Keeps(GATConv).eval(), data, against=Deletions(1)).how == "none"


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("layer", [GATConv, GATv2Conv])
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("dtype", [torch.float, torch.double])
def test_plain_models_are_chains(sparse, layer, loops, dtype):
    torch.manual_seed(0)
    for share in (0.0, 0.2, 0.9):
        data = graph(share=share)
        data.x, data.edge_index = (data.x.to_sparse() if sparse else data.x).to(dtype), data.edge_index.long()
        chain = parse_chain(Two(layer, add_self_loops=loops).to(dtype).eval(), data)
        assert chain.eps == torch.finfo(dtype).eps


def test_a_common_offset_of_the_logits_hides_nothing_else():
    class Offset(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.weight = GATConv(4, 3), torch.tensor([0.1, 0.0, -0.1])
            self.layer.bias.data += 1000.0

        def forward(self, x, edge_index):
            return self.layer(x, edge_index) + degree(edge_index[1], len(x))[:, None] * self.weight

    torch.manual_seed(0)
    model, data = Offset().eval(), graph()
    assert certify(model, data, against=Deletions(1)).how == "none"
    assert certify(model.layer, data, against=Deletions(1)).how == "exact"


def test_log_probabilities_are_logits():
    class Log(Two):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index).log_softmax(1)

    torch.manual_seed(0)
    model, data = Log(GATConv).eval(), graph()
    assert torch.equal(parse_chain(model, data).prediction, model(data.x, data.edge_index).argmax(1))


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_half_precision_is_refused_in_words(dtype):
    torch.manual_seed(0)
    data = graph()
    data.x = data.x.to(dtype)
    proof = certify(GATConv(4, 3).to(dtype).eval(), data, against=Deletions(1))
    assert proof.how == "none" and "half precision" in proof.reason and not proof.certified().any()


@torch.no_grad()
def test_the_class_is_that_of_the_model_and_a_tie_up_to_rounding_is_not_certified():
    torch.manual_seed(0)
    for _ in range(10):
        model, data = GATConv(4, 2).eval(), graph()
        model.lin.weight.data[1] = model.lin.weight.data[0]
        model.bias.data += torch.tensor([1e-8, 0.0])
        proof = certify(model, data, against=Deletions(1))
        assert torch.equal(proof.prediction, model(data.x, data.edge_index).argmax(1))
        assert not proof.certified().any()


@pytest.mark.parametrize("act", [nn.ELU(8.0), nn.LeakyReLU(0.5), nn.Hardtanh(-1, 1), nn.PReLU()])
def test_an_activation_is_unknown_where_no_entry_was_negative(act):
    torch.manual_seed(0)
    data = graph(low=0.0, high=0.1)
    for one, known in ((act, False), (nn.ELU(), True), (nn.ReLU(), True), (nn.Identity(), True)):
        model = Prepared(act=one, bias=False).eval()
        model.one.lin.weight.data.abs_()
        assert (model.one(data.x, data.edge_index) >= 0).all()
        if known:
            parse_chain(model, data)
        else:
            with pytest.raises(NoBoundError, match="activation"):
                parse_chain(model, data)
            with torch.no_grad():
                assert interval_bounds(Reader(model), data, 0.01) == {"one": None}


class Louder(GATConv):
    def message(self, x_j, alpha):
        return super().message(x_j, alpha.square().sqrt())


def test_a_residual_or_another_formula_of_a_layer_has_no_bound():
    torch.manual_seed(0)
    data = graph()
    quiet = GATConv(4, 3)
    quiet.edge_update = quiet.edge_update  # on the instance
    residual, zero = GATConv(4, 3, residual=True), GATv2Conv(4, 3, residual=True)
    zero.res.weight.data.zero_()
    for model in (residual, zero, Louder(4, 3), quiet, Two(Louder)):
        proof = certify(model.eval(), data, against=Deletions(1))
        assert proof.how == "none" and "residual" in proof.reason


@pytest.mark.parametrize("on", ["propagate", "message", "aggregate", "edge_update"])
def test_a_hook_inside_a_layer_has_no_bound(on):
    torch.manual_seed(0)
    conv, data = GATConv(4, 3).eval(), graph()
    handle = getattr(conv, f"register_{on}_forward_hook")(lambda layer, inputs, out: None)
    proof = certify(conv, data, against=Deletions(1))
    assert proof.how == "none" and "hook" in proof.reason
    handle.remove()
    assert certify(conv, data, against=Deletions(1)).how == "exact"


class Floored(nn.Module):
    """Its last layer gives no neighbour less than a floor of the weight."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.floor = GATConv(4, 8, heads=2), GATConv(16, 3), 0.0

    def forward(self, x, edge_index):
        h = functional.elu(self.one(x, edge_index))
        out, (edges, alpha) = self.two(h, edge_index, return_attention_weights=True)
        return out.index_add(0, edges[1], (self.floor - alpha).relu() * self.two.lin(h)[edges[0]])  # pyright: ignore


@torch.no_grad()
def test_the_rounding_of_large_features_hides_no_other_change():
    torch.manual_seed(1)
    data = Data(x=1 + 0.1 * torch.randn(60, 4), edge_index=erdos_renyi_graph(60, 0.06))
    model = Floored().eval()
    parse_chain(model, data)
    hidden = functional.elu(model.one(data.x, data.edge_index))
    model.floor = float(model.two(hidden, data.edge_index, return_attention_weights=True)[1][1].min())
    assert torch.equal(model(data.x, data.edge_index), model.two(hidden, data.edge_index))  # here it changes nothing
    with pytest.raises(NoBoundError, match="does more"):
        parse_chain(model, data)


def test_nodes_without_links_are_computed_as_the_layer_does():
    torch.manual_seed(0)
    data = Data(x=torch.randn(3, 4), edge_index=torch.tensor([[0], [1]]))
    for layer in (GATConv, GATv2Conv):
        model = Two(layer, add_self_loops=False).eval()
        assert torch.allclose(
            parse_chain(model, data).hidden.float(), functional.elu(model.one(data.x, data.edge_index))
        )
