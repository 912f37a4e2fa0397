"""The files of a release agree with each other, and workflows run only code that is named by its hash."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_the_version_is_the_same_everywhere():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == PROJECT["version"]
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == PROJECT["version"]  # pyright: ignore


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_their_hash_with_the_version_beside_it(path):
    used = re.findall(r"uses: *(.*)", path.read_text())
    assert used and all(re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action) for action in used), used


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_only_read_unless_a_job_says_otherwise(path):
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}


def test_the_tests_run_on_every_python_that_is_promised():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    promised = [name.split(" :: ")[-1] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == promised and PROJECT["requires-python"] == ">=3.11"
    (floor,) = (line.removeprefix("torch>=") for line in PROJECT["dependencies"] if line.startswith("torch>="))
    assert jobs["lowest"]["strategy"]["matrix"]["torch"][0].startswith(floor)


def test_no_secret_is_stored_for_publishing():
    text = (ROOT / ".github/workflows/release.yml").read_text()
    assert "secrets." not in text and "attest-build-provenance" in text and "id-token: write" in text


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_every_file_of_the_forge_is_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text()), dict)
