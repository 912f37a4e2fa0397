import json
from copy import copy
from dataclasses import asdict, fields, replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch_geometric.nn import GATConv

from fgai import datasets
from fgai.adversaries import AttackEnsemble, AttentionBall, EdgeRewiring, FeatureBall, NodeInjection
from fgai.auditing import AuditReport, Estimate, audit, compare
from fgai.auditing.verdict import judge
from fgai.backbones import build
from fgai.errors import DataError, SettingError, UnknownNameError
from fgai.methods import Vanilla
from fgai.metrics import METRICS
from fgai.reading import read
from strategies import generators
from worlds import RULES, Told, community, model_of, tensors, trace, trained

ATTACK = NodeInjection(4, 10, steps=3, step=0.3)


@cache
def report():
    return audit(trained(), community(), ATTACK, seeds=3, name="a GAT")


def without(*names):
    graph = copy(community())
    for name in names:
        del graph[name]
    return graph


@pytest.mark.parametrize("mode", [False, True], ids=["eval", "train"])
def test_an_audit_leaves_model_graph_and_chance_as_they_were(mode):
    graph, model = community(), model_of("gat", community()).train(mode)
    before = trace(model), tensors(graph), graph.keys(), generators()
    audit(model, graph, ATTACK, seeds=1)
    assert (trace(model), tensors(graph), graph.keys(), generators()) == before


def test_an_audit_measures_every_metric_clean_and_once_per_seed():
    found = report()
    assert set(found.clean) == set(found.attacked) == set(METRICS)
    assert all(len(figure.values) == found.seeds == 3 for figure in found.attacked.values())
    assert (found.clean["g_tvd"], found.clean["g_jsd"], found.clean["overlap"]) == (0.0, 0.0, 1.0)
    assert found.attacked["g_tvd"].mean > 0 and found.attacked["f1"].mean <= found.clean["f1"]
    assert found.graph == {"nodes": 150, "edges": 900} and found.model == "a GAT"
    assert len(set(found.attacked["g_tvd"].values)) == 3


def test_an_audit_is_the_same_every_time():
    assert audit(trained(), community(), replace(ATTACK, seed=7), seeds=3, name="a GAT").attacked == report().attacked


def test_without_labels_the_models_own_answers_are_right():
    found = audit(trained(), without("y"), ATTACK, seeds=1)
    assert found.clean["f1"] == 1.0 > found.attacked["f1"].mean


def test_without_a_test_mask_every_node_is_judged():
    graph = community()
    found = audit(trained(), without("test_mask"), ATTACK, seeds=1)
    right = (read(trained(), graph).logits.argmax(1) == graph.y).double()
    assert found.clean["f1"] == pytest.approx(float(right.mean()), abs=1e-12)
    assert report().clean["f1"] == pytest.approx(float(right[graph.test_mask].mean()), abs=1e-12)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=7))
@settings(max_examples=10)
def test_a_figure_is_numpys_and_scipys(values):
    figure = Estimate.of(values)
    assert (figure.mean, figure.deviation) == pytest.approx((np.mean(values), np.std(values, ddof=1)), abs=1e-12)
    assert figure.values == tuple(values)
    if np.ptp(values) > 1e-3:
        apart = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=4_000, rng=1).confidence_interval
        assert (figure.low, figure.high) == pytest.approx(tuple(apart), abs=0.06 * np.ptp(values))


def test_a_figure_by_hand():
    assert Estimate.of([0.25]) == Estimate(0.25, 0.0, 0.25, 0.25, (0.25,))
    two = Estimate.of([0.0, 1.0])  # a quarter of the resamples is 0, a quarter is 1
    assert (two.mean, two.low, two.high) == (0.5, 0.0, 1.0)
    assert two.deviation == pytest.approx(0.5**0.5)


def test_the_nodes_that_moved_most_come_first():
    worst = report().worst(150)
    assert len(worst) == 100 == len({row.node for row in worst}) and report().worst(7) == worst[:7]
    keys = [(row.overlap, -row.shift) for row in worst]
    assert keys == sorted(keys)
    answers = read(trained(), community()).probs.argmax(1)
    assert all(row.answer == int(answers[row.node]) and len(row.answers_attacked) == 3 for row in worst)


def test_text_and_markdown_say_the_verdict_with_its_reasons_and_every_metric():
    found = report()
    assert str(found) == found.text()
    for page in (found.text(), found.markdown()):
        assert found.verdict.word in page and all(reason in page for reason in found.verdict.reasons)
        assert all(name in page for name in METRICS) and "node-injection" in page and "3 seed(s)" in page
    rows = [line for line in found.markdown().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {5} and len(rows) == len(METRICS) + 2


@pytest.mark.parametrize(
    "attack",
    [
        EdgeRewiring(3, 3, rounds=1, pool=50),
        ATTACK,
        FeatureBall(targets=(1, 2)),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_a_report_is_the_same_after_it_was_saved(tmp_path, attack):
    found = audit(trained(), community(), attack, seeds=2)
    found.save(tmp_path / "audit.json")
    assert asdict(AuditReport.load(tmp_path / "audit.json")) == asdict(found)


def test_what_can_be_read_of_a_report_is_the_same_after_it_was_saved(tmp_path):
    report().save(tmp_path / "audit.json")
    again = AuditReport.load(tmp_path / "audit.json")
    for field in fields(AuditReport):
        assert field.name == "adversary" or getattr(again, field.name) == getattr(report(), field.name), field.name
    assert again.worst(3) == report().worst(3) and again.verdict == report().verdict


def test_a_number_that_is_none_is_not_a_number_again_after_saving(tmp_path):
    graph = without("y")
    graph.y = torch.zeros(150, dtype=torch.long)  # one class: no ROC
    audit(trained(), graph, ATTACK, seeds=1).save(tmp_path / "audit.json")
    again = AuditReport.load(tmp_path / "audit.json")
    assert np.isnan(again.clean["auc"]) and np.isnan(again.attacked["auc"].mean) and "nan" in again.text()


@pytest.mark.parametrize("suffix", [".json", ".md", ".txt"])
def test_a_report_is_written_whole_in_each_format(tmp_path, suffix):
    path = tmp_path / f"audit{suffix}"
    report().save(str(path))
    text = {".json": report().json, ".md": report().markdown, ".txt": report().text}[suffix]()
    assert path.read_text() == text + "\n" and list(tmp_path.iterdir()) == [path]
    assert suffix != ".json" or json.loads(text)["verdict"]["word"] == report().verdict.word


@pytest.mark.parametrize("name", ["audit.docx", "audit"])
def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(DataError, match=r"\.json, \.md, \.txt"):
        report().save(tmp_path / name)
    assert not list(tmp_path.iterdir())


FOREIGN = {
    "empty": "{}",
    "list": "[]",
    "text": "not json",
    "half": '{"attacked": {}, "moved": [], "verdict": {}}',
    "number": '{"attacked": 3}',
    "fields": '{"attacked": {}, "moved": [], "verdict": {"word": "stable", "reasons": []}}',
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_refused(tmp_path, kind):
    (tmp_path / "audit.json").write_text(FOREIGN[kind])
    with pytest.raises(DataError, match="holds no audit"):
        AuditReport.load(tmp_path / "audit.json")


def test_an_unknown_gain_is_refused_by_name():
    with pytest.raises(UnknownNameError, match="attention-divergence"):
        audit(trained(), community(), ATTACK, gain="attention-divergense", seeds=1)


@pytest.mark.parametrize(
    "attack",
    [
        EdgeRewiring(5, 5, rounds=1, pool=100),
        FeatureBall(steps=2),
        AttentionBall(steps=2, on="scores"),
        AttentionBall(steps=2),
        AttackEnsemble(2, (3,), ("kl",), ((2, 0.5),)),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_every_adversary_can_audit(attack):
    found = audit(trained(), community(), attack, gain="kl", seeds=1)
    assert all(np.isfinite(figure.mean) for figure in found.attacked.values())
    assert found.adversary["name"] in found.title


def test_a_comparison_gives_every_model_the_same_budget():
    models = {"one": trained(), "two": trained("even"), "three": model_of("pyg", community())}
    found = compare(models, community(), ATTACK, gain="kl", seeds=2)
    assert list(found.reports) == list(models)
    assert {json.dumps(r.adversary) for r in found.reports.values()} == {json.dumps(found.reports["one"].adversary)}
    assert {(r.gain, r.seeds, r.model) for r in found.reports.values()} == {("kl", 2, name) for name in models}
    alone = audit(trained("even"), community(), ATTACK, gain="kl", seeds=2)
    assert found.reports["two"].attacked == alone.attacked
    assert str(found) == found.markdown() and len(found.markdown().splitlines()) == 5


GOOD = {"f1": 0.9, "g_tvd": 0.0, "overlap": 1.0, "nonuniformity": 0.5}
FLOOR = {
    "f_slope_most": -0.4,
    "f_slope_least": -0.1,
    "f_slope_random": -0.2,
    "f_slope_random_deviation": 0.01,
    "overlap_randomised": 0.5,
    "g_tvd_uniform": 0.3,
    "f1_largest_class": 0.3,
}


@pytest.mark.parametrize(
    ("word", "clean", "attacked", "baselines", "says"),
    [
        ("stable", {}, {}, {}, "100%"),
        ("stable", {}, {"f1": 0.885, "overlap": 0.91, "g_tvd": 0.04}, {}, "0.885"),
        ("degenerate", {"nonuniformity": 0.009}, {}, {}, "0.0090"),
        ("degenerate", {}, {}, {"g_tvd_uniform": 0.004}, "0.0040"),
        ("degenerate", {"nonuniformity": 0.0}, {"overlap": 0.0}, {"f_slope_most": 0.0}, "uniform"),
        ("unfaithful", {}, {}, {"f_slope_most": -0.1}, "-0.100"),
        ("unfaithful", {}, {"overlap": 0.1}, {"f_slope_most": -0.195}, "-0.200"),
        ("unstable", {}, {"overlap": 0.1}, {"f_slope_most": -0.215}, "not by more than the noise"),
        ("stable", {}, {}, {"f_slope_most": -0.215}, "not by more than the noise"),
        ("unfaithful", {}, {}, {"f_slope_least": -0.5}, "-0.500"),
        ("unfaithful", {}, {}, {"overlap_randomised": 0.97}, "97%"),
        ("unstable", {}, {"overlap": 0.89}, {}, "89%"),
        ("unstable", {}, {"f1": 0.87}, {}, "0.870"),
        ("unstable", {}, {"g_tvd": 0.06}, {}, "0.060"),
    ],
)
def test_the_verdict_says_its_numbers(word, clean, attacked, baselines, says):
    found = judge(GOOD | clean, GOOD | attacked, FLOOR | baselines)
    assert found.word == word
    assert says in " ".join(found.reasons)


def test_every_reason_is_given():
    assert len(judge(GOOD, GOOD | {"overlap": 0.1, "f1": 0.1, "g_tvd": 0.9}, FLOOR).reasons) == 3
    assert len(judge(GOOD | {"nonuniformity": 0.0}, GOOD, FLOOR | {"g_tvd_uniform": 0.0}).reasons) == 2


def test_a_gat_on_cora_falls(shelf, data_root):
    graph = datasets.load("cora", root=data_root)
    model = Vanilla(epochs=60).fit(build("gat", graph), graph).model
    found = audit(model, graph, NodeInjection(20, 20, steps=5), seeds=1)
    assert found.verdict.word in ("unstable", "unfaithful"), found
    assert any("F1 falls" in reason for reason in found.verdict.reasons)
    assert found.clean["f1"] > 0.7


def test_uniform_attention_is_degenerate():
    found = audit(trained("even"), community(), ATTACK, seeds=1)
    assert found.verdict.word == "degenerate"
    assert all("uniform" in reason for reason in found.verdict.reasons[:2])
    assert found.clean["f1"] > 0.6


def test_random_attention_is_no_explanation():
    found = audit(trained("hashed"), community(), ATTACK, seeds=1)
    assert found.clean["nonuniformity"] > 0.3
    assert found.verdict.word in ("degenerate", "unfaithful"), found


def test_a_model_with_one_logit_can_be_audited():
    graph = without("y")
    graph.y = (community().y > 0).long()
    found = audit(GATConv(16, 1), graph, NodeInjection(2, 4, steps=1), seeds=1)
    assert found.verdict.reasons and 0 <= found.clean["auc"] <= 1


@pytest.mark.parametrize(("name", "value"), [("test_mask", False), ("y", -1)])
def test_nodes_that_cannot_be_judged_are_said_in_words(name, value):
    graph = copy(community())
    graph[name] = torch.full_like(graph[name], value)
    with pytest.raises(DataError, match=r"`test_mask` holds [0-9]+ nodes, and [0-9]+ of them have no label in `y`"):
        audit(trained(), graph, ATTACK, seeds=1)


def test_a_comparison_of_nothing_is_refused():
    with pytest.raises(SettingError, match="give them by name"):
        compare({}, community(), ATTACK)


def test_an_audit_without_seeds_is_refused():
    with pytest.raises(SettingError):
        audit(trained(), community(), ATTACK, seeds=0)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["even", "hashed"])
def test_on_cora_too_attention_that_explains_nothing_is_called_so(shelf, data_root, rule):
    graph = datasets.load("cora", root=data_root)
    model = Vanilla(epochs=60).fit(Told(graph.num_features, 7, RULES[rule]), graph).model
    found = audit(model, graph, NodeInjection(20, 20, steps=5), seeds=1)
    assert found.clean["f1"] > 0.6
    assert found.verdict.word == "degenerate" if rule == "even" else found.verdict.word in ("degenerate", "unfaithful")
