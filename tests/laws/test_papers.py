"""The papers in `paper/`: they build, their citations and pictures are there, and no figure in them is typed by hand.

Tables and sentences with figures are written by `benchmarks/pages.py` between markers; `tests/bench/test_figures.py`
compares them with their files. Outside of these places a paper has no digit, except in names.
"""

import importlib
import re
from pathlib import Path

import markdown
import pytest

ROOT = Path(__file__).parents[2]
PAPERS = sorted((ROOT / "paper").glob("*.md"))
NAMES = {"GATv2", "F1", "Table 1", "Table 2"}  # what may hold a digit
BUILT = re.compile(r"<!-- figures: [\w-]+ -->.*?<!-- end -->", re.S)


@pytest.fixture(name="citations")
def _citations(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("citations")


def typed(text):
    """The prose of a paper: without front matter, what scripts write, code, citations, links and names."""
    prose = BUILT.sub("", text.split("---\n", 2)[2])
    prose = re.sub(r"```.*?```|`[^`]*`|@[\w-]+|\]\([^)]*\)", "", prose, flags=re.S)
    for name in NAMES:
        prose = re.sub(rf"\b{name}\b", "", prose)
    return prose


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.name)
def test_no_figure_is_typed_by_hand(path):
    wrong = [line for line in typed(path.read_text()).splitlines() if re.search(r"\d", line)]
    assert not wrong, "write it as a figure of benchmarks/pages.py"


def test_a_figure_that_is_typed_by_hand_is_found():
    text = "---\ntitle: a\n---\nF1 of GATv2 <!-- figures: x -->\n0.5\n<!-- end --> and [@a2020b]"
    assert not re.search(r"\d", typed(text)) and re.search(r"\d", typed(text + " is 0.9"))


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.name)
def test_it_builds(path, citations):
    text, entries = path.read_text(), citations.read_bibliography(ROOT / "paper/paper.bib")
    assert {*citations.cited(text)} <= {*entries}
    html = markdown.markdown(citations.rendered(text, entries), extensions=["tables"])
    assert html.count("<table>") == len(re.findall(r"^\| ?---", text, re.M)) and "@" not in html
    assert html.count("doi.org") >= len(citations.cited(text))
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert all((path.parent / picture).exists() for picture in pictures)


def test_every_reference_is_cited_and_has_an_address(citations):
    entries = citations.read_bibliography(ROOT / "paper/paper.bib")
    assert {*entries} == {key for path in PAPERS for key in citations.cited(path.read_text())}
    for key, entry in entries.items():
        assert {"author", "title", "year", "doi"} <= {*entry} and entry["year"] in key, key


def test_a_citation_is_written_as_authors_and_year(citations):
    entries = citations.read_bibliography(ROOT / "paper/paper.bib")
    text = "---\ntitle: T\n---\nAs @hu2024fgai say [@jain2019attention;\n@li2024fragile].\n\n# References\n"
    shown = citations.rendered(text, entries)
    assert shown.startswith("# T\n") and "As Hu et al. (2024) say (Jain and Wallace, 2019; Li et al., 2024)." in shown
    with pytest.raises(KeyError):
        citations.rendered(text.replace("hu2024fgai", "nobody1999"), entries)


def test_the_software_paper_has_the_sections_of_its_journal():
    text = (ROOT / "paper/paper.md").read_text()
    assert re.findall(r"^# (.*)", text, re.M) == [
        "Summary",
        "Statement of need",
        "State of the field",
        "Design",
        "What it finds",
        "Limits",
        "References",
    ]
    words = len(BUILT.sub("", text).split())
    assert 700 < words < 1750, words  # the journal asks for 750 to 1,750
