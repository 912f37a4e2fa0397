"""What CONTRIBUTING says of the tree is true: the map, the lists of what to read, the sizes; imports go down only."""

import ast
import importlib
import inspect
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

import fgai

ROOT = Path(fgai.__file__).parent
PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
LEAVES = {"backbones", "datasets"}  # they import nothing above the kernels, and only these import them:
USERS_OF_LEAVES = {"bench", "saved", "cli"}
MODULES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def layers_of(page):
    """The layers of the map, top first: the names at the start of each line, up to two spaces and the description."""
    block = re.search(r"```text\n(.*?)```", page, re.S).group(1)
    names = [re.split(r"\s{2,}", line)[0].split() for line in block.splitlines() if line.strip()]
    return [[name.rstrip("/") for name in line] for line in names]


LAYERS = layers_of(PAGE.read_text())
LEVEL = {name: -number for number, line in enumerate(LAYERS) for name in line}  # higher is further up


def part_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fgai":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fgai."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("fgai."))
        assert not (isinstance(node, ast.ImportFrom) and node.level), "imports are absolute"


def test_the_map_names_every_part_of_the_package_once():
    named = [name for line in LAYERS for name in line]
    assert sorted(named) == sorted({part_of(path) for path in MODULES})


def test_a_folder_is_marked_as_one():
    block = re.search(r"```text\n(.*?)```", PAGE.read_text(), re.S).group(1)
    for path in sorted(ROOT.iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            assert re.search(rf"(^|\s){path.name}/", block, re.M), f"{path.name} is a folder: write {path.name}/"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path):
    part = part_of(path)
    for other in imported_parts(path):
        if other == part:
            continue
        if part in LEAVES:
            assert LEVEL[other] <= LEVEL["kernels"] or other in LEAVES, f"{part} is a leaf and may not import {other}"
        elif other in LEAVES:
            assert part in USERS_OF_LEAVES, f"{part} may not import {other}"
        else:
            assert LEVEL[other] < LEVEL[part], f"{part} may not import {other}: the map puts it above or beside"


KNOW_PYG = ("tap.py", "attending.py", "recording.py", "patching.py", "kernels/pyg.py", "backbones/soft_median.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_tap_and_the_kernels_know_pygs_internals(path):
    text = path.read_text()
    knows = any(word in text for word in ("MessagePassing", "__class__", "propagate", "utils import softmax"))
    assert str(path.relative_to(ROOT)) in KNOW_PYG or not knows


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_above_reading_imports_the_kernels(path):
    if LEVEL[part_of(path)] > LEVEL["reading"]:
        assert "kernels" not in imported_parts(path), "read a model with open_reader or training_reader"


def reading_lists(page):
    """The functions to read for each call, from the table under "Where to start reading"."""
    section = page.split("## Where to start reading")[1].split("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| `")]
    return {call.strip(" `"): re.findall(r"`([^`]+)`", names) for _, call, names, _ in rows}


def resolved(name):
    """The object that a dotted name inside the package stands for: the longest module first, then attributes."""
    parts = name.split(".")
    for split in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module(".".join(["fgai", *parts[:split]]))
        except ModuleNotFoundError:
            continue
        for part in parts[split:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


READING = reading_lists(PAGE.read_text())


def test_three_calls_can_be_followed_in_twelve_functions_each():
    assert set(READING) == {"fgai.audit", "FGAI.fit", "fgai bench table2"}
    for call, names in READING.items():
        assert 1 <= len(names) == len(set(names)) <= 12, call


@pytest.mark.parametrize("name", [name for names in READING.values() for name in names])
def test_what_is_to_be_read_is_a_function_of_the_package(name):
    function = inspect.unwrap(resolved(name))
    assert callable(function) and function.__module__.startswith("fgai.")
    assert f"fgai.{name}" == f"{function.__module__}.{function.__qualname__}", "name it where it is defined"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_is_longer_than_one_reads_at_once(path):
    assert len(path.read_text().splitlines()) <= 320


def test_the_stated_size_of_the_package_is_its_size():
    """The page says how many modules there are and how long the middle one is; a tenth of drift is let pass."""
    stated = re.search(r"about (\d+) modules.*?median of about (\d+) lines", PAGE.read_text(), re.S)
    assert stated is not None
    lines = [len(path.read_text().splitlines()) for path in MODULES if path.name != "__init__.py"]
    assert len(lines) == pytest.approx(int(stated[1]), rel=0.1)
    assert statistics.median(lines) == pytest.approx(int(stated[2]), rel=0.1)
