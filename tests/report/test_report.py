"""The page without a browser: what it holds, what it escapes, how large it is."""

import json
import re
import time
from copy import copy

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

import fgai
from fgai import datasets, report
from fgai.adversaries import EdgeRewiring, NodeInjection, gains
from fgai.auditing import Neighbourhood, audit
from fgai.auditing.neighbourhood import MAX_LINKS, MAX_NEIGHBOURS, neighbourhood, node_weights
from fgai.backbones import build
from fgai.certificates import Deletions, Links, certify, guaranteed_overlap
from fgai.errors import SettingError
from fgai.metrics.explanation import TOP
from fgai.reading import Reader, read
from reports import ATTACK, HOSTILE, comparison
from worlds import by_target, community, model_of, table, top, trained


def content_of(html):
    return json.loads(re.search(r'<script type="application/json" id="content">(.*?)</script>', html, re.DOTALL)[1])


def test_a_report_is_saved_as_a_page_of_its_own_figures(tmp_path):
    found = audit(trained(), community(), ATTACK, seeds=2, name="a GAT")
    found.save(tmp_path / "audit.html")
    shown = content_of((tmp_path / "audit.html").read_text())
    assert shown["models"] == ["a GAT"] and shown["cards"][0]["answer"] == found.grades.answer
    assert [row["node"] for row in shown["moved"]["a GAT"]] == [row.node for row in found.moved]
    curves = {chart["title"]: chart for chart in shown["charts"]}
    assert curves["F+"]["series"][1]["y"] == list(found.curves.attacked["most"])
    assert curves["F-"]["series"][0]["y"] == list(found.curves.clean["least"])
    assert curves["Certified, top 5"]["series"][0]["y"] == list(found.certified.values())
    look = read(trained(), community()).explanation
    sure = [float(guaranteed_overlap(look, TOP, radius).nanmean()) for radius in curves["Certified overlap"]["x"]]
    assert curves["Certified overlap"]["series"][0]["y"] == pytest.approx(sure, abs=1e-6)
    assert "Training" not in "".join(curves)


def test_a_comparison_shows_every_model_beside_the_first():
    shown = report.content(comparison())
    four = {row[0]: row[2:] for row in shown["tables"][0]["rows"]}
    first, other = (read(model, community()) for model in (trained(), trained("hashed")))
    moved = 0.5 * (first.probs - other.probs).abs().sum(1).mean()
    assert four["closeness"] == [0.0, None, pytest.approx(float(moved), abs=1e-6), None]
    assert four["similarity"][0] == 1.0 and 0 < four["similarity"][2] < 1
    assert four["explanation"][3] == comparison().reports["other"].attacked["overlap"].mean
    assert set(shown["views"]["vanilla"]) <= set(shown["views"]["other"])  # the first one's nodes are in both
    assert "3" in shown["views"]["vanilla"]


def test_certificates_and_histories_are_shown_by_the_names_of_the_models():
    fit = fgai.Vanilla(epochs=3).fit(model_of("gat", community()), community())
    proof = certify(trained(), community(), k=3, radius=0.01)
    shown = report.content(comparison(), {"vanilla": proof}, {"vanilla": fit.history}, {"data": "mine"})
    charts = {chart["title"]: chart for chart in shown["charts"]}
    assert charts["Training of vanilla"]["series"][0]["y"] == [
        sum(epoch.terms.values()) for epoch in fit.history
    ]  # one term
    certified = charts["Certified, top 3"]
    assert certified["series"][0]["y"] == [proof.share(radius) for radius in certified["x"]]
    head, rows = shown["tables"][0]["head"], shown["tables"][0]["rows"]
    assert rows[2][head.index("vanilla, proved (top 3, attention pushed by 0.01)")] == proof.beta2.mean
    assert all(len(row) == len(head) for row in rows) and ["data", "mine"] in shown["provenance"]


def test_proofs_are_curves_over_the_budget_beside_the_model_without_links():
    votes = certify(fgai.Voted(trained(), 5), community(), against=Links(1))
    cut = certify(trained("hashed"), community(), against=Deletions(1))
    shown = report.content(comparison(), proofs={"vanilla": votes, "other": cut})
    charts, proved = shown["charts"], shown["proved"]
    assert {name: set(notes) for name, notes in proved.items()} == {name: set(shown["views"][name]) for name in proved}
    budgets = {node: int(votes.budget[int(node)]) for node in proved["vanilla"]}
    assert {0, 2} & {*budgets.values()}
    for node, note in proved["vanilla"].items():
        start = f"No {budgets[node]} changed link" if budgets[node] else "Nothing is proved"
        assert note.startswith(start)
    links, deletions = [chart for chart in charts if chart["title"].startswith("Certified against")]
    assert (links["title"], deletions["title"]) == ("Certified against Links", "Certified against Deletions")
    rows = votes.curve()
    assert links["x"] == [row["budget"] for row in rows] and votes.sentence() in links["about"]
    certified, alone = links["series"]
    assert certified["y"] == pytest.approx([row["certified_and_right"] for row in rows])
    assert alone["y"] == pytest.approx([votes.shares()["without_links"]] * len(rows)) and alone["dashed"]
    assert deletions["series"][0]["group"] == 1


def test_certificates_and_histories_of_other_models_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"name \['nobody'\], and the models are called"):
        report.save(tmp_path / "r.html", comparison(), histories={"nobody": []})


def test_a_hostile_name_stays_text():
    graph = copy(community())
    graph.names = [HOSTILE] * graph.num_nodes
    html = report.page(report.content(audit(trained(), graph, ATTACK, seeds=1, name=HOSTILE)))
    shown = content_of(html)
    assert shown["models"] == [HOSTILE] and set(shown["names"].values()) == {HOSTILE}
    assert html.count("<script") == 4 and "<img" not in html and html.count("document.title = 'run'") > 0


def test_the_policy_allows_the_scripts_that_are_there_and_nothing_else():
    html = report.page({"title": ""})
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy
    assert policy.count("'sha256-") == 4  # three scripts and a style
    assert not re.search(r'(src|href)="(?!#)', html)


def test_a_node_is_shown_under_the_attack_that_hit_it_hardest():
    found = comparison().reports["vanilla"]
    looks = {view.node: view for view in found.views}
    worst = found.moved[0]
    view = looks[worst.node]
    lost = len(set(view.top_before) - set(view.top_after)) / len(view.top_before)
    assert view.seed in (0, 1) and lost >= 1 - worst.overlap - 1e-9


def test_a_neighbourhood_is_what_the_readings_say():
    graph = community()
    attacked = ATTACK(Reader(trained()), graph, gains.cross_entropy(read(trained(), graph))).detach()
    clean = read(trained(), graph)
    before, after = table(clean.explanation), table(attacked.explanation)
    node = int(attacked.perturbation.added[1].min())  # an injected node links to it
    old_weights, new_weights = (
        node_weights(reading.attribution("last"), [node])[node] for reading in (clean, attacked)
    )
    view = neighbourhood(node, 0, old_weights, new_weights)
    for source, target, old, new in view.links:
        assert old == (None if (source, target) not in before else pytest.approx(before[source, target], rel=1e-3))
        assert new == (None if (source, target) not in after else pytest.approx(after[source, target], rel=1e-3))
    for weights, named in ((before, view.top_before), (after, view.top_after)):
        assert {source for source, _ in top(by_target(weights)[node], weights, TOP)} == set(named)
    assert max(view.neighbours) >= graph.num_nodes


def test_a_hub_is_cut_to_what_can_be_looked_at():
    hub = 400
    edges = torch.stack([torch.arange(1, hub), torch.zeros(hub - 1, dtype=torch.long)])
    model = GATConv(2, 3).eval()
    looks = node_weights(read(model, Data(x=torch.randn(hub, 2), edge_index=edges)).attribution("last"), [0])[0]
    view = neighbourhood(0, 0, looks, looks, requested=tuple(range(300, 310)))
    assert set(range(300, 310)) <= {*view.neighbours, 0} and len(view.links) <= MAX_NEIGHBOURS + MAX_LINKS
    assert view.unseen == hub - MAX_NEIGHBOURS


def test_a_watched_node_must_be_there(tmp_path):
    with pytest.raises(fgai.FGAIError, match="0 to 149"):
        audit(trained(), community(), ATTACK, seeds=1, show_nodes=(150,))
    with pytest.raises(SettingError, match="whole numbers"):
        audit(trained(), community(), ATTACK, seeds=1, show_nodes=[1.0])  # pyright: ignore
    shown = audit(trained(), community(), ATTACK, seeds=1, show_nodes=torch.tensor([5]))  # pyright: ignore
    shown.save(tmp_path / "shown.json")
    assert 5 in [view.node for view in type(shown).load(tmp_path / "shown.json").views]


def test_one_node_alone_has_a_page():
    graph = Data(x=torch.ones(1, 3), edge_index=torch.zeros(2, 1, dtype=torch.long), y=torch.zeros(1, dtype=torch.long))
    found = audit(GATConv(3, 2), graph, NodeInjection(1, 1, steps=1), seeds=1)
    shown = content_of(report.page(report.content(found)))
    assert shown["nodes"] == 1 and len(shown["views"]["GATConv"]) == 1


def test_an_attack_without_new_nodes_has_a_page():
    found = audit(trained(), community(), EdgeRewiring(5, 5, rounds=1, pool=100), seeds=1)
    shown = content_of(report.page(report.content(found)))
    assert any(link[2] is None or link[3] is None for view in shown["views"]["GAT"].values() for link in view["links"])


def test_in_a_notebook_a_report_is_its_page_in_a_frame():
    for found in (comparison(), comparison().reports["vanilla"]):
        frame = found._repr_html_()
        assert frame.startswith('<iframe sandbox="allow-scripts"') and frame.count("<") == 2


def test_a_comparison_is_written_in_every_format(tmp_path):
    for suffix in (".html", ".json", ".md", ".txt"):
        comparison().save(tmp_path / f"both{suffix}")
    assert json.loads((tmp_path / "both.json").read_text())["agreement"]["vanilla"] == {
        "similarity": 1.0,
        "closeness": 0.0,
    }
    assert "Can it be trusted?" in (tmp_path / "both.txt").read_text()


@pytest.mark.slow
def test_a_million_edges_make_a_small_page_in_a_minute(tmp_path):
    graph = datasets.synthetic(100_000, 1_000_000)
    found = audit(build("gat", graph), graph, NodeInjection(20, 20, steps=1), seeds=1)
    start = time.perf_counter()
    found.save(tmp_path / "audit.html")
    assert time.perf_counter() - start < 60
    assert (tmp_path / "audit.html").stat().st_size < 5e6
    assert all(isinstance(view, Neighbourhood) for view in found.views)
