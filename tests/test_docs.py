"""The worked examples of the docs run, and say what the page says."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch
from torch_geometric.nn.models import GAT

from fgai import audit, datasets, read
from fgai.adversaries import ADVERSARIES, GAINS, THREATS
from fgai.backbones import BACKBONES, build
from fgai.datasets import DATASETS
from fgai.datasets.graphs import MUTAGENICITY, named
from fgai.large import convert
from fgai.methods import METHODS
from fgai.metrics import METRICS
from fgai.trial import Trial
from loose import loose
from worlds import answers, change, films, injected, model_of, molecules, shuffled, small

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
    scope: dict[str, Any] = {"model": build("gat", data)}
    exec(example, scope)
    assert scope["fit"].history and len(scope["part"].nodes) > 0


def test_the_model_with_a_norm_of_the_page_on_threats_runs():
    page = (DOCS / "threats.md").read_text()
    scope: dict[str, Any] = {"torch": torch, "GAT": GAT}
    exec(next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "LayerNorm" in code), scope)
    data = datasets.load("synthetic")
    model = METHODS["vanilla"](epochs=2).fit(scope["NormedGAT"](data.num_features, 4), data).model
    large = data.clone()
    large.x = 1e6 * loose(data).x  # its first layer norm undoes that
    assert read(model, data).attention.keys() == {"gat.convs.0", "gat.convs.1"}
    assert float((read(model, large).logits - read(model, data).logits).abs().max()) < 10


def test_the_example_of_graphs_runs():
    if not (Path(os.environ.get("FGAI_RAW", "")) / "TUDataset" / "MUTAG").is_dir():
        pytest.skip("no raw files")
    page = (DOCS / "graphs.md").read_text()
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    *parts, last = re.sub(r"epochs=\d+", "epochs=1", example).replace("seeds=3", "seeds=1").splitlines()
    assert last.startswith("print(fgai.compare(")
    scope: dict[str, Any] = {}
    exec("\n".join(parts), scope)
    assert scope["report"].adversary["name"] == "graph-injection"
    assert type(scope["faithful"]) is type(scope["vanilla"])


def test_the_example_of_typed_graphs_runs():
    page = (DOCS / "typed.md").read_text()
    example = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0].replace("seeds=3", "seeds=1")
    example = re.sub(r"epochs=\d+", "epochs=1", example).replace("nodes=10, edges=10", "nodes=2, edges=3, steps=1")
    scope: dict[str, Any] = {"films": films}
    exec(example.replace('fgai.datasets.load("imdb")', "films()"), scope)
    assert scope["report"].adversary["name"] == "typed-injection"
    assert ("director", "movie") in scope["explained"].by_type()


@pytest.fixture
def extended(monkeypatch):
    """Runs the code of one section of extend.md; what it registers is gone after the test."""
    for registry in (METRICS, ADVERSARIES, THREATS, METHODS, DATASETS, BACKBONES):
        for table in ("_entries", "_about"):
            monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    page = (DOCS / "extend.md").read_text()

    def run(section):
        (code,) = re.findall(rf"## {section}\n(?:(?!\n## ).)*?```python\n(.*?)```", page, re.DOTALL)
        scope = {"__name__": "extended"}
        exec(compile(code, "extend.md", "exec", dont_inherit=True), scope)
        return scope

    return run


def measured(name, graph, now):
    read, clean = answers(model_of("gat", graph), graph)
    after = answers(model_of("gat", graph), now)[1]
    return METRICS[name].compute(Trial(read, now, clean, after, graph.y, graph.test_mask))


def test_the_metric_of_extend_is_exact_and_blind_to_the_order_of_edges(extended):
    extended("A metric")
    graph = small()
    attacked = injected(graph).apply(graph)
    assert METRICS.about("flipped").endswith("(lower is better)")
    assert measured("flipped", graph, graph) == 0
    assert 0 < measured("flipped", graph, attacked) == measured("flipped", graph, shuffled(attacked)) <= 1
    report = audit(model_of("gat", graph), graph, seeds=1)
    assert report.clean["flipped"] == 0 <= report.attacked["flipped"].mean <= 1


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_the_attack_of_extend_keeps_its_budget_and_its_seed(extended, sparse):
    adversary = extended("An attack")["FeatureErasure"](nodes=3, tries=4)
    graph = small(sparse)
    read, clean = answers(model_of("gat", graph), graph)
    gain = GAINS["kl"](clean)
    found, again, other = (a(read, graph, gain) for a in (adversary, adversary, replace(adversary, seed=1)))
    before, after = (g.x.to_dense() if sparse else g.x for g in (graph, found.graph))
    moved = (before != after).any(1)
    assert ADVERSARIES["feature-erasure"] is type(adversary)
    assert 0 < moved.sum() <= 3 and not after[moved].any()
    assert float(gain(found.detach())) > float(gain(clean))
    assert change(found.perturbation) == change(again.perturbation) != change(other.perturbation)
    assert audit(model_of("gat", graph), graph, "erasure", seeds=1).adversary["threat"] == "erasure"


def test_the_method_of_extend_trains_a_copy_decided_by_its_seed(extended):
    extended("A method")
    graph, model = small(), model_of("gat", small())
    before = [p.clone() for p in model.parameters()]
    one, two, other = (METHODS["label-smoothing"](epochs=3, seed=seed).fit(model, graph) for seed in (0, 0, 1))
    assert [list(epoch.terms) for epoch in one.history] == [["label"]] * 3
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert type(one.model) is type(model) and one.history == two.history != other.history


def test_the_dataset_of_extend_is_split_by_its_seed(extended, tmp_path):
    extended("A dataset")
    one, two, other = (datasets.load("karate", seed=seed, root=tmp_path) for seed in (0, 0, 1))
    assert bool((one.train_mask.int() + one.val_mask.int() + one.test_mask.int() == 1).all()) and one.num_nodes == 34
    assert torch.equal(one.test_mask, two.test_mask) and not torch.equal(one.test_mask, other.test_mask)
    METHODS["vanilla"](epochs=2).fit(build("gat", one), one)


def test_the_backbone_of_extend_is_built_by_name_and_read(extended):
    extended("A backbone")
    sparse = small(sparse=True)
    METHODS["vanilla"](epochs=2).fit(build("supergat", sparse), sparse)  # as the bench does
    graph = BACKBONES["supergat"].prepare(small())
    one, two, other = (loose(build("supergat", graph, seed=seed)) for seed in (0, 0, 1))
    assert torch.equal(one.conv1.att_l, two.conv1.att_l) and not torch.equal(one.conv1.att_l, other.conv1.att_l)
    reading = read(one, graph)
    assert reading.logits.shape == (40, 3) and list(reading.attention) == ["conv1", "conv2"]
    sums = torch.zeros(40).index_add_(0, reading.explanation.target, reading.explanation.weight[:, 0])
    torch.testing.assert_close(sums, torch.ones(40))


def test_the_example_of_the_proofs_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it saves a file
    data = datasets.load("synthetic")
    page = (DOCS / "proofs.md").read_text()
    scope = {"model": build("gat", data), "data": data}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], scope)
    assert scope["proof"].how == "vote" and len(scope["proof"].budget) == data.num_nodes


def test_every_page_ends_by_pointing_to_another():
    nav = re.findall(r"[\w/-]+\.(?:md|ipynb)", (DOCS.parent / "mkdocs.yml").read_text().split("nav:")[1])
    pages = [path for path in DOCS.rglob("*") if path.suffix in (".md", ".ipynb")]
    papers = {f"paper/{path.name}" for path in DOCS.parent.glob("paper/*.md")}  # the hook of MkDocs adds them
    assert {path.relative_to(DOCS).as_posix() for path in pages} | papers == {*nav}
    for path in pages:
        end = re.search(r"Next: \[[^]]+\]\(([^)#]+)", last_paragraph(path))
        assert end, f"{path.name} does not end with `Next: [a page](its file)`"
        assert (path.parent / end[1]).resolve() in pages and (path.parent / end[1]).resolve() != path, path.name


def last_paragraph(path):
    if path.suffix == ".ipynb":
        return "".join(cells(path)[-1]["source"]).strip().split("\n\n")[-1]
    return path.read_text().strip().split("\n\n")[-1]


def cells(path):
    return json.loads(path.read_text())["cells"]


SMALL = {
    "own_model": "EPOCHS, FAITHFUL_EPOCHS = 2, 1",
    "fraud": "EPOCHS, FAITHFUL_EPOCHS = 2, 1\nFOLDER = 'missing'",
    "molecules": "EPOCHS, FAITHFUL_EPOCHS = 1, 1\nTESTED, RETRAINED = 3, 4",
    "movies": "EPOCHS, FAITHFUL_EPOCHS = 1, 1\nDIRECTORS, MOVIES_EACH, DELETIONS = 2, 3, 2",
    "paper": "DATASET, EPOCHS, METHODS = 'synthetic', 2, ('vanilla', 'fgai')",
}
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def small_graphs(name, **settings):
    """What the notebooks load by name: small graphs of the same kind, without raw files."""
    if name == "imdb":
        data = films()
        data.class_names = ["action", "comedy", "drama"]
        return data
    if name == "mutagenicity":
        graphs = molecules()
        for number, graph in enumerate(graphs):
            graph.edge_attr = torch.eye(3)[torch.arange(graph.num_edges) % 3]
            graph.edge_mask = torch.arange(graph.num_edges) < 2
            graph.train_mask, graph.test_mask = torch.tensor([number < 3]), torch.tensor([number >= 3])
        return named(loose(Batch.from_data_list(graphs)), **MUTAGENICITY)
    return LOAD(name, **settings)


LOAD = datasets.load


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_on_small_settings(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "load", small_graphs)
    scope = {"__name__": "__main__"}
    for cell in cells(path):
        if cell["cell_type"] == "code":
            is_settings = "parameters" in cell["metadata"].get("tags", ())
            exec(SMALL[path.stem] if is_settings else "".join(cell["source"]), scope)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_has_the_outputs_of_a_run_without_errors(path):
    code = [cell for cell in cells(path) if cell["cell_type"] == "code"]
    kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert kinds <= {"stream", "execute_result", "display_data"} and kinds
    assert path.stat().st_size < 200_000
    assert not re.search(r"/(work|tmp|home|root)/", path.read_text())


def test_the_pictures_are_those_of_the_committed_results():
    command = [sys.executable, "benchmarks/pictures.py", "--check"]
    done = subprocess.run(command, cwd=DOCS.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
