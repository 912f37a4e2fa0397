"""Certified training: its bound against injections, finite differences and the certificate; what it refuses."""

import pytest
import torch
from torch_geometric.nn import GATConv, GATv2Conv

from fgai.certificates import Injection, certify
from fgai.certificates.chain import parse_chain
from fgai.errors import SettingError
from fgai.large import Loader
from fgai.methods import FGAI, Vanilla
from fgai.methods.certified import WorstCase, worst_logits
from injecting import Two, cases, graph
from worlds import small

BOX = (0.2, 0.6)


def chains(count):
    """Random models on random graphs with features in the box, and their layers."""
    torch.manual_seed(2)
    for _ in range(count):
        model, data = Two(GATConv, scale=0.2).eval(), graph(share=0.7, low=BOX[0], high=BOX[1])
        yield model, data, parse_chain(model, data)


@torch.no_grad()
def test_no_injection_has_logits_above_the_worst_ones_where_these_prove_something():
    generator, proved, closest = torch.Generator().manual_seed(0), 0, 9.0
    for model, data, chain in chains(6):
        for nodes in (1, 2):
            allowed = Injection(nodes, BOX)
            worst = worst_logits(chain, allowed, chain.prediction)
            _, wide, victims = cases(data, allowed, 40, generator)
            logits, node = model(wide.x, wide.edge_index)[victims], victims % len(data.x)
            lead = logits - logits.gather(1, chain.prediction[node][:, None])
            room = (worst[node] - lead)[worst[node] < 0]
            assert (room >= -1e-5).all()
            proved, closest = proved + len(room), min([closest, *room.tolist()])
    assert proved > 100
    assert closest < 0.2  # the bound is not only right because it is far away


@torch.no_grad()
def test_what_the_loss_certifies_is_certified():
    counts = torch.zeros(2)
    for model, data, chain in chains(12):
        worst = worst_logits(chain, Injection(1, BOX), chain.prediction)
        mine = worst.scatter(1, chain.prediction[:, None], -9).amax(1) < -1e-3
        proof = certify(model, data, against=Injection(1, BOX)).certified()
        assert not (mine & ~proof).any()
        counts += torch.tensor([mine.sum(), proof.sum()])
    assert 0 < counts[0] <= counts[1]


@torch.no_grad()
def test_a_larger_set_proves_less():
    proved = torch.zeros(3)
    for _, _, chain in chains(12):
        few, half, all_rows = (worst_logits(chain, Injection(1, BOX), chain.prediction, share) for share in (0, 0.5, 1))
        assert ((all_rows < 0) <= (half < 0)).all() and ((half < 0) <= (few < 0)).all()
        proved += torch.tensor([float((worst < 0).sum()) for worst in (few, half, all_rows)])
    assert 0 < proved[2] < proved[1] < proved[0]


def test_the_gradient_is_that_of_finite_differences():
    torch.manual_seed(0)
    model, data = Two(GATConv, scale=0.1).double().eval(), graph(low=0.0)
    data.x = data.x.double()
    loss = WorstCase.of(model, data, Injection(2, (0.0, 1.0)))
    loss.loss(model, 0.5).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        direction = torch.randn_like(parameter)
        ends = []
        for sign in (1, -1):
            parameter.data += sign * 1e-6 * direction
            ends.append(loss.loss(model, 0.5).item())
            parameter.data -= sign * 1e-6 * direction
        assert float((parameter.grad * direction).sum()) == pytest.approx(
            (ends[0] - ends[1]) / 2e-6, rel=1e-3, abs=1e-6
        )


def test_the_loss_fades_in():
    torch.manual_seed(0)
    model, data = Two(GATConv).eval(), graph(low=0.0)
    loss = WorstCase.of(model, data, Injection(1, (0.0, 1.0)))
    values = [loss.loss(model, progress).item() for progress in (0.0, 0.1, 0.3, 0.6, 0.9)]
    assert values[0] == 0 and min(values[1:]) > 0 and values[3] == values[4]


def untrained(data, layer):
    torch.manual_seed(0)
    return Two(layer, data.num_features, scale=0.0, channels=8)


def test_certified_training_certifies_more():
    data = small()
    data.x = data.x / data.x.max()
    vanilla = Vanilla(epochs=60).fit(untrained(data, GATConv), data).model
    trained = FGAI.preset("certified").fit(vanilla, data)
    shares = [
        certify(model, data, against=Injection(1, (0.0, 1.0))).certified().double().mean()
        for model in (vanilla, trained.model)
    ]
    assert shares[0] < 0.1 and shares[1] > 0.5
    assert {*trained.best.terms} == {"closeness", "certified"}


def test_what_has_no_bound_is_refused_before_the_training():
    data = small()
    data.x = data.x / data.x.max()
    method = FGAI.preset("certified", epochs=1)
    with pytest.raises(SettingError, match="GATv2Conv"):
        method.fit(untrained(data, GATv2Conv), data)
    with pytest.raises(SettingError, match="give a box that contains them"):
        FGAI.preset("certified", injection=Injection(1, (0.0, 0.1))).fit(untrained(data, GATConv), data)
    with pytest.raises(SettingError, match="give neighbours=0"):
        FGAI.preset("certified", injection=Injection(neighbours=1)).fit(untrained(data, GATConv), data)
    with pytest.raises(SettingError, match="give certified=0"):
        method.fit(untrained(data, GATConv), Loader(data, fanout=(5, 5), batch=10))
