"""Laws of every registered metric: exact where nothing changed, blind to the order of edges and to injected nodes."""

import math
from copy import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric.data import Data

from fgai.adversaries import Perturbation
from fgai.attending import AttentionPoint
from fgai.attention import Attention
from fgai.metrics import METRICS, g_jsd, released_g_jsd
from fgai.reading import Reader, Reading
from fgai.trial import Trial
from strategies import edge_index, normalised_attentions, shuffles
from worlds import answers, injected, model_of, shuffled, small

EXACT = {  # where nothing changed, every answer is right, no edge matters and the attention is uniform
    "f1": 1.0,
    "auc": 1.0,
    "g_tvd": 0.0,
    "g_jsd": 0.0,
    "overlap": 1.0,
    "f_slope_plus": 0.0,
    "f_slope_minus": 0.0,
    "nonuniformity": 0.0,
    "entropy": 1.0,
    "g_tvd_released": 0.0,
    "g_jsd_released": 0.0,
}


class Steadfast(nn.Module):
    """Answers what its features say, and looks at all neighbours alike."""

    def __init__(self):
        super().__init__()
        self.point = AttentionPoint()

    def forward(self, x, edge_index):
        weight = self.point(torch.zeros(edge_index.size(1), 1), edge_index, x.size(0))
        return x + 0 * weight.sum()


def trial(model, graph, now=None):
    read, clean = answers(model, graph)
    after = clean if now is None else answers(model, now)[1]
    return Trial(read, graph if now is None else now, clean, after, graph.y, graph.test_mask)


def measured(trial, names=METRICS):
    return {name: METRICS[name].compute(trial) for name in names}


def attacked(graph):
    return injected(graph).apply(graph)


def odd():
    """Repeated edges, self-loops, and two nodes without neighbours."""
    graph = copy(small())
    keep = (graph.edge_index < 38).all(0)
    edges = graph.edge_index[:, keep]
    graph.edge_index = torch.cat([edges, edges[:, :9], edges[:, :4], edge_index([(3, 3), (5, 5)])], dim=1)
    return graph


def test_every_metric_is_under_these_laws():
    assert set(EXACT) == set(METRICS)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_says_which_way_is_better(name):
    assert METRICS[name].better in ("higher", "lower")
    assert f"{METRICS[name].better} is better" in METRICS.about(name)


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_exact_where_nothing_changed(name):
    x = 8 * torch.eye(3).repeat(4, 1)
    edges = edge_index([(i, (i + step) % 12) for i in range(12) for step in (1, 2, 5)])
    graph = Data(x=x, edge_index=edges, y=x.argmax(1), test_mask=torch.ones(12, dtype=torch.bool))
    value = METRICS[name].compute(trial(Steadfast(), graph))
    assert isinstance(value, float)
    assert value == pytest.approx(EXACT[name], abs=1e-6 if name == "entropy" or "slope" in name else 0)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("graph", [small, odd], ids=["plain", "odd"])
@pytest.mark.parametrize("model", ["gat", "gt"])
def test_the_order_of_the_edges_changes_nothing(name, graph, model):
    graph, model = graph(), model_of(model, small()).double()
    graph.x, graph.pe = graph.x.double(), graph.pe.double()
    expected = METRICS[name].compute(trial(model, graph, attacked(graph)))
    for seed in (0, 1):
        after = METRICS[name].compute(trial(model, graph, shuffled(attacked(graph), seed)))
        both = METRICS[name].compute(trial(model, shuffled(graph, seed), shuffled(attacked(graph), seed + 9)))
        assert (after, both) == pytest.approx((expected, expected), abs=1e-9)


@given(st.data(), normalised_attentions())
@settings(max_examples=40)
def test_unchanged_attention_in_another_order_is_at_no_distance(draw, attention):
    attention = attention.mean_heads().coalesce()  # sums of repeated edges are rounded in the order of their rows
    other = draw.draw(shuffles(attention))
    assert g_jsd(attention, other) == 0.0
    assert released_g_jsd(attention, other) == 0.0


def test_the_released_rows_see_a_change_where_no_weight_changed():
    """A new edge of weight 0 comes first: from then on each row holds another edge."""
    edges = torch.tensor([[1, 2, 3, 0], [0, 0, 0, 1]])
    before = Attention(torch.tensor([[0.2], [0.3], [0.5], [1.0]]), edges, 4)
    new = torch.cat([torch.tensor([[0], [0]]), edges], dim=1)
    after = Attention(torch.cat([torch.zeros(1, 1), before.weight]), new, 4)
    assert g_jsd(before, after) == 0.0
    assert released_g_jsd(before, after) > 1e-3


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("model", ["gat", "gt"])
def test_isolated_nodes_and_repeated_edges_do_not_break_a_metric(name, model):
    graph = odd()
    assert math.isfinite(METRICS[name].compute(trial(model_of(model, graph), graph, attacked(graph))))


ALONE = [  # what is asked of the nodes; the F-slopes delete injected edges too, and released rows are rows
    name for name in METRICS if "slope" not in name and name != "g_jsd_released"
]


@pytest.mark.parametrize("name", ALONE)
def test_injected_nodes_are_not_judged(name):
    graph = small()
    watching = torch.stack([torch.arange(20), torch.full((20,), 40)])  # the new node looks at 20, no one looks at it
    far = Perturbation(x=torch.linspace(-9, 9, 6)[None], added=watching).apply(graph)
    alone, watched = (trial(model_of("gt", graph), graph, now) for now in (graph, far))
    assert METRICS[name].compute(watched) == pytest.approx(METRICS[name].compute(alone), abs=1e-6)


@pytest.mark.parametrize("name", METRICS)
def test_measuring_leaves_the_readings_as_they_are(name):
    graph = small()
    given = trial(model_of("gat", graph), graph, attacked(graph))
    before = [(r.logits.tolist(), r.explanation.weight.tolist()) for r in (given.clean, given.now)]
    METRICS[name].compute(given)
    assert [(r.logits.tolist(), r.explanation.weight.tolist()) for r in (given.clean, given.now)] == before


@pytest.mark.parametrize("name", [name for name in METRICS if "slope" not in name])
def test_nodes_that_are_not_judged_have_no_say_in_how_good_the_answers_are(name):
    graph = small()
    one = trial(model_of("gat", graph), graph, attacked(graph))
    other = replace(one, y=torch.where(one.eval_mask, one.y, (one.y + 1) % 3))
    assert METRICS[name].compute(one) == METRICS[name].compute(other)


def test_a_reader_is_enough_to_make_a_trial():
    made = trial(model_of("gat", small()), small())
    assert isinstance(made.read, Reader) and isinstance(made.now, Reading)
