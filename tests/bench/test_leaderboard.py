"""The leaderboard of the committed results: its numbers, and its page in a real browser."""

import json
import shlex
from pathlib import Path
from statistics import mean

import pytest
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.support.ui import Select

from fgai.bench import Row, write_rows
from fgai.bench.leaderboard import Entry, Leaderboard, command
from fgai.bench.leaderboard_page import COLUMNS, LAYOUT, VIEWS, content
from fgai.bench.plan import Cell, Plan
from fgai.bench.tables import table_of
from fgai.errors import DataError
from fgai.report import page
from reports import HOSTILE, size, texts

RESULTS = Path(__file__).parents[2] / "results"
TABLES = ("table1", "table2", "fidelity", "links")


@pytest.fixture(scope="module", name="board")
def _board():
    return Leaderboard(RESULTS)


@pytest.fixture(scope="module", name="shown")
def _shown(board):
    return content(board)


@pytest.fixture(scope="module", name="opened")
def _opened(shown, tmp_path_factory):
    path = tmp_path_factory.mktemp("board") / "board.html"
    path.write_text(page(shown, LAYOUT), encoding="utf-8")
    return path


def test_every_cell_of_results_is_on_it_once_per_attack(board):
    files = [path.name for path in (RESULTS / "cells").glob("*.json")]
    rows = [row for path in (RESULTS / "cells").glob("*.json") for row in json.loads(path.read_text())]
    on_it = [name.removeprefix("cells/") for entry in board.entries for name in entry.files(RESULTS)]
    assert {*files} <= {*on_it}
    attacked = sum(len(entry.numbers["attacked"]) for entry in board.entries if entry.rows)
    assert attacked == sum(row["attack"] != "none" for row in rows)


def test_a_row_has_the_numbers_of_its_files(board):
    (entry,) = [e for e in board.entries if (*e.model, e.threat) == ("amazon-photo", "gat", "fgai", "ensemble")]
    rows = [
        row
        for seed in range(5)
        for row in json.loads((RESULTS / f"cells/amazon-photo-gat-fgai-{seed}.json").read_text())
    ]
    attacked = [row["metrics"]["f1"] for row in rows if row["attack"] == "ensemble"]
    clean = [row["metrics"]["f1"] for row in rows if row["attack"] == "none"]
    assert entry.value("attacked") == pytest.approx(mean(attacked)) and entry.value("clean") == pytest.approx(
        mean(clean)
    )
    assert entry.value("lost") == pytest.approx(mean(clean) - mean(attacked))
    graded = [row for row in json.loads((RESULTS / "faithful.json").read_text()) if row["explanation"] == "tree"]
    own = [row for row in graded if (row["dataset"], row["backbone"], row["method"]) == entry.model]
    assert entry.text("stable") == f"{sum(row['stable'] for row in own)} of {len(own)}"
    assert sorted(entry.grades) == sorted(row["faithful"] for row in own)


@pytest.mark.parametrize("name", TABLES)
def test_twelve_and_more_cells_of_every_table_are_on_it_with_the_numbers_of_the_table(board, name):
    plan = Plan.read(name)
    entries = {(*entry.model, entry.threat): entry for entry in board.entries}
    compared = {"f1": "attacked", "auc": "attacked", "overlap": "overlap"}
    cells = set()
    for line in table_of(plan, RESULTS / "cells").body:
        for column, text in zip(plan.columns, line[4:], strict=True):
            if column.attack != "none":
                entry = entries[*line[:3], column.attack]
                cells.add(entry.model[:2])
                if column.metric in compared:
                    assert entry.text(compared[column.metric]) == text
    assert len(cells) == len(plan.seeds) * len(plan.backbones) == {"links": 6}.get(name, 12)


def test_a_command_names_the_cells_of_its_row(board):
    ran = [entry for entry in board.entries if command(entry).startswith("fgai bench") and "," not in command(entry)]
    assert len(ran) > 300
    for entry in ran[::7]:
        _, _, name, *words = shlex.split(command(entry))
        only = dict(word.split("=") for word in words if "=" in word)
        cells = Plan.read(name).cells(only)
        assert {f"cells/{cell.name}.json" for cell in cells} == {
            f for f in entry.files(RESULTS) if f.startswith("cells/")
        }


def test_a_method_with_hidden_gradients_is_marked_and_not_compared(board):
    guarded = [entry for entry in board.entries if entry.method == "gnnguard"]
    assert guarded and all(entry.warning and not entry.standings for entry in guarded)


def test_perturbations_are_named_where_they_are_kept(tmp_path):
    rows = [Row("cora", "gat", "mine", 0, {"f1": 0.5}, attack=attack) for attack in ("none", "ensemble")]
    write_rows(tmp_path / "cells/cora-gat-mine-0.json", rows)
    (entry,) = Leaderboard(tmp_path).entries
    assert entry.files(tmp_path) == ["cells/cora-gat-mine-0.json"]
    (tmp_path / "perturbations").mkdir()
    (tmp_path / "perturbations/cora-gat-mine-0.safetensors").touch()
    assert entry.files(tmp_path)[1:] == ["perturbations/cora-gat-mine-0.safetensors"]


@pytest.mark.parametrize("text", ["{}", "[1]", '[{"dataset": "cora"}]', "[", '[{"dataset": 1}]'])
@pytest.mark.parametrize("file", ["faithful.json", "certified.json"])
def test_a_file_that_is_none_is_refused_in_words(tmp_path, file, text):
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=f"{file}.*benchmarks"):
        _ = Leaderboard(tmp_path).entries


def test_a_cell_that_was_never_attacked_and_a_grade_without_numbers_are_shown(tmp_path):
    write_rows(tmp_path / "cells/cora-gat-mine-0.json", [Row("cora", "gat", "mine", 0, {"f1": 0.5, "auc": None})])
    graded = json.loads((RESULTS / "faithful.json").read_text())[-1] | {"explanation": "tree", "necessity": None}
    (tmp_path / "faithful.json").write_text(json.dumps([graded]))
    shown = content(Leaderboard(tmp_path))
    rows = {row["method"]: row for row in shown["rows"]}
    assert (rows["mine"]["threat"], rows["mine"]["values"]["clean"][0]) == ("none", 0.5)
    assert {"necessity", "deletion"}.isdisjoint(rows[graded["method"]]["values"]) and page(shown, LAYOUT)


def test_every_view_has_columns_that_are_explained(shown):
    assert {name for names in VIEWS.values() for name in names} <= {*COLUMNS}
    assert all(column["meaning"] for column in shown["columns"].values())


def body(driver, column):
    """The texts of a column of the table, by its heading."""
    place = 2 + texts(driver, "#board th").index(column)
    return texts(driver, f"#board tbody td:nth-child({place})")


def test_it_filters_and_sorts_by_keyboard(look, opened, shown):
    driver = look(opened)
    rows = [row for row in shown["rows"] if row["threat"] == "ensemble"]
    assert len(body(driver, "method")) == len(rows) >= 48
    driver.find_element("id", "dataset").send_keys("amazon-photo")
    chosen = [row for row in rows if row["dataset"] == "amazon-photo"]
    assert len(body(driver, "method")) == len(chosen)
    for direction in ("descending", "ascending"):
        button = driver.find_element("css selector", '#board th[data-name="attacked"] button')
        driver.execute_script("arguments[0].focus()", button)
        ActionChains(driver).send_keys(Keys.ENTER).perform()
        values = sorted((row["values"]["attacked"][0] for row in chosen), reverse=direction == "descending")
        assert [float(text.split()[0]) for text in body(driver, "attacked")] == pytest.approx(values, abs=6e-4)
        head = driver.find_element("css selector", '#board th[data-name="attacked"]')
        assert head.get_attribute("aria-sort") == direction
        assert driver.execute_script("return document.activeElement.closest('th')?.dataset.name") == "attacked"
    driver.find_element("id", "search").send_keys("2 only")
    assert set(body(driver, "method")) == {
        row["method"] for row in chosen if row["backbone"] == "gatv2" and "only" in row["method"]
    }


def test_it_filters_and_sorts_by_mouse_and_tells_what_a_row_is_made_of(look, opened, shown):
    driver = look(opened)
    Select(driver.find_element("id", "threat")).select_by_value("injection-20x20")
    Select(driver.find_element("id", "dataset")).select_by_value("citeseer")
    Select(driver.find_element("id", "view")).select_by_value("Grades")
    chosen = [row for row in shown["rows"] if (row["dataset"], row["threat"]) == ("citeseer", "injection-20x20")]
    driver.find_element("css selector", '#board th[data-name="necessity"] button').click()
    values = sorted((row["values"]["necessity"][0] for row in chosen), reverse=True)
    assert [float(text.split()[0]) for text in body(driver, "most - random")] == pytest.approx(values, abs=6e-4)
    driver.find_element("xpath", "//button[text()='Show all rows']").click()
    assert texts(driver, "#board p") == [f"{len(shown['rows'])} of {len(shown['rows'])} rows."]
    for name, value in (("dataset", "amazon-photo"), ("backbone", "gat"), ("method", "fgai"), ("threat", "ensemble")):
        Select(driver.find_element("id", name)).select_by_value(value)
    button = driver.find_element("css selector", "#board tbody button")
    button.click()
    told = driver.find_element("css selector", "#board .more").text
    assert button.get_attribute("aria-expanded") == "true"
    for part in ("fgai bench", "0, 1, 2, 3, 4", "closeness", "surrogates", "cells/amazon-photo-gat-fgai-4.json"):
        assert part in told


def test_the_plots_show_what_the_table_shows(look, opened):
    driver = look(opened)
    assert len(driver.find_elements("css selector", "#plots canvas")) == 2
    canvas = driver.find_element("css selector", "#plots canvas")
    before = canvas.screenshot_as_png
    driver.find_element("id", "dataset").send_keys("coauthor-physics")
    assert canvas.screenshot_as_png != before
    labels = driver.execute_script(
        "return [...document.querySelectorAll('#board :is(select, input)')].map((e) => e.labels.length)"
    )
    assert labels == [1] * 7


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_narrow_and_dark_it_scrolls_down_only(driver, look, opened, theme):
    wish = {"name": "prefers-color-scheme", "value": theme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [wish]})
    look(opened)
    size(driver, 400)
    wide, ground = driver.execute_script(
        "return [document.documentElement.scrollWidth, getComputedStyle(document.body).backgroundColor]"
    )
    size(driver, 1200)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert wide <= 400 and ground == {"dark": "rgb(18, 23, 26)", "light": "rgb(255, 255, 255)"}[theme]


def test_names_are_text(look, tmp_path):
    rows = [Row(HOSTILE, HOSTILE, HOSTILE, 0, {"f1": 0.5}, attack=attack) for attack in ("none", HOSTILE)]
    write_rows(tmp_path / "cells/mine.json", rows)
    (tmp_path / "board.html").write_text(page(content(Leaderboard(tmp_path)), LAYOUT), encoding="utf-8")
    driver = look(tmp_path / "board.html")
    assert HOSTILE.split("\u2028")[0] in body(driver, "method")[0]


def test_the_command_of_an_inductive_model_names_the_inductive_plan():
    whole, part = (Cell("cora", "gat", "fgai", 0, inductive=inductive) for inductive in (False, True))
    rows = [Row("cora", "gat", "fgai", 0, {})]
    words = "--only dataset=cora --only backbone=gat --only method=fgai"
    names = {cell.inductive: command(Entry("cora", "gat", cell.label, "strongest", {}, rows)) for cell in (whole, part)}
    assert names == {False: f"fgai bench chosen-links {words}", True: f"fgai bench inductive {words}"}
