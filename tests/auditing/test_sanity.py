import pytest
import torch
from torch_geometric.nn import GATConv, Sequential

from fgai.adversaries import GAINS
from fgai.attention import uniform
from fgai.auditing.sanity import cascading_randomisation, overlap_at_random, without_attention
from fgai.metrics import g_tvd
from loose import loose
from strategies import generators
from worlds import answers, community, small, tensors, trace, trained


def test_uniform_attention_changes_nothing_where_it_is_uniform_already():
    effect = without_attention(trained("even"), community())
    assert (effect.g_tvd, effect.changed) == (pytest.approx(0, abs=1e-6), 0.0)


@pytest.mark.parametrize("kind", ["gat", "hashed"])
def test_uniform_attention_changes_answers_that_rest_on_it(kind):
    effect = without_attention(trained(kind), community())
    assert effect.g_tvd > 0.005 and 0 < effect.changed < 1


def test_the_effect_of_uniform_attention_is_that_of_a_model_that_looks_evenly():
    layer, graph = GATConv(6, 3).eval(), small()
    read, clean = answers(layer, graph)
    even = torch.zeros(40, 40).index_put((clean.explanation.target, clean.explanation.source), torch.tensor(1.0))
    flat = (even / even.sum(1, keepdim=True)) @ loose(layer).lin(graph.x) + layer.bias
    expected = (flat.softmax(1) - clean.probs).abs().sum() / 80
    effect = without_attention(layer, graph)
    assert effect.g_tvd == pytest.approx(float(expected.detach()), abs=1e-6)
    assert effect.changed == pytest.approx(float((flat.argmax(1) != clean.probs.argmax(1)).double().mean()))
    assert torch.equal(read(graph).logits, clean.logits) and float(GAINS["kl"](clean)(clean)) == 0


def test_the_attention_that_is_replaced_is_that_of_the_explanation():
    torch.manual_seed(0)
    first, last = GATConv(6, 6), GATConv(6, 3)
    model = Sequential("x, edge_index", [(first, "x, edge_index -> h"), (last, "h, edge_index -> y")]).eval()
    read, clean = answers(model, small())
    sites = [*clean.attention]
    expected = {"tree": sites, "last": sites[1:], "first": sites[:1], f"layer:{sites[0]}": sites[:1]}
    expected |= {"leave-one-out": sites[1:]}
    for explanation, replaced in expected.items():
        edit = lambda site, a, replaced=replaced: uniform(a).weight if site in replaced else a.weight  # noqa: E731
        assert without_attention(model, small(), explanation).g_tvd == pytest.approx(
            g_tvd(clean, read(small(), edit=edit).detach()), abs=1e-6
        )
    assert len({without_attention(model, small(), name).g_tvd for name in ("tree", "last", "first")}) == 3


def test_layers_lose_their_weights_from_the_last_to_the_first():
    model = trained()
    before = trace(model), tensors(community()), generators()
    kept = cascading_randomisation(model, community())
    assert (trace(model), tensors(community()), generators()) == before
    names = [name for name, layer in model.named_modules() if list(layer.parameters(recurse=False))]
    assert list(kept) == names[::-1]
    assert names[0].startswith("conv1") and names[-1].startswith("conv2")
    assert all(0 <= share <= 1 for share in kept.values())
    assert kept[names[0]] < 0.85


def test_randomisation_is_seeded_and_k_may_be_a_share():
    one, again, other = (cascading_randomisation(trained(), community(), k=0.2, seed=seed) for seed in (0, 0, 1))
    assert one == again != other


def test_attention_that_nothing_was_learnt_for_survives_randomisation():
    assert set(cascading_randomisation(trained("hashed"), community()).values()) == {1.0}


def test_the_overlap_at_random_is_the_end_of_the_cascade():
    for explanation in ("tree", "last"):
        cascade = cascading_randomisation(trained(), community(), explanation)
        assert overlap_at_random(trained(), community(), explanation) == list(cascade.values())[-1]
