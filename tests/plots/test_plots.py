import json
import sys
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from torch_geometric.explain import Explainer
from torch_geometric.nn import GATConv

import fgai
from fgai import plots
from fgai.auditing.audit import CERTIFIED
from fgai.bench.figures import FIGURES, figure
from fgai.bench.plan import Cell
from fgai.bench.results import CellStore, Row
from fgai.deletion import SHARES
from fgai.errors import DataError, MissingExtraError, UnknownNameError
from fgai.methods import Epoch
from fgai.plots import canvas
from loose import loose
from reports import comparison

RESULTS = Path(__file__).parents[2] / "results"


def lines(axis):
    return {line.get_label(): line.get_ydata().tolist() for line in axis.lines if not line.get_label().startswith("_")}


@pytest.mark.parametrize(("name", "suffix"), [*((name, ".svg") for name in FIGURES), ("f-curves", ".png")])
def test_every_figure_is_drawn_from_the_committed_results_the_same_every_time(name, suffix, tmp_path):
    for copy in ("one", "two"):
        plots.save(figure(name, RESULTS), tmp_path / f"{copy}{suffix}")
    one, two = ((tmp_path / f"{copy}{suffix}").read_bytes() for copy in ("one", "two"))
    assert one == two and one.startswith(b"<?xml" if suffix == ".svg" else b"\x89PNG")


def test_f_curves_are_the_reports():
    reports = comparison().reports
    above, below = plots.f_curves({"gat": {name: report.curves for name, report in reports.items()}}).axes
    for axis, first in ((above, "most"), (below, "least")):
        drawn = [line.get_ydata().tolist() for line in axis.lines][: 2 * len(reports)]
        told = [list(curve[first]) for r in reports.values() for curve in (r.curves.clean, r.curves.attacked)]
        assert drawn == told
        assert [line.get_linestyle() for line in axis.lines][:4] == ["-", "--", "-", "--"]


def test_a_method_looks_the_same_in_every_panel():
    curves = {name: report.curves for name, report in comparison().reports.items()}
    left, right = plots.f_curves({"gat": curves, "gt": {"other": curves["other"]}}).axes[:2]
    looks = [(line.get_color(), line.get_marker()) for line in (left.lines[2], right.lines[0])]
    assert looks[0] == looks[1] != (left.lines[0].get_color(), left.lines[0].get_marker())


def test_a_model_looks_the_same_in_every_panel_of_certified_shares():
    curve = [(0.01, 1.0), (0.1, 0.5)]
    left, right = plots.certified_curves({"a": {"x": curve, "y": curve}, "b": {"y": curve}}).axes
    looks = [(line.get_color(), line.get_linestyle()) for line in (left.lines[1], right.lines[0])]
    assert looks[0] == looks[1] != (left.lines[0].get_color(), left.lines[0].get_linestyle())
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["x", "y"]


@pytest.fixture(name="cells")
def _cells(tmp_path):
    """Cells of a method that no figure shows, of one seed without curves, and of a backbone without FGAI."""
    curves = {"most": [0.5] * len(SHARES), "least": [0.25] * len(SHARES)}
    shares = {f"share_{radius:g}": 0.5 for radius in CERTIFIED}
    for backbone, method, seed in product(("gat", "gt"), ("vanilla", "ln", "at", "fgai", "gnn-svd"), (0, 1)):
        if (backbone, method) != ("gt", "fgai"):
            held = {} if (method, seed) == ("at", 1) else curves
            row = partial(Row, "amazon-photo", backbone, method, seed, {**shares, "f1": 0.5 + seed}, curves=held)
            rows = [row(attack="none"), row(attack="injection-20x20")]
            CellStore(tmp_path / "cells").put(Cell("amazon-photo", backbone, method, seed), rows)
    return tmp_path


def test_figures_show_the_methods_of_the_paper_over_the_seeds_that_all_of_them_hold(cells, monkeypatch):
    found = {}
    monkeypatch.setattr(plots, "f_curves", lambda panels: found.update(panels))
    monkeypatch.setattr(plots, "certified_curves", lambda panels: found.update(panels))
    path = cells / "cells" / "amazon-photo-gat-vanilla-1.json"
    path.write_text(path.read_text().replace("0.25", "0.75"))  # a seed without AT's curves does not count
    figure("f-curves", cells)
    assert {name: list(methods) for name, methods in found.items()} == {"gat": ["vanilla", "ln", "at", "fgai"]}
    assert set(found["gat"]["vanilla"].clean["least"]) == {0.25}
    found.clear()
    figure("certified", cells)
    assert {name: list(methods) for name, methods in found.items()} == {"amazon-photo": ["vanilla", "ln", "at", "fgai"]}
    for asked in ({"dataset": "cora"}, {"backbone": "gt"}):
        with pytest.raises(DataError, match=r"holds no cells of vanilla, ln, at, fgai with"):
            figure("certified", cells, **asked)


def test_an_attention_map_holds_the_weights_of_the_links():
    reports = comparison().reports
    panels = plots.attention_maps(reports, node=3).axes[:4]
    for place, report in enumerate(reports.values()):
        view = next(view for view in report.views if view.node == 3)
        labels = [label.get_text().rstrip("*") for label in panels[2 * place].get_xticklabels()]
        for after in (0, 1):
            shown = panels[2 * place + after].images[0].get_array().filled(np.nan)
            assert np.isfinite(shown).sum() == sum(link[2 + after] is not None for link in view.links)
            for source, target, *weights in view.links:
                if weights[after] is not None:
                    at = labels.index(str(target)), labels.index(str(source))
                    assert shown[at] == pytest.approx(max(loose(weights[after]), 1e-12))


def test_a_star_tells_kept_lost_and_new_apart_by_dash_and_injected_nodes_by_shape():
    reports = comparison().reports
    view = next(v for v in reports["vanilla"].views if {v.status(s) for s in v.top_after} >= {"kept", "new"})
    shared = {name: report for name, report in reports.items() if view.node in {v.node for v in report.views}}
    after = plots.stars(shared, view.node).axes[1]
    dashes = {"kept": "-", "lost": "--", "new": ":", "other": "-"}
    told = sorted(dashes[view.status(s)] for s, t, _, w in view.links if t == view.node != s and w is not None)
    drawn = sorted(line.get_linestyle() for line in after.lines if len(line.get_xdata()) == 2)
    assert drawn == told
    injected = [s for s, t, _, w in view.links if t == view.node and s >= 150]
    assert sum(line.get_marker() == "D" for line in after.lines) == len(injected)


def test_a_node_that_is_not_kept_is_answered_with_those_that_are():
    with pytest.raises(DataError, match="node 9999 is not in all of vanilla, other; they share"):
        plots.stars(comparison().reports, 9999)


def test_loss_terms_are_the_history():
    history = [Epoch(n, {"closeness": 1.0 / (n + 1), "similarity": 2.0}, 0.5) for n in range(4)]
    assert lines(plots.loss_terms({"gat": history}).axes[0]) == {
        "closeness": [1.0, 0.5, 1 / 3, 0.25],
        "similarity": [2.0] * 4,
    }


def test_a_figure_shows_itself_in_a_notebook():
    assert plots.certified_curves({"cora": {"gat": [(0.01, 1.0)]}})._repr_svg_().startswith("<?xml")


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    canvas._figure_class.cache_clear()
    with pytest.raises(MissingExtraError, match=r"fgai\[plots\]"):
        plots.certified_curves({"cora": {"gat": [(0.01, 1.0)]}})


def test_unknown_figures_formats_and_results_are_answered_in_words(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'stars'"):
        figure("star", RESULTS)
    with pytest.raises(DataError, match=r"\.svg or \.png"):
        plots.save(figure("certified", RESULTS), tmp_path / "figure.pdf")
    with pytest.raises(DataError, match=r"benchmarks/figures\.py"):
        figure("stars", tmp_path)
    with pytest.raises(DataError, match="no losses on cora"):
        figure("loss-terms", RESULTS, "cora")
    with pytest.raises(DataError, match=r"no amazon-photo-gat-fgai-0\.json;"):
        (tmp_path / "audits").mkdir()
        comparison().reports["vanilla"].save(tmp_path / "audits/amazon-photo-gat-vanilla-0.json")
        figure("stars", tmp_path)


def test_an_explanation_shows_the_edges_it_names_first():
    settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    how = {"explanation_type": "model", "edge_mask_type": "object", "model_config": settings}
    explain = Explainer(GATConv(3, 2), fgai.AttentionExplainer(), **how)
    shown = explain(torch.ones(3, 3), torch.tensor([[0, 2, 2], [1, 1, 0]]))._repr_html_()
    assert shown.index("<td>2</td><td>0</td><td>0.5</td>") < shown.index("<td>0</td><td>1</td><td>0.3333</td>")
    assert "The 3 largest of 3 edges" in shown


def test_the_committed_histories_are_whole():
    for path in (RESULTS / "histories").glob("*.json"):
        history = json.loads(path.read_text())
        assert [epoch["number"] for epoch in history] == list(range(len(history)))
