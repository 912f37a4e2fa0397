"""A reader who runs README and the quickstart sees what these pages show."""

import re
from pathlib import Path

import pytest

from readme import PAGES, ROOT, differences, examples, outputs


@pytest.mark.slow  # CI runs both pages with the wheel, see .ci/newuser
@pytest.mark.parametrize("page", PAGES)
def test_every_example_runs_in_an_empty_folder_and_prints_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.setenv("FGAI_DATA", str(tmp_path / "data"))
    (folder := tmp_path / "empty").mkdir()
    for example, printed in outputs((ROOT / page).read_text(), folder):
        if example.shown is not None:
            assert not differences(example.shown, printed)


def test_a_page_shows_the_output_of_its_examples():
    for page in PAGES:
        assert any(example.shown for example in examples((ROOT / page).read_text()))


def test_the_picture_is_above_the_first_heading_of_readme_and_every_link_leads_to_a_file():
    text = (ROOT / "README.md").read_text()
    targets = re.findall(r"\]\(([^)#]+)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    files = [target for target in targets if not target.startswith("http")]
    assert "docs/hero.svg" in files and all((ROOT / file).exists() for file in files), files
    assert text.index("docs/hero.svg") < text.index("\n## ")


def test_the_badges_say_what_the_package_says():
    text, project = (ROOT / "README.md").read_text(), (ROOT / "pyproject.toml").read_text()
    versions = re.findall(r"Programming Language :: Python :: (3\.\d+)", project)
    (pythons,) = re.findall(r"python-([\d._%C|]+)-", text)
    assert re.findall(r"3\.\d+", pythons) == versions
    assert "licence-MIT-" in text and 'license = "MIT"' in project and (Path(ROOT) / "LICENSE").exists()
