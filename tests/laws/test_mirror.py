"""Tests mirror the package: a folder for a subpackage, `test_<module>.py` for a module of its own."""

from pathlib import Path

import fgai

TESTS, PACKAGE = Path(__file__).parents[1], Path(fgai.__file__).parent
ELSEWHERE = {"laws", "hostile", "docs", "readme"}  # of every module, and of the pages


def test_every_test_stands_where_its_subject_does():
    modules = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.glob("*/**/test_*.py")}
    files = {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")}
    assert folders | files <= modules | ELSEWHERE, "move these tests to where their module is"
    assert not any((PACKAGE / name).is_dir() for name in files), "these belong into the folder of their subpackage"


def test_no_two_files_of_tests_have_one_name():
    names = [path.name for path in TESTS.rglob("*.py")]
    assert len(names) == len(set(names)), "pytest imports test files by their bare names"
