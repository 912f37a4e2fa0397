"""An attack under which nothing changed says something about the model only if it could have changed something."""

from typing import Any

import pytest
import torch
from torch import nn
from torch_geometric.nn import GATConv
from torch_geometric.utils import grid

import fgai
from fgai import FeatureBall, NodeInjection
from fgai.adversaries import GAINS, ChosenInjection, Threat
from fgai.auditing import AuditReport
from fgai.auditing.doubts import doubt_about, narrow_columns, saturated_share
from fgai.reading import Reading, open_reader
from fgai.trial import Trial, attacked_trial, clean_trial
from worlds import community, trained

ATTACK = NodeInjection(nodes=2, edges=5, steps=3)
INJECTION = Threat("", ATTACK, "cross-entropy", "")


class Scaled(nn.Module):
    """A model with its logits times a constant: the same answers, and other probabilities."""

    def __init__(self, model: nn.Module, factor: float):
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x, edge_index):
        return self.factor * self.model(x, edge_index)


def attacked(model: nn.Module, graph: Any, threat: Threat, explanation: str = "last") -> tuple[Trial, Trial]:
    with open_reader(model) as read:
        clean = clean_trial(read, graph, explanation)
        return clean, attacked_trial(threat.adversary, threat.gain, clean, 0)


def test_a_gain_without_slope_leaves_it_unknown_whether_a_model_is_stable():
    report = fgai.audit(Scaled(trained(), 1e4), community(), ATTACK, seeds=1, sample=20)
    assert report.grades.stable and "the gain cross-entropy has no slope at most nodes" in report.grades.stable.sentence
    assert report.grades.stable.value == "unknown" and report.attacked["f1"].mean == report.clean["f1"]


@pytest.mark.parametrize(
    ("gain", "expected"), [("cross-entropy", True), ("kl", True), ("margin", True), ("class:0", False)]
)
def test_saturation_is_that_of_the_gain(gain, expected):
    for factor in (1.0, 1e4):
        threat = Threat("", ATTACK, gain, "")
        share = saturated_share(attacked(Scaled(trained(), factor), community(), threat)[1], threat)
        assert (share > 0.5) == (expected and factor > 1)


@pytest.mark.parametrize(
    ("adversary", "gain"),
    [(ATTACK, "flips"), (ATTACK, "attention-divergence"), (ChosenInjection(2, (4,), keep=1), "cross-entropy")],
)
def test_gains_without_gradient_on_explanations_or_with_surrogates_are_not_called_saturated_share(adversary, gain):
    trial = attacked(Scaled(trained(), 1e4), community(), INJECTION)[1]
    assert saturated_share(trial, Threat("", adversary, gain, "")) == 0


def test_saturation_is_the_share_of_rows_without_slope():
    clean, now = attacked(Scaled(trained(), 40.0), community(), INJECTION)
    logits = now.now.logits.detach().requires_grad_()
    (slope,) = torch.autograd.grad(GAINS["cross-entropy"](clean.clean)(Reading(logits, now.now.attention)), logits)
    count = len(clean.clean.logits)
    same = clean.eval_mask & (now.now.logits[:count].argmax(1) == clean.clean.logits.argmax(1))
    expected = [not any(row) for row in slope[:count][same].tolist()]
    assert saturated_share(now, INJECTION) == pytest.approx(sum(expected) / len(expected))


def test_an_attack_on_one_node_does_not_make_a_graph_stable():
    report = fgai.audit(trained(), community(), "single-1", seeds=1, sample=20)
    assert report.grades.stable and report.grades.stable.value == "unknown"
    assert "SingleTarget.sweep" in report.grades.stable.sentence


def test_a_doubt_is_saved_with_the_report(tmp_path):
    report = fgai.audit(trained(), community(), "single-1", seeds=1, sample=20)
    report.save(tmp_path / "audit.json")
    assert AuditReport.load(tmp_path / "audit.json").grades == report.grades


def test_a_box_far_inside_the_data_leaves_it_unknown():
    class Units(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = trained()

        def forward(self, x, edge_index):
            return self.model(x / 1_000, edge_index)

    graph = community().clone()
    graph.x = 1_000 * graph.x
    clean, now = attacked(Units(), graph, INJECTION)
    assert "of the columns; give box=None" in doubt_about(clean, [now], INJECTION)
    clean, now = attacked(trained(), community(), INJECTION)
    assert not doubt_about(clean, [now], INJECTION)


@pytest.mark.parametrize(
    ("x", "adversary", "expected"),
    [
        (torch.tensor([[1.0, 11.0], [0.0, 11.0]]), ATTACK, 0.5),
        (torch.tensor([[1.0, 9.0], [0.0, 9.0]]), ATTACK, 0.0),
        (torch.cat([torch.zeros(999, 1), torch.full((1, 1), 1e6)]), ATTACK, 0.0),  # one outlier
        (torch.full((4, 2), 99.0), NodeInjection(box=None), 0.0),
        (torch.full((4, 2), 99.0), NodeInjection(box=(-9.0, 9.8)), 1.0),
        (torch.full((4, 2), 99.0), NodeInjection(features="realistic"), 0.0),
        (torch.full((4, 2), 99.0), FeatureBall(), 0.0),
        (torch.full((4, 2), 99), ATTACK, 0.0),  # integers are not injected as a box
        (None, ATTACK, 0.0),
    ],
)
def test_columns_that_exceed_the_box_are_counted(x, adversary, expected):
    assert narrow_columns(x, adversary) == expected


def test_a_top_five_that_cannot_change_leaves_it_unknown():
    edges = grid(6, 6)[0]
    graph: Any = community().clone()
    graph.x, graph.y = graph.x[:36], graph.y[:36]
    near = ((edges // 6)[0] - (edges // 6)[1]).abs() + ((edges % 6)[0] - (edges % 6)[1]).abs() == 1
    graph.edge_index = edges[:, near]  # 4 neighbours and the self-loop
    for name in ("train_mask", "val_mask", "test_mask"):
        del graph[name]
    torch.manual_seed(0)
    threat = Threat("", FeatureBall(0.1, steps=1), "cross-entropy", "")
    clean, now = attacked(GATConv(graph.x.size(1), 3).eval(), graph, threat)
    assert "no node has more than 5 edges" in doubt_about(clean, [now], threat)
    clean, now = attacked(GATConv(graph.x.size(1), 3).eval(), graph, INJECTION)
    assert not doubt_about(clean, [now], INJECTION)  # an injected node is one more neighbour
