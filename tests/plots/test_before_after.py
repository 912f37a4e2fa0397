from xml.etree import ElementTree

import pytest

from fgai.errors import DataError
from fgai.plots import before_after
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


def test_a_node_that_is_not_shown_is_refused():
    with pytest.raises(DataError, match="audit with show_nodes"):
        before_after(comparison().reports, node=10**9)
