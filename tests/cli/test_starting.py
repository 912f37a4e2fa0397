import subprocess
import sys

import pytest
from typer.testing import CliRunner

from fgai.auditing import AuditReport
from fgai.cli import app

SMALL = ["--set", "nodes=2", "--set", "edges=4", "--set", "steps=1", "--seeds", "1"]


@pytest.fixture(name="run")
def _run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FGAI_DATA", str(tmp_path / "data"))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    yield lambda *words: CliRunner().invoke(app, [str(word) for word in words])
    sys.modules.pop("mine", None)


def test_init_writes_a_model_that_every_command_takes_in_an_empty_folder(run, tmp_path):
    assert run("init").exit_code == 0
    untrained = run("audit", "--model", "mine:build", *SMALL)
    assert untrained.exit_code == 0, untrained.output
    subprocess.run([sys.executable, "mine.py"], check=True, capture_output=True)
    own = ["--model", "mine:build", "--weights", "w.safetensors"]
    assert run("audit", *own, *SMALL, "--out", "audit.json").exit_code == 0
    assert AuditReport.load(tmp_path / "audit.json").clean["f1"] > 0.8  # it was trained, and the weights are taken
    for words in (["certify"], ["fit", "--epochs", "1", "--out", "faithful"], ["report", *SMALL]):
        done = run(*words, *own)
        assert done.exit_code == 0, done.output
    assert (tmp_path / "report.html").exists() and (tmp_path / "faithful" / "weights.safetensors").exists()


def test_init_overwrites_nothing(run, tmp_path):
    (tmp_path / "mine.py").write_text("mine")
    refused = run("init")
    assert refused.exit_code == 2 and "exists already" in refused.stderr and "Traceback" not in refused.output
    assert (tmp_path / "mine.py").read_text() == "mine"
    assert run("init", tmp_path / "elsewhere").exit_code == 0 and (tmp_path / "elsewhere" / "mine.py").exists()


def test_a_model_without_a_graph_beside_it_needs_one(run, tmp_path):
    (tmp_path / "mine.py").write_text("import torch\n\ndef build():\n    return torch.nn.Linear(1, 1)\n\ndata = 3\n")
    refused = run("audit", "--model", "mine:build")
    assert refused.exit_code == 2 and "which graph? mine has no function `data`" in refused.stderr
