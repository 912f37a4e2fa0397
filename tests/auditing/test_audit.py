import json
import sys
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
from fgai.adversaries import AttackEnsemble, AttentionBall, EdgeRewiring, FeatureBall, NodeInjection, Threat
from fgai.auditing import AuditReport, Estimate, audit, compare
from fgai.backbones import build
from fgai.errors import DataError, MissingExtraError, SettingError, UnknownNameError
from fgai.faithfulness import measure_faithfulness
from fgai.grades import Grade, grade
from fgai.methods import Vanilla
from fgai.metrics import METRICS
from fgai.reading import open_reader, read
from fgai.report import content
from fgai.trial import attacked_trial, clean_trial
from reports import comparison
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


class Pairs(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GATConv(16, 4)

    def forward(self, x, edge_index, edge_label_index):
        h = self.conv(x, edge_index)
        return (h[edge_label_index[0]] * h[edge_label_index[1]]).sum(-1)


OWN = "labels are the model's own predictions on the clean graph, so F1 starts at 1"


def test_the_labels_of_pairs_are_those_of_a_link_split_and_predictions_as_labels_are_noted():
    torch.manual_seed(0)
    graph, model = without("y", "train_mask", "val_mask", "test_mask"), Pairs()
    graph.edge_label_index = torch.cat([graph.edge_index[:, :40], torch.randint(150, (2, 40))], dim=1)
    found = audit(model, graph, ATTACK, seeds=1)
    assert found.clean["f1"] == 1 and OWN in found.notes
    labelled = copy(graph)
    labelled.edge_label = torch.arange(80).lt(40).float()  # as RandomLinkSplit gives them
    by_split = audit(model, labelled, ATTACK, seeds=1)
    labelled.y = labelled.edge_label.long()
    assert by_split.clean == audit(model, labelled, ATTACK, seeds=1).clean
    assert by_split.clean["f1"] < 1 and OWN not in by_split.notes and OWN not in report().notes


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


def test_text_and_markdown_say_the_grades_with_their_reasons_and_the_metrics():
    found = report()
    metrics = [name for name in METRICS if not name.endswith("_released")]
    assert str(found) == found.text()
    for page in (found.text(), found.markdown()):
        assert found.answer in page and all(grade.sentence in page for _, grade in found.grades.items())
        assert all(name in page for name in metrics) and "node-injection" in page and "3 seeds" in page
        assert "explanation 'tree'" in page and "_released" not in page
    rows = [line for line in found.markdown().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {6} and len(rows) == len(metrics) + 2


def test_an_interval_is_printed_only_if_there_are_several_seeds():
    one = audit(trained(), community(), ATTACK, seeds=1)
    assert "[95 %]" in report().text() and "[95 %]" not in one.text() and "1 seed" in one.title
    assert not any("[" in row[2] for row in one.lines()) and all("[" in row[2] for row in report().lines())


def test_a_changed_metric_is_shown_as_a_change():
    found = report()
    change = {row[0]: float(row[3]) for row in found.lines()}
    assert change["f1"] == pytest.approx(found.attacked["f1"].mean - found.clean["f1"], abs=1e-3)


@pytest.mark.parametrize("explanation", ["tree", "last", "first", "leave-one-out"])
def test_an_audit_is_of_the_explanation_that_was_named(explanation):
    found = audit(trained(), community(), ATTACK, explanation=explanation, seeds=1)
    tested = measure_faithfulness(trained(), community(), explanation)
    assert found.explanation == explanation == found.faithfulness.explanation
    assert (found.faithfulness.necessity, found.faithfulness.grade) == (tested.necessity, tested.grade)
    assert f"'{explanation}'" in found.title
    for reading in (found.clean["overlap"], found.clean["g_jsd"]):
        assert reading in (0.0, 1.0)


def test_the_last_layer_by_its_own_name_is_the_same_explanation():
    site = list(read(trained(), community()).attention)[-1]
    last, same = (audit(trained(), community(), ATTACK, explanation=e, seeds=1) for e in ("last", f"layer:{site}"))
    assert last.clean == same.clean and last.attacked == same.attacked and last.moved == same.moved
    assert last.views == same.views


def test_the_numbers_of_the_tree_are_those_of_its_rows():
    """V_5 and g-JSD by hand, from the dense rows of both trees."""
    found, graph = audit(trained(), community(), ATTACK, seeds=1), community()
    with open_reader(trained()) as reader:
        clean = clean_trial(reader, graph, "tree")
        now = attacked_trial(ATTACK, "cross-entropy", clean, 0)
    overlaps, divergences, edges = [], 0.0, 0
    for node in range(graph.num_nodes):
        old, new = (
            {(e.source, e.target): e.weight for e in t.explain(node).top(10_000)} for t in (clean.clean, now.now)
        )
        best = [set(sorted(w, key=lambda e: (-w[e], e[1], e[0]))[:5]) for w in (old, new)]
        overlaps.append(len(best[0] & best[1]) / min(5, len(old)))
        p, q = ({e: v / sum(w.values()) for e, v in w.items()} for w in (old, new))
        middle = {e: (p.get(e, 0.0) + q.get(e, 0.0)) / 2 for e in {*p, *q}}
        divergences += sum(d[e] * np.log(d[e] / middle[e]) / 2 for d in (p, q) for e in d if d[e] > 0)
        edges += len(old)
    assert found.attacked["overlap"].mean == pytest.approx(np.mean(overlaps), abs=0.02)
    assert found.attacked["g_jsd"].mean == pytest.approx(divergences / edges, rel=1e-4)


def test_the_test_of_faithfulness_has_as_many_nodes_as_are_asked_for():
    first, more = (audit(trained(), community(), ATTACK, seeds=1, sample=count).faithfulness for count in (25, 60))
    assert first is not None and more is not None and (first.nodes, more.nodes) == (25, 60)
    with pytest.raises(SettingError, match="sample=0"):
        audit(trained(), community(), ATTACK, sample=0)


def test_an_unknown_explanation_is_refused_before_the_attack():
    with pytest.raises(UnknownNameError, match="did you mean 'tree'"):
        audit(trained(), community(), ATTACK, explanation="tee")


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
    assert again.worst(3) == report().worst(3) and again.grades == report().grades


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
    assert suffix != ".json" or json.loads(text)["grades"]["answer"] == report().grades.answer


@pytest.mark.parametrize("name", ["audit.docx", "audit"])
def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path, name):
    with pytest.raises(DataError, match=r"\.json, \.md, \.txt"):
        report().save(tmp_path / name)
    assert not list(tmp_path.iterdir())


FOREIGN = {
    "empty": "{}",
    "list": "[]",
    "text": "not json",
    "half": '{"attacked": {}, "moved": [], "grades": {}}',
    "number": '{"attacked": 3}',
    "fields": '{"attacked": {}, "moved": [], "grades": {"answer": "yes", "line": ""}}',
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


@pytest.mark.parametrize(("gain", "used"), [("kl", "kl"), ("attention-divergence", "attention-divergence:tree")])
def test_an_audit_by_a_threat_model_names_it_and_takes_its_gain(tmp_path, gain, used):
    threat = Threat("tiny", NodeInjection(2, 3, steps=1), gain, "One who adds two nodes.", "tiny")
    found = audit(trained(), community(), threat, seeds=1)
    assert (found.attack, found.adversary["name"], found.gain) == ("tiny", "node-injection", used)
    assert "tiny: One who adds two nodes" in found.notes and "under tiny(" in found.title
    assert found.grades.stable is not None and "Under tiny" in found.grades.stable.sentence
    found.save(tmp_path / "audit.json")
    assert AuditReport.load(tmp_path / "audit.json").attack == "tiny"
    same = audit(trained(), community(), threat.adversary, gain=used, seeds=1)
    assert same.attacked == found.attacked and same.attack == "node-injection"


def test_a_threat_model_that_does_not_exist_is_refused_by_name():
    with pytest.raises(UnknownNameError, match="did you mean 'strongest'"):
        audit(trained(), community(), "strongst", seeds=1)


def test_a_comparison_gives_every_model_the_same_budget():
    models = {"one": trained(), "two": trained("even"), "three": model_of("pyg", community())}
    found = compare(models, community(), ATTACK, gain="kl", seeds=2)
    assert list(found.reports) == list(models)
    assert {json.dumps(r.adversary) for r in found.reports.values()} == {json.dumps(found.reports["one"].adversary)}
    assert {(r.gain, r.seeds, r.model) for r in found.reports.values()} == {("kl", 2, name) for name in models}
    alone = audit(trained("even"), community(), ATTACK, gain="kl", seeds=2)
    assert found.reports["two"].attacked == alone.attacked
    assert str(found).startswith("model") and len(found.markdown().splitlines()) == 5
    assert all(report.grades.line in str(found) for report in found.reports.values())


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


SUPPORTED = Grade("supported", "Deleting them hurts more.")


@pytest.mark.parametrize(
    ("failed", "answer", "clean", "attacked", "baselines", "says"),
    [
        ("", "yes", {}, {}, {}, "100%"),
        ("", "yes", {}, {"f1": 0.885, "overlap": 0.91, "g_tvd": 0.04}, {}, "91%"),
        ("used", "no", {"nonuniformity": 0.009}, {}, {}, "0.0090"),
        ("used", "no", {}, {}, {"g_tvd_uniform": 0.004}, "0.0040"),
        ("used", "no", {}, {}, {"overlap_randomised": 0.97}, "97%"),
        ("used", "not shown", {}, {}, {"overlap_randomised": float("nan")}, "a number is missing"),
        ("stable", "no", {}, {"overlap": 0.89}, {}, "89%"),
        ("stable", "no", {}, {"f1": 0.87}, {}, "0.030"),
        ("stable", "no", {}, {"g_tvd": 0.06}, {}, "0.060"),
    ],
)
def test_the_grades_say_their_numbers(failed, answer, clean, attacked, baselines, says):
    found = grade(GOOD | clean, GOOD | attacked, FLOOR | baselines, SUPPORTED, "an attack")
    assert found.answer == answer and says in found.line
    assert [name for name, one in found.items() if not one.holds] == [failed] * bool(failed)


def test_every_reason_is_given():
    unstable = grade(GOOD, GOOD | {"overlap": 0.1, "f1": 0.1, "g_tvd": 0.9}, FLOOR, SUPPORTED, "an attack").stable
    assert unstable and unstable.sentence.count(";") == 2
    unused = grade(GOOD | {"nonuniformity": 0.0}, GOOD, FLOOR | {"g_tvd_uniform": 0.0}, SUPPORTED, "an attack").used
    assert unused and unused.sentence.count(";") == 1


def test_a_weak_model_gets_no_grade():
    found = grade(GOOD | {"f1": 0.34}, GOOD, FLOOR, SUPPORTED, "an attack")
    assert not found.items() and found.answer == "not shown" and "too weak" in found.line


def test_without_a_test_of_faithfulness_nothing_is_shown():
    found = grade(GOOD, GOOD, FLOOR, None, "an attack")
    assert found.answer == "not shown" and found.faithful and found.faithful.value == "unknown"


def test_a_gat_on_cora_falls(shelf, data_root):
    graph = datasets.load("cora", root=data_root)
    model = Vanilla(epochs=60).fit(build("gat", graph), graph).model
    found = audit(model, graph, NodeInjection(20, 20, steps=5), seeds=1)
    assert found.grades.answer == "no" and found.grades.stable, found
    assert "F1 falls" in found.grades.stable.sentence
    assert found.clean["f1"] > 0.7


def test_uniform_attention_is_not_used_and_nothing_supports_it():
    found = audit(trained("even"), community(), ATTACK, seeds=1)
    assert found.grades.used and found.grades.used.value == "no" and "1/degree" in found.grades.used.sentence
    assert found.grades.faithful and found.grades.faithful.value == "unknown"
    assert found.clean["f1"] > 0.6


def test_random_attention_is_no_explanation():
    found = audit(trained("hashed"), community(), ATTACK, seeds=1)
    assert found.clean["nonuniformity"] > 0.3
    assert found.grades.used and found.grades.faithful, found
    assert found.grades.used.value == "no" and found.grades.faithful.value != "supported", found


def test_a_model_with_one_logit_can_be_audited():
    graph = without("y")
    graph.y = (community().y > 0).long()
    found = audit(GATConv(16, 1), graph, NodeInjection(2, 4, steps=1), seeds=1)
    assert found.grades.line and 0 <= found.clean["auc"] <= 1


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
    assert found.grades.used and found.grades.used.value == "no" and found.grades.answer == "no"


def test_reports_are_pandas_tables_with_their_own_numbers(monkeypatch):
    both = comparison()
    found = both.reports["other"]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        found.to_frame()

    class Pandas:
        @staticmethod
        def DataFrame(rows, columns):
            return [dict(zip(columns, row, strict=True)) for row in rows]

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    f1 = next(row for row in found.to_frame() if row["metric"] == "f1")
    values = found.attacked["f1"].values
    assert f1["attacked"] == pytest.approx(sum(values) / len(values)) and f1["clean"] == found.clean["f1"]
    assert min(values) <= f1["low"] <= f1["high"] <= max(values) and f1["better"] == "higher"
    assert both.to_frame() == both.reports["vanilla"].to_frame() + found.to_frame()


def test_class_names_are_carried_to_the_page_and_back(tmp_path):
    graph = copy(community())
    graph.class_names = ["cameras", "lenses", "bags"]
    found = audit(trained(), graph, ATTACK, seeds=1)
    found.save(tmp_path / "audit.json")
    loaded = AuditReport.load(tmp_path / "audit.json")
    assert loaded.class_names == ("cameras", "lenses", "bags") == tuple(content(loaded)["class_names"])
    graph.class_names = "cameras"
    with pytest.raises(DataError, match="`class_names` is of type str; give a list"):
        audit(trained(), graph, ATTACK, seeds=1)
