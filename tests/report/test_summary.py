"""The first screen, against numbers worked by hand."""

from dataclasses import replace

import pytest

from fgai import report
from fgai.adversaries import PRBCD, EdgeRewiring, FeatureBall, NodeInjection, as_threat, describe
from fgai.auditing import Comparison, Estimate
from fgai.errors import SettingError
from fgai.grades import Grade, sum_up
from fgai.metrics import METRICS
from fgai.report.content import change
from fgai.report.glossary import DESCRIBING, GLOSSARY, METRIC_TERMS
from fgai.report.summary import headline, next_steps, phrase
from reports import comparison

GOOD, FINE = Grade("yes", "It is."), {"model": 0.9, "largest_class": 0.3}


def audited(clean, attacked, overlap, adversary=NodeInjection(20, 20), grades=None, **changes):
    """A report with these numbers."""
    base = comparison().reports["vanilla"]
    return replace(
        base,
        clean={**base.clean, "f1": clean},
        attacked={**base.attacked, "f1": Estimate.of(attacked), "overlap": Estimate.of(overlap)},
        adversary=describe(as_threat(adversary)),
        grades=grades or sum_up(GOOD, GOOD, GOOD, FINE),
        **changes,
    )


def plain_spaces(text):
    return text.replace("\u00a0%", " %")


def test_the_headline_of_two_models():
    plain = audited(0.93, [0.46, 0.48], [0.30, 0.34])  # loses .93 - .47 = .46, keeps .32
    mended = audited(0.926, [0.92, 0.924], [0.98, 0.98])  # loses .926 - .922 = .004
    assert plain_spaces(headline({"Plain GAT": plain, "re-trained": mended})) == (
        "Plain GAT loses 46 points of F1 to 20 fake nodes and keeps 32 % of its explanations; "
        "re-trained loses 0.4 and keeps 98 %"
    )


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((0.9, [0.8001], [0.5]), "GAT loses 10 points of F1 to 20 fake nodes and keeps 50 % of its explanations"),
        ((0.9, [0.8006], [0.5]), "GAT loses 9.9 points of F1 to 20 fake nodes and keeps 50 % of its explanations"),
        ((0.9, [0.91], [1.0]), "GAT loses no F1 to 20 fake nodes and keeps 100 % of its explanations"),
        ((0.9, [0.85], [0.9999]), "GAT loses 5.0 points of F1 to 20 fake nodes and keeps more than 99 % of its "
         "explanations"),
    ],
)  # fmt: skip
def test_the_headline_rounds_without_lying(numbers, sentence):
    assert plain_spaces(headline({"GAT": audited(*numbers)})) == sentence


@pytest.mark.parametrize(
    ("adversary", "words"),
    [
        (NodeInjection(1, 5), "1 fake node"),
        (NodeInjection(2_000, 5), "2,000 fake nodes"),
        (EdgeRewiring(added=30, dropped=10), "40 changed links"),
        (PRBCD(flips=200), "200 changed links"),
        (FeatureBall(), "this attack"),
    ],
)
def test_the_words_follow_the_adversary(adversary, words):
    assert phrase(describe(as_threat(adversary))) == words
    assert f" to {words} and" in headline({"GAT": audited(0.9, [0.5], [0.5], adversary)})


@pytest.mark.parametrize("count", [None, "20", 0, -3, [20]])
def test_a_budget_that_is_no_count_is_not_named(count):
    assert phrase({"name": "node-injection", "nodes": count}) == "this attack"


def test_models_under_different_attacks_are_not_said_to_share_one():
    both = {"a": audited(0.9, [0.5], [0.5]), "b": audited(0.9, [0.5], [0.5], NodeInjection(5, 5))}
    assert "20 fake nodes" not in headline(both) and " to its attack and" in headline(both)


def test_a_weak_model_has_no_losses_and_no_grades():
    weak = audited(0.2, [0.1], [0.1], grades=sum_up(GOOD, GOOD, GOOD, {"model": 0.2, "largest_class": 0.3}))
    shown = report.content(weak)
    assert shown["headline"] == f"{weak.model} is too weak to be graded: its F1 is 0.200"
    assert [light["value"] for light in shown["cards"][0]["lights"]] == ["not graded"] * 3
    assert "Train it longer" in shown["next"][0]["text"]


def test_models_of_different_graphs_or_explanations_share_no_page():
    first = audited(0.9, [0.5], [0.5])
    for other in ({"graph": {**first.graph, "nodes": 7}}, {"explanation": "tree"}):
        with pytest.raises(SettingError, match="other: another graph or explanation than first"):
            report.content(Comparison({"first": first, "other": replace(first, **other)}))


def test_the_page_tells_the_attack_on_each_model():
    both = {"a": audited(0.9, [0.5], [0.5]), "b": audited(0.9, [0.5], [0.5], NodeInjection(5, 7))}
    shown = report.content(Comparison(both))
    assert "a: A graph" in shown["setting"] and "(20 fake nodes)" in shown["setting"]
    assert "b: A graph" in shown["setting"] and "(5 fake nodes)" in shown["setting"]
    adversaries = [text for term, text in shown["provenance"] if term == "adversary"]
    assert len(adversaries) == 2 and "edges=7" in adversaries[1] and adversaries[1].endswith("(b)")


def test_long_names_are_cut_and_stay_different():
    names = ["m" * 500, "m" * 501]
    shown = report.content(Comparison(dict.fromkeys(names, audited(0.9, [0.5], [0.5]))))
    assert len(set(shown["models"])) == 2 and max(map(len, shown["models"])) < 110
    assert shown["headline"].startswith("m" * 39 + "… loses ")
    assert set(shown["views"]) == set(shown["moved"]) == set(shown["models"])


def test_what_to_do_next_follows_from_the_grades():
    unstable = sum_up(GOOD, Grade("unknown", "Not enough."), Grade("no", "It falls."), FINE)
    steps = next_steps({"a": audited(0.9, [0.5], [0.5], grades=unstable), "b": audited(0.9, [0.9], [1.0])})
    assert steps[0] == {"model": "b", "text": "All three grades hold. Use it in place of a."}
    of_first = [step["text"] for step in steps if step["model"] == "a"]
    assert "more nodes" in of_first[0] and "`fgai fit FOLDER --out NEW`" in of_first[1] and len(of_first) == 2
    assert "`fgai certify FOLDER`" in steps[-1]["text"]
    opposed = sum_up(Grade("no", ""), Grade("contradicted", ""), GOOD, FINE)
    texts = " ".join(step["text"] for step in next_steps({"a": audited(0.9, [0.9], [1.0], grades=opposed)}))
    assert texts.count("leave-one-out") == 2 and "fgai fit" not in texts


def test_the_bars_are_the_numbers_of_the_audit():
    found = comparison().reports["other"]
    f1, overlap = report.content(comparison())["cards"][1]["bars"]
    assert (f1["before"], f1["after"]) == (found.clean["f1"], found.attacked["f1"].mean)
    assert (overlap["before"], overlap["after"]) == (1.0, found.attacked["overlap"].mean)


def test_a_change_is_better_or_worse_as_its_metric_says():
    assert change("g_tvd", 0.2) == {"text": "▲ 0.2 worse", "tone": "worse"}
    assert change("overlap", 0.013) == {"text": "▲ 0.013 better", "tone": "better"}
    assert change("entropy", -0.1)["tone"] == change("f1", 0.0)["tone"] == change("f1", float("nan"))["tone"] == ""


def test_every_metric_and_every_bar_has_its_term_in_the_glossary():
    assert {*METRIC_TERMS.values()} <= {*GLOSSARY} and {*DESCRIBING} <= {*METRICS}
    assert {name for name in METRICS if not name.endswith("_released")} <= {*METRIC_TERMS}
    assert {bar["term"] for one in report.content(comparison())["cards"] for bar in one["bars"]} <= {*GLOSSARY}


def test_audits_that_were_loaded_make_a_page_without_agreement(tmp_path):
    for name, found in comparison().reports.items():
        found.save(tmp_path / f"{name}.json")
    loaded = {name: type(found).load(tmp_path / f"{name}.json") for name, found in comparison().reports.items()}
    shown = report.content(Comparison(loaded))
    assert [row[0] for row in shown["tables"][0]["rows"]] == ["explanation", "prediction"]
    assert shown["headline"] == report.content(comparison())["headline"]
    assert shown["first_node"] == loaded["vanilla"].moved[0].node
