"""The page in a real browser: headless Chromium, with the network events and the console watched."""

from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from selenium.webdriver import ActionChains, Keys
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

import fgai
from fgai import report
from fgai.adversaries import NodeInjection
from fgai.auditing import AuditReport, audit, compare
from fgai.certificates import certify
from fgai.report.glossary import GLOSSARY
from reports import ATTACK, HOSTILE, size, texts, unfold
from worlds import community, model_of, trained


@pytest.fixture(scope="module", name="page")
def _page(tmp_path_factory):
    """Two models, certificates, a history, and names that want to be run."""
    graph = copy(community())
    graph.names = [f"{HOSTILE} {node}" for node in range(150)]
    fit = fgai.Vanilla(epochs=3).fit(model_of("gat", graph), graph)
    models = {"vanilla": trained(), HOSTILE: fit.model}
    path = tmp_path_factory.mktemp("page") / "both.html"
    proofs = {name: certify(model, graph, k=3, radius=0.01) for name, model in models.items()}
    found = compare(models, graph, ATTACK, seeds=2)
    report.save(path, found, certificates=proofs, histories={HOSTILE: fit.history}, about={"data": HOSTILE})
    return path, found


def test_every_part_is_there(look, page):
    driver = look(page[0])
    assert texts(driver, "h2") == [
        "What one node attends to",
        "What to do next",
        "The four properties",
        "Every metric",
        "Curves",
        "The nodes that changed most",
        "Glossary",
        "How it was made",
    ]
    folded = texts(driver, "details.fold:not([open]) > summary h2")
    assert folded == texts(driver, "h2")[1:]  # the rest is folded
    unfold(driver)
    widths = driver.execute_script("return [...document.querySelectorAll('#charts canvas')].map((c) => c.clientWidth)")
    assert min(widths) > 250  # drawn at the size of the unfolded page
    assert len(driver.find_elements("css selector", "#charts canvas")) == 6
    assert len(driver.find_elements("css selector", ".graph")) == 4
    assert driver.find_elements("css selector", "img, iframe, object, link") == []
    assert HOSTILE.split("\u2028")[0] in driver.find_element("id", "provenance").text


def test_search_finds_a_node_and_says_when_there_is_none(look, page):
    driver = look(page[0])
    view = page[1].reports["vanilla"].views[7]
    search = driver.find_element("id", "search")
    search.clear()
    search.send_keys(str(view.node), Keys.ENTER)
    assert f"Node {view.node} " in driver.find_element("css selector", "#view .about").text
    driver.find_element("css selector", "#view summary").click()
    found = [line.split()[0].strip(",") for line in texts(driver, "#view td:first-child")]
    assert set(map(str, view.neighbours)) <= set(found)
    search.clear()
    search.send_keys("99999", Keys.ENTER)
    assert "No node 99999" in driver.find_element("css selector", "#view .about").text


def test_sorting_sorts_and_filtering_filters(look, page):
    driver = look(page[0])
    unfold(driver)
    head = driver.find_element("css selector", '#moved th[data-name="node"]')
    nodes = sorted(row.node for row in page[1].reports["vanilla"].moved)
    for order, direction in ((nodes, "ascending"), (nodes[::-1], "descending")):
        head.find_element("tag name", "button").send_keys(Keys.ENTER)  # by keyboard
        assert [int(text.split()[0]) for text in texts(driver, "#moved td button")] == order
        assert head.get_attribute("aria-sort") == direction
    driver.find_element("id", "moved-filter").send_keys("99 (")
    assert [int(text.split()[0]) for text in texts(driver, "#moved td button")] == [
        n for n in nodes[::-1] if n % 100 == 99
    ]


def test_the_answer_and_one_neighbourhood_are_above_the_fold(look, page):
    driver = look(page[0])
    size(driver, 1280, 900)
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    parts = {"h1": 1, ".lights .lamp": 6, ".bars svg": 8, ".graph": 4}
    for selector, count in parts.items():
        ask = "return [...document.querySelectorAll(arguments[0])].map((e) => e.getBoundingClientRect().bottom)"
        bottoms = driver.execute_script(ask, selector)
        assert len(bottoms) == count and max(bottoms) < 900, selector
    size(driver, 1200)
    assert texts(driver, "h1") == [report.content(page[1])["headline"]]


def test_a_light_has_a_colour_a_word_and_a_symbol(look, page):
    driver = look(page[0])
    given = page[1].reports["vanilla"].grades
    words = {"used": given.used, "faithful": given.faithful, "stable": given.stable}
    assert texts(driver, ".lights .word")[:3] == [f"{name}: {grade.value}" for name, grade in words.items()]
    assert texts(driver, ".lights .reason")[:3] == [grade.sentence for grade in words.values()]
    symbols = {"yes": "✓", "supported": "✓", "no": "✗", "contradicted": "✗", "unknown": "?"}
    assert texts(driver, ".lamp")[:3] == [symbols[grade.value] for grade in words.values()]
    assert texts(driver, ".answer")[0] == f"Can it be trusted? {given.answer.capitalize()}."


def test_a_term_tells_its_meaning_to_the_pointer_and_to_the_keyboard(look, page):
    driver = look(page[0])
    word = driver.find_element("css selector", ".lights .term")
    ActionChains(driver).move_to_element(word).perform()
    assert driver.find_element("id", "tip").text == GLOSSARY["used"]
    ActionChains(driver).move_to_element(driver.find_element("tag name", "h1")).perform()
    assert not driver.find_element("id", "tip").is_displayed()
    driver.execute_script("arguments[0].focus()", driver.find_elements("css selector", ".lights .term")[2])
    assert driver.find_element("id", "tip").text == GLOSSARY["stable"]


CONTRASTS = """
const plain = (value) => value.match(/[\\d.]+/g).map(Number);
const ground = (e) => { for (; e; e = e.parentElement) {
  const c = plain(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c.slice(0, 3); }
  return plain(getComputedStyle(document.body).backgroundColor); };
const found = [];
for (const e of document.querySelectorAll("body *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (own && e.checkVisibility() && !["SCRIPT", "STYLE"].includes(e.tagName))
    found.push([e.tagName + "." + e.className, plain(getComputedStyle(e).color).slice(0, 3), ground(e)]);
}
return found;"""


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_every_text_has_the_contrast_of_aa(driver, look, page, theme):
    wish = {"name": "prefers-color-scheme", "value": theme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wish]})
    look(page[0])
    unfold(driver)
    pairs = driver.execute_script(CONTRASTS)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    low = set()
    for name, ink, ground in pairs:
        light, dark = sorted((luminance(f"rgb({', '.join(map(str, c))})") for c in (ink, ground)), reverse=True)
        if (light + 0.05) / (dark + 0.05) < 4.5:
            low.add(name)
    assert len(pairs) > 100 and not low


def test_hovering_an_edge_tells_its_weight(look, page):
    driver = look(page[0])
    edge = driver.execute_script(
        """const cy = document.querySelectorAll(".graph")[1]._cyreg.cy;
        const edge = cy.edges().filter((e) => !e.hasClass("among")).max((e) => e.data("now")).ele;
        document.querySelector(".graph").scrollIntoView({ block: "center" });
        const at = edge.renderedMidpoint(), box = cy.container().getBoundingClientRect();
        return { ...edge.data(), x: box.x + at.x, y: box.y + at.y };"""
    )
    actions = ActionChains(driver)
    actions.w3c_actions.pointer_action.move_to_location(round(edge["x"]) - 6, round(edge["y"]) - 6)
    actions.w3c_actions.pointer_action.move_to_location(round(edge["x"]), round(edge["y"]))
    actions.perform()
    told = driver.find_element("id", "tip").text
    assert f"attacked {edge['now']:.4g}" in told and edge["target"] in told


def statuses(view):
    return {view.status(source) for source, target, *_ in view.links if target == view.node != source}


def open_node(driver, node):
    search = driver.find_element("id", "search")
    search.clear()
    search.send_keys(str(node), Keys.ENTER)


def test_the_panels_share_one_layout_and_move_together(look, page):
    driver = look(page[0])
    open_node(driver, max(page[1].reports["vanilla"].views, key=lambda view: len(view.neighbours)).node)
    graph = driver.find_elements("css selector", ".graph")[2]
    graph.send_keys("+", Keys.ARROW_LEFT)
    zooms, places = driver.execute_script(
        """const all = [...document.querySelectorAll(".graph")].map((holder) => holder._cyreg.cy);
        const shared = all[0].nodes().filter((n) => all.every((cy) => cy.getElementById(n.id()).length));
        return [all.map((cy) => [cy.zoom(), cy.pan().x, cy.pan().y]),
                all.map((cy) => shared.map((n) => cy.getElementById(n.id()).position()))];"""
    )
    assert all(zoom == zooms[0] for zoom in zooms)
    assert len(places[0]) > 5 and all(place == places[0] for place in places)


def test_lines_and_nodes_are_told_apart_without_colour(look, page):
    driver = look(page[0])
    open_node(driver, max(page[1].reports["vanilla"].views, key=lambda view: len(statuses(view))).node)
    styles = driver.execute_script(
        """const seen = {};
        for (const holder of document.querySelectorAll(".graph")) holder._cyreg.cy.edges().forEach((e) => {
          seen[e.classes()[0]] = [e.style("line-style"), e.style("line-dash-pattern"), e.style("width")].join(); });
        return seen;"""
    )
    assert {"kept", "lost", "new", "other"} <= set(styles) and len(set(styles.values())) == len(styles)


def test_the_key_of_a_chart_has_the_colours_of_its_curves(look, page):
    driver = look(page[0])
    asked, found = driver.execute_script(
        """const style = getComputedStyle(document.documentElement), probe = document.createElement("i");
        document.body.append(probe);
        const plain = (colour) => { probe.style.color = colour; return getComputedStyle(probe).color; };
        const keys = [...document.querySelectorAll("#charts .key")];
        const told = keys.map((key) => [...key.querySelectorAll("line")].map((line) => getComputedStyle(line).stroke));
        const drawn = shown.charts.map((c) => c.series.map((s) => plain(style.getPropertyValue("--line" + s.group))));
        return [drawn, told];"""
    )
    assert asked == found and len({colour for chart in found for colour in chart}) > 1


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_both_themes_can_be_read(driver, look, page, theme):
    wish = {"name": "prefers-color-scheme", "value": theme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wish]})
    look(page[0])
    ask = "const s = getComputedStyle(document.body); return [s.color, s.backgroundColor]"

    def contrast():
        ink, ground = (luminance(value) for value in driver.execute_script(ask))
        return (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05), "light" if ground > ink else "dark"

    (asked, first), _ = contrast(), driver.find_element("id", "theme").click()
    other, second = contrast()
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert min(asked, other) > 7 and (first == theme) and (second != theme)


def luminance(colour):
    """Relative luminance as WCAG defines it."""
    parts = [int(part) / 255 for part in colour[4:-1].split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_narrow_screen_scrolls_down_only(look, page):
    driver = look(page[0])
    unfold(driver)
    size(driver, 400)
    wide = driver.execute_script("return document.documentElement.scrollWidth")
    size(driver, 1200)
    assert wide <= 400


def test_the_keyboard_reaches_every_part(look, page):
    driver = look(page[0])
    unfold(driver)
    driver.find_element("id", "moved-filter").send_keys("99 (")  # few rows to pass
    driver.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
    reached = set()
    for _ in range(150):
        ActionChains(driver).send_keys(Keys.TAB).perform()
        ask = "const e = document.activeElement; return e.closest('section')?.id + ' ' + e.tagName + ' ' + e.className"
        reached.add(" ".join(driver.execute_script(ask).split()[:3]))
    parts = {"charts SUMMARY", "moved SELECT", "moved INPUT", "moved BUTTON", "view INPUT", "view DIV graph"}
    assert parts <= reached, reached


def test_it_prints(look, page):
    driver = look(page[0])
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")  # it is drawn
    assert len(driver.print_page()) > 50_000


def test_in_a_notebooks_frame_it_draws_itself_too(look, page, tmp_path):
    (tmp_path / "notebook.html").write_text(page[1]._repr_html_(), encoding="utf-8")
    driver = look(tmp_path / "notebook.html")
    driver.switch_to.frame(driver.find_element("tag name", "iframe"))
    assert len(driver.find_elements("css selector", ".graph")) == 4
    driver.switch_to.default_content()


def alone(path):
    """One seed, one model, no certificate, no history."""
    audit(trained(), community(), ATTACK, seeds=1).save(path)


def one_node(path):
    graph = Data(x=torch.ones(1, 3), edge_index=torch.zeros(2, 1, dtype=torch.long), y=torch.zeros(1, dtype=torch.long))
    audit(GATConv(3, 2), graph, NodeInjection(1, 1, steps=1), seeds=1).save(path)


@pytest.mark.parametrize("make", [alone, one_node])
def test_less_makes_no_broken_panel(look, tmp_path, make):
    make(tmp_path / "audit.html")
    driver = look(tmp_path / "audit.html")
    assert (
        "What one node attends to" in texts(driver, "h2") and len(driver.find_elements("css selector", ".graph")) == 2
    )
    assert not [text for text in texts(driver, "td, dd, p, h3, li") if text in ("undefined", "NaN", "null")]


@pytest.mark.parametrize("name", ["amazon-photo-gat-vanilla-0", "amazon-photo-gat-fgai-0"])
def test_a_committed_audit_whose_pictures_are_of_other_nodes_is_drawn(look, tmp_path, name):
    found = AuditReport.load(Path(__file__).parents[2] / "results" / "audits" / f"{name}.json")
    assert not {row.node for row in found.moved} & {view.node for view in found.views}
    found.save(tmp_path / "audit.html")
    driver = look(tmp_path / "audit.html")
    assert len(driver.find_elements("css selector", ".graph")) == 2
    stayed = {view.node: len({*view.top_before} & {*view.top_after}) for view in found.views}
    first = min(stayed, key=lambda node: (stayed[node], node))
    note = f"Node {first}: {found.model} keeps {stayed[first]} of its top"
    assert driver.find_element("css selector", "#view .about").text.startswith(note)
    assert "How it was made" in texts(driver, "h2")
    assert driver.find_elements("css selector", "#moved td button") == []  # nothing to open


def test_a_name_of_any_length_makes_a_page_that_opens(look, tmp_path):
    found = audit(trained(), community(), ATTACK, seeds=1)
    names = dict.fromkeys(("0", "1"), "n" * 200000)
    replace(found, model="m" * 200_000, gain="g" * 200_000, names=names).save(tmp_path / "audit.html")
    assert (tmp_path / "audit.html").stat().st_size < 2e6
    driver = look(tmp_path / "audit.html")
    assert texts(driver, "h1")[0].startswith("m" * 39 + "… loses ") and len(texts(driver, ".card h3")[0]) == 100
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 1200
