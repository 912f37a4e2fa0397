"""The worked examples of the docs run, and say what the page says."""

import re
from pathlib import Path

import torch

from fgai import datasets
from fgai.backbones import build
from fgai.large import convert

DOCS = Path(__file__).parent.parent / "docs"


def test_the_worked_example_of_the_certificates_is_right():
    page = (DOCS / "certificates.md").read_text()
    example = re.findall(r"## A worked example\n\n```python\n(.*?)```", page, re.DOTALL)[0]
    scope = {}
    exec(example, scope)
    costs, radius, kept = scope["eviction_costs"], scope["certified_radius"], scope["guaranteed_overlap"]
    attention = scope["attention"]
    torch.testing.assert_close(
        costs(attention, k=2).cost, torch.tensor([0.05, 0.30], dtype=torch.double), atol=1e-7, rtol=0
    )
    assert abs(float(radius(attention, k=2)[9]) - 0.05) < 1e-7
    assert float(kept(attention, k=2, radius=0.1)[9]) == 0.5


def test_the_example_of_scale_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = datasets.load("synthetic")
    convert(data, tmp_path / "graph")
    page = (DOCS / "scale.md").read_text()
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0].replace("epochs=5", "epochs=1")
    scope = {"model": build("gat", data)}
    exec(example, scope)
    assert scope["fit"].history and len(scope["seen"].nodes) > 0


def test_the_example_of_the_proofs_runs():
    data = datasets.load("synthetic")
    page = (DOCS / "proofs.md").read_text()
    scope = {"model": build("gat", data), "data": data}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], scope)
    assert scope["proof"].how == "vote" and len(scope["proof"].budget) == data.num_nodes
