from dataclasses import replace
from xml.etree import ElementTree

import pytest

from fgai.auditing import Neighbourhood
from fgai.errors import DataError
from fgai.plots import before_after
from fgai.plots.before_after import COLOURS, OUTER, ROW
from reports import comparison

SVG = "{http://www.w3.org/2000/svg}"


def words(picture):
    return [text.text for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def test_the_widths_are_the_attention_and_the_marks_the_neighbours():
    reports = comparison().reports
    name, report = next(iter(reports.items()))
    view = report.views[0]
    picture = ElementTree.fromstring(before_after({name: report}, view.node))
    own = [link for link in view.links if link[1] == view.node != link[0] and link[2] is not None]
    lines = [line for line in picture.iter(f"{SVG}line") if line.get("stroke-opacity")]
    widths = sorted((float(line.get("stroke-width", 0)) for line in lines), reverse=True)
    largest = max(weight or 0 for link in view.links for weight in link[2:])
    both = [weight for link in own for weight in link[2:] if weight is not None]
    assert widths[0] == pytest.approx(max(1.4, 15 * max(both) / largest), abs=0.06)
    assert f"{report.clean['f1']:.1%}" in words(before_after({name: report}, view.node))


def test_names_are_text_and_not_markup():
    name, report = next(iter(comparison().reports.items()))
    picture = before_after({"<b>&": report})
    assert "<b>&" in words(picture) and name


def test_neighbours_in_a_typed_graph_have_their_names():
    name, report = next(iter(comparison().reports.items()))
    view = report.views[0]
    other = next(source for source, target, *_ in view.links if target == view.node != source < report.graph["nodes"])
    plain = before_after({name: report}, view.node)
    typed = replace(report, types={str(other): "actor"}, names={str(other): "actor <7>"})
    assert str(other) in words(plain) and "actor <7>" in words(before_after({name: typed}, view.node))


def test_a_node_that_is_not_shown_is_refused():
    with pytest.raises(DataError, match="audit with show_nodes"):
        before_after(comparison().reports, node=10**9)


def test_a_node_two_links_away_hangs_on_its_neighbour_and_an_injected_one_is_a_diamond():
    name, report = next(iter(comparison().reports.items()))
    own = report.graph["nodes"]
    links = ((1, 0, 0.6, 0.9), (2, 0, 0.4, 0.1), (0, 0, 0.2, 0.2), (own, 1, None, 0.8), (3, 2, 0.1, 0.1))
    view = Neighbourhood(0, 0, (1, 2, own, 3), links, (1, 2, 0), (1, own, 0), 0)
    picture = before_after({name: replace(report, views=(view,))}, 0)
    drawn = ElementTree.fromstring(picture)
    lines = [line for line in drawn.iter(f"{SVG}line") if line.get("stroke-opacity")]
    before, after = [line for line in lines if float(line.get("x1", 0)) < 575], lines[2:]
    assert len(before) == 2 and len(after) == 3  # node 3 is in no top, the injected node is there only after
    own_line, its_line = after[0], after[2]
    assert (its_line.get("x1"), its_line.get("y1")) == (own_line.get("x2"), own_line.get("y2"))
    assert words(picture).count("fake") == 1 and picture.count("<path") == 2  # with the one of the legend
    assert [line.get("stroke") for line in after] == [COLOURS["kept"], COLOURS["lost"], COLOURS["new"]]
    assert "keeps 2 of its 3" in words(picture)


def test_the_name_of_a_node_two_links_away_stays_in_its_row():
    assert OUTER + 23 + 11 <= ROW / 2  # the name is 19 pixels further out and 4 lower, in letters of 11 pixels
