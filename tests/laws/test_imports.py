"""Imports go down only, as the rooms of the house are drawn in CONTRIBUTING."""

import ast
from pathlib import Path

import pytest

import fgai

ROOT = Path(fgai.__file__).parent
ROOMS = [  # from the cellar up; a module may import its own room's package and everything below
    {"errors", "registry", "seeding", "files", "progress", "versions", "tracking", "ranks", "intervals"},
    {"graph", "grades"},
    {"divergence", "topk", "attention", "kernels"},
    {"explanations"},
    {"tap"},
    {"acceleration"},
    {"reading"},
    {"adversary", "metrics"},
    {"certificate", "explainer"},
    {"faithfulness"},
    {"methods"},
    {"sanity"},
    {"audit"},
    {"scale"},
    {"report", "plots"},
    {"saved"},
    {"bench"},
    {"figures"},
    {"cli"},
]
LEAVES = {
    "datasets": {"bench", "saved", "cli"},
    "backbones": {"bench", "saved", "cli"},
}  # and who may use them
FLOOR = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
MODULES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def room_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "fgai":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fgai."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (a.name.split(".")[1] for a in node.names if a.name.startswith("fgai."))
        assert not (isinstance(node, ast.ImportFrom) and node.level), "imports are absolute"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path):
    room = room_of(path)
    assert room in FLOOR or room in LEAVES, f"{room} has no floor: draw it in ROOMS"
    for other in imported_rooms(path):
        if other == room:
            continue
        if room in LEAVES:
            assert FLOOR.get(other, 99) <= FLOOR["kernels"], f"{room} is a leaf and may not know {other}"
        elif other in LEAVES:
            assert room in LEAVES[other], f"{room} may not know {other}"
        else:
            assert FLOOR[other] < FLOOR[room] or FLOOR[room] == FLOOR[other] <= 2, f"{room} may not import {other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_tap_knows_pygs_inside(path):
    text = path.read_text()
    knows = any(word in text for word in ("MessagePassing", "__class__", "propagate", "utils import softmax"))
    assert room_of(path) in ("tap", "acceleration") or not knows
