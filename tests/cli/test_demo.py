import json
import re
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from fgai import datasets
from fgai.cli import app, demo


@pytest.fixture(name="run")
def _run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FGAI_DATA", str(tmp_path / "data"))
    return lambda *words: CliRunner().invoke(app, ["demo", *map(str, words)])


@pytest.fixture(name="quick")
def _quick(monkeypatch):
    monkeypatch.setattr(demo, "EPOCHS", 2)
    monkeypatch.setattr(demo, "FAITHFUL_EPOCHS", 1)


def test_the_demo_writes_a_picture_and_a_page_without_any_file_of_data(run, quick, tmp_path):
    done = run("--data", "synthetic")
    assert done.exit_code == 0, done.output
    picture, page = tmp_path / "fgai-demo" / "attention.svg", tmp_path / "fgai-demo" / "report.html"
    words = "".join(ElementTree.fromstring(picture.read_text()).itertext())
    assert "Plain GAT" in words and "With FGAI" in words and "10 fake nodes" in words
    shown = json.loads(re.search(r'id="content">(.*?)</script>', page.read_text())[1])  # pyright: ignore
    assert shown["models"] == ["Plain GAT", "With FGAI"]
    assert "Plain GAT: Can it be trusted? " in done.stdout and str(picture.relative_to(tmp_path)) in done.stdout


def test_a_folder_that_cannot_be_written_is_refused_before_the_training(run, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "load", lambda *_, **__: pytest.fail("the work began"))
    (tmp_path / "file").write_text("")
    refused = run("--out", tmp_path / "file")
    assert refused.exit_code == 2 and "cannot be written" in refused.stderr
