from typing import Any

import pytest
from torch import nn
from torch_geometric.data import Batch
from torch_geometric.nn import GATConv, global_mean_pool

import fgai
from fgai import EdgeRewiring, FeatureBall, GraphInjection, NodeInjection
from fgai.errors import CallError
from fgai.large import audit_batches
from fgai.model_checks import check_links_used
from fgai.reading import open_reader
from fgai.trial import attacked_trial, clean_trial
from worlds import community, film_model, films, molecules, trained

ATTACK = NodeInjection(3, 4, steps=1)
SAYS = r"does not use the links.*call=lambda model, data: model\(data.x, data.edge_index\)"


class Stored(nn.Module):
    """Attends over its own edges."""

    def __init__(self, inner, edge_index):
        super().__init__()
        self.inner, self.edge_index = inner, edge_index

    def forward(self, x):
        return self.inner(x, self.edge_index)


@pytest.mark.parametrize("attack", [ATTACK, NodeInjection(3, 4, steps=0), EdgeRewiring(2, 2), EdgeRewiring(0, 2)])
def test_an_attack_on_links_that_a_model_does_not_use_is_an_error(attack):
    graph = community()
    with pytest.raises(CallError, match=SAYS):
        fgai.audit(Stored(trained(), graph.edge_index), graph, attack, seeds=1, sample=5)


@pytest.mark.parametrize(
    "call", [lambda model, data: model(data.x, community().edge_index), lambda model, data: model(*CLEAN)]
)
def test_a_call_that_closes_over_the_clean_graph_is_an_error(call):
    with pytest.raises(CallError, match=SAYS):
        fgai.audit(trained(), community(), NodeInjection(3, 4, steps=0), seeds=1, sample=5, call=call)
    with pytest.raises(CallError, match=SAYS):
        audit_batches(trained(), [community()], NodeInjection(3, 4, steps=0), call=call)


CLEAN = (community().x, community().edge_index)


class Pooled(nn.Module):
    def __init__(self, edge_index=None):
        super().__init__()
        self.conv, self.edge_index = GATConv(4, 2), edge_index

    def forward(self, x, edge_index, batch):
        return global_mean_pool(self.conv(x, edge_index if self.edge_index is None else self.edge_index), batch)


def test_links_of_a_batch_that_a_model_does_not_use_are_an_error():
    batch: Any = Batch.from_data_list(molecules(30))
    attack = GraphInjection(steps=1)
    with pytest.raises(CallError, match=SAYS):
        fgai.audit(Pooled(batch.edge_index), batch, attack, seeds=1, sample=5)
    assert fgai.audit(Pooled(), batch, attack, seeds=1, sample=5).attacked


class Pruned(nn.Module):
    """A defence: no edge of an injected node is used."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, edge_index):
        return self.inner(x, edge_index[:, (edge_index < 150).all(0)])


def test_a_defence_that_drops_the_injected_links_uses_its_graph():
    assert fgai.audit(Pruned(trained()), community(), ATTACK, seeds=1, sample=5).attacked["f1"].mean > 0.5


def test_an_attack_on_features_does_not_ask_for_links():
    graph = community()
    model = Stored(trained(), graph.edge_index)
    assert fgai.audit(model, graph, FeatureBall(steps=1), seeds=1, sample=5).attacked


def test_a_typed_graph_uses_its_links():
    with open_reader(film_model("hgt")) as read:
        clean = clean_trial(read, films())
        check_links_used(read, clean.graph, clean.clean, clean.clean)
        assert attacked_trial(fgai.TypedInjection(2, 2, steps=1, node_type="director"), "kl", clean, 0).now


def test_no_pass_is_spent_where_the_attack_is_seen():
    with open_reader(trained()) as read:
        clean = clean_trial(read, community())
        now = attacked_trial(ATTACK, "kl", clean, 0).now
        read.call = lambda model, data: pytest.fail("a further pass")
        check_links_used(read, clean.graph, clean.now, now)
