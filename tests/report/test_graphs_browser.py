"""The page of an audit of graphs in a real browser: molecules before and under attack."""

from dataclasses import replace

import pytest
from selenium.webdriver import ActionChains, Keys

from fgai import GraphInjection, report
from fgai.auditing import Comparison, audit
from fgai.backbones import build
from reports import HOSTILE, size, texts, unfold
from worlds import named_molecules

LINES = """return [...document.querySelectorAll("svg.molecule[role]")].map((svg) => Object.fromEntries(
    ["weight", "bond", "known", "added"].map((name) => [name, svg.querySelectorAll("line." + name).length])))"""


@pytest.fixture(scope="module", name="page")
def _page(tmp_path_factory):
    """Two models; an element, a bond and a class want to be run."""
    batch = named_molecules()
    batch.element_names[2], batch.bond_names[1], batch.class_names = "<b>O", HOSTILE, ["safe", HOSTILE]
    first = audit(build("gat-graphs", batch).eval(), batch, GraphInjection(2, 2, steps=1), seeds=1, name="first")
    other = replace(first, model="other", graph_views=first.graph_views[1:])
    path = tmp_path_factory.mktemp("page") / "both.html"
    report.save(path, Comparison({"first": first, "other": other}))
    return path, first


def ask(driver, graph):
    search = driver.find_element("id", "search")
    search.clear()
    search.send_keys(str(graph), Keys.ENTER)
    return driver.find_element("css selector", "#view .about").text


def pairs(view, after):
    """The pairs of different atoms with a bond in one panel, with what the record says of them."""
    found = {}
    for source, target, old, new, kind, known in view.bonds:
        if source != target and (new if after else old) is not None:
            found[frozenset((source, target))] = (old is None, kind, known)
    return found


def test_a_graph_is_drawn_before_and_under_attack_with_its_bonds_and_atoms(look, page):
    driver, view = look(page[0]), page[1].graph_views[1]
    told = ask(driver, view.graph)
    named = ["safe", HOSTILE]
    assert told.startswith(f"Graph {view.graph}, true class {named[view.label]}: ".split("\u2028")[0])
    lines = driver.execute_script(LINES)
    assert len(lines) == 4 and lines[:2] == lines[2:], "two models, before and after"
    for counts, after in zip(lines, (False, True), strict=False):
        bonds = pairs(view, after)
        strokes = {"single": 1, "aromatic": 2}  # a bond of another name is one line
        marked = {True: 0, False: 0}
        for added, kind, known in bonds.values():
            marked[known] += 0 if added else strokes.get(kind, 1)
        new = [strokes.get(kind, 1) for added, kind, _ in bonds.values() if added]
        assert counts["added"] == sum(new) and len(new) == (4 if after else 0)
        assert (counts["known"], counts["bond"]) == (marked[True], marked[False])
        assert counts["weight"] == 2 * len(bonds), "a half for each direction"
    names = [text.strip() for text in texts_of_atoms(driver)]
    expected = [atom[1][:4] for atom in view.atoms]
    assert names[: len(expected) - 2] == expected[:-2] and names[len(expected) - 2 :][: len(expected)] == expected


def texts_of_atoms(driver):
    ask_texts = "return [...document.querySelectorAll('svg.molecule text')].map((e) => e.textContent)"
    return driver.execute_script(ask_texts)


def test_atoms_have_one_place_and_widths_are_the_weights(look, page):
    driver, view = look(page[0]), page[1].graph_views[1]
    ask(driver, view.graph)
    circles, widths = driver.execute_script(
        """const panels = [...document.querySelectorAll("svg.molecule[role]")].slice(0, 2);
        const at = (one) => [one.getAttribute("cx"), one.getAttribute("cy")].join();
        const wide = (one) => +one.getAttribute("stroke-width");
        return [panels.map((svg) => [...svg.querySelectorAll("circle")].map(at)),
                panels.map((svg) => [...svg.querySelectorAll(".weight")].map(wide))];"""
    )
    before, after = map(set, circles)
    assert before < after and len(after) == len(view.atoms) == len(before) + 2
    for drawn, column in zip(widths, (2, 3), strict=True):
        weights = [bond[column] for bond in view.bonds if bond[0] != bond[1] and bond[column] is not None]
        most = max(w or 0 for bond in view.bonds if bond[0] != bond[1] for w in bond[2:4])
        assert sorted(drawn) == pytest.approx(sorted(16 * weight / most for weight in weights), rel=1e-6)


def test_the_table_says_the_weights_and_a_name_stays_text(look, page):
    driver, view = look(page[0]), page[1].graph_views[1]
    ask(driver, view.graph)
    unfold(driver)
    rows = driver.execute_script(
        "return [...document.querySelectorAll('#view tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )
    assert len(rows) == len(view.bonds)
    kinds = {atom[0]: f"{atom[1]} {atom[0]}" for atom in view.atoms}
    for row, (source, target, old, new, kind, known) in zip(rows, view.bonds, strict=True):
        assert row[:2] == [kinds[target], kinds[source]] and row[2].startswith(kind)
        assert ("known reason" in row[2]) >= known and ("added" in row[2]) == (old is None)
        assert [row[3], row[4]] == ["not there" if w is None else f"{w:.4g}" for w in (old, new)] == row[5:7]
    assert driver.find_elements("css selector", "#view b, #view img") == []


def test_hovering_a_bond_and_an_atom_tells_the_weights(look, page):
    driver, view = look(page[0]), page[1].graph_views[1]
    ask(driver, view.graph)
    for shape, expected in (("line.reach", "attends to"), ("g", "attends to itself")):
        at = driver.execute_script(
            """const one = document.querySelectorAll("svg.molecule[role]")[1].querySelector(arguments[0]);
            one.scrollIntoView({ block: "center" });
            const box = one.getBoundingClientRect();
            return [box.x + box.width / 2, box.y + box.height / 2];""",
            shape,
        )
        actions = ActionChains(driver)
        for step in (-3, 0):
            actions.w3c_actions.pointer_action.move_to_location(round(at[0]) + step, round(at[1]))
        actions.perform()
        told = driver.find_element("id", "tip").text
        assert expected in told and "before " in told and "attacked " in told


def test_search_says_what_is_there_and_a_moved_node_opens_its_graph(look, page):
    driver, first = look(page[0]), page[1].graph_views[0]
    assert "No graph 29999 among the" in ask(driver, 29999)
    assert "This file keeps no picture of it for other." in ask(driver, first.graph)
    assert len(driver.find_elements("css selector", ".graph")) == 0, "no neighbourhood beside the molecules"
    unfold(driver)
    button = driver.find_element("css selector", "#moved td button")
    node = int(button.text)
    driver.execute_script("arguments[0].click()", button)
    shown = int(driver.find_element("id", "search").get_attribute("value"))
    assert node in {atom[0] for view in page[1].graph_views if view.graph == shown for atom in view.atoms}


def test_the_parts_the_legend_and_a_narrow_screen(look, page):
    driver = look(page[0])
    assert texts(driver, "h2")[0] == "What the model attends to in one graph"
    key = texts(driver, "#view .key li")
    assert sum("known reason" in text for text in key) == 2 and sum("added by the attack" in text for text in key) == 2
    assert "30 graphs with" in texts(driver, "main > .about")[0]
    assert "2 fake nodes in each graph" in texts(driver, "h1, main > .about")[1]
    unfold(driver)
    size(driver, 400)
    wide = driver.execute_script("return document.documentElement.scrollWidth")
    size(driver, 1200)
    assert wide <= 400
