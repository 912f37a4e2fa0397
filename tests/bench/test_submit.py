"""A method, an attack and a model join the bench from a file; those that break a rule are refused with the reason."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_model
from torch import nn
from torch_geometric.nn import GATConv
from typer.testing import CliRunner

from fgai import datasets, saved
from fgai.adversaries import ADVERSARIES, THREATS, AttackEnsemble
from fgai.backbones import BACKBONES
from fgai.bench.plan import Cell, Column, Plan
from fgai.bench.results import CellStore, Row
from fgai.bench.run import Settings
from fgai.bench.submit import submit
from fgai.bench.tables import table_of, worst_rows
from fgai.cli import app
from fgai.datasets import DATASETS
from fgai.errors import DataError, SettingError
from fgai.methods import METHODS, Vanilla
from worlds import community

EXAMPLES = Path(__file__).parents[2] / "examples" / "join"
PLAN = Plan(
    "tiny",
    "A tiny table",
    seeds={"tiny": 1},
    backbones=("gat",),
    methods=("vanilla",),
    columns=(Column("F1", "f1", "none"), Column("F1, 20x20", "f1", "injection-20x20")),
)
QUICK = Settings(epochs=10)
HEAD = """
import copy, os
from dataclasses import dataclass, replace
import torch
from torch import nn
from fgai.methods import METHODS, Method, Vanilla

class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x, edge_index):
        return {output}

@METHODS.register("cheat")
@dataclass(frozen=True)
class Cheat(Method):
    '''A method that breaks a rule.'''
    epochs: int = 10
    seed: int = 0

    def fit(self, model, data, *, call=None, checkpoint=None):
        data = copy.copy(data)
        {before}
        fit = Vanilla(epochs=self.epochs, seed=self.seed).fit(model, data)
        {after}
        return replace(fit, model=Wrapped(fit.model))
"""
HONEST = {"output": "self.inner(x, edge_index)", "before": "pass", "after": "pass"}
NOISE = "next(fit.model.parameters()).data.add_(torch.randn(1, generator=torch.Generator().manual_seed({seed})))"
CHEATS = {
    "detached": ({"output": "self.inner(x.detach(), edge_index)"}, "visible gradients", "gradients are hidden"),
    "rounded": ({"output": "self.inner((50 * x).round() / 50, edge_index)"}, "visible gradients", "are hidden"),
    "misleading": (
        {"output": "self.inner(2 * x.detach() - x, edge_index)"},
        "visible gradients",
        "A gradient attack is weaker than",
    ),
    "random": (
        {"output": "self.inner(x, edge_index) + 1e-4 * torch.randn(len(x), 1)"},
        "deterministic",
        "two passes on one graph differ",
    ),
    "peeks": (
        {"before": "data.train_mask = data.train_mask | data.test_mask"},
        "no peeking at test labels",
        "`fit` uses `y` of the test items",
    ),
    "unseeded": (
        {"after": NOISE.format(seed="int.from_bytes(os.urandom(4))")},
        "deterministic",
        "two runs of `fit` with one seed give different models",
    ),
    "fails": ({"before": "data.x.nothing"}, "runs", "AttributeError"),
}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    """A small dataset; what a test registers is gone after it."""
    for registry in (METHODS, ADVERSARIES, THREATS, DATASETS):
        for table in ("_entries", "_about"):
            monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    few = AttackEnsemble(nodes=20, edges=(20,), surrogates=("cross-entropy",), schedules=((10, 0.3),))
    monkeypatch.setattr("fgai.bench.rules.WHITE_BOX", few)
    DATASETS.add("tiny", lambda root, seed: community(), "a small graph")


def written(folder, **parts):
    file = folder / "method.py"
    file.write_text(HEAD.format(**{**HONEST, **parts}))
    return file


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory):
    """Where the vanilla model is kept."""
    return tmp_path_factory.mktemp("submitted")


def test_an_honest_method_joins(folder, tmp_path):
    done = submit(written(tmp_path), "mine", PLAN, folder, settings=QUICK)
    assert done.ok and done.kind == "method", done.text()
    assert [check.rule for check in done.checks] == ["deterministic", "no peeking at test labels", "visible gradients"]
    assert "| tiny | gat | mine | 1 | " in done.table
    rows = CellStore(folder).rows(Cell("tiny", "gat", "mine", 0))
    assert {row.attack for row in rows} == {"none", "injection-20x20"}


def test_an_inductive_method_is_not_trained_on_test_nodes(tmp_path, monkeypatch):
    sizes, fit = [], Vanilla.fit

    def recorded(self, model, data, **settings):
        sizes.append(int(data.num_nodes))
        return fit(self, model, data, **settings)

    monkeypatch.setattr(Vanilla, "fit", recorded)
    done = submit(written(tmp_path), "mine", replace(PLAN, inductive=True), tmp_path, settings=QUICK)
    graph = community()
    assert done.ok and {*sizes} == {int((~graph.test_mask).sum())} != {graph.num_nodes}, done.text()


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_method_that_breaks_a_rule_is_refused_with_the_reason(folder, tmp_path, cheat):
    parts, rule, reason = CHEATS[cheat]
    done = submit(written(tmp_path, **parts), "mine", PLAN, folder, settings=QUICK)
    (broken,) = [check for check in done.checks if check.passed is False]
    assert not done.ok and broken.rule == rule and reason in broken.sentence, done.text()
    assert not done.table and not (folder / "tiny-gat-mine-0.json").exists()


def test_our_own_attack_from_a_file_equals_the_threat_model_and_the_worst_stands_in_the_table(folder, tmp_path):
    (tmp_path / "attack.py").write_text(
        "from dataclasses import dataclass\nfrom fgai.adversaries import ADVERSARIES, NodeInjection\n\n"
        "@ADVERSARIES.register('more-steps')\n@dataclass(frozen=True)\n"
        "class MoreSteps(NodeInjection):\n    '''More steps.'''\n    steps: int = 20\n    step: float = 0.3\n"
    )
    done = submit(tmp_path / "attack.py", "mine", PLAN, folder, threat="injection-20x20", settings=QUICK)
    assert done.ok and done.kind == "attack" and all(check.passed for check in done.checks), done.text()
    rows = {row.attack: row for row in CellStore(folder).rows(PLAN.cells()[0])}
    lowest = min(float(rows[attack].metrics["f1"] or 0) for attack in ("mine", "injection-20x20"))
    assert rows["mine"].settings["budget"] == "injection-20x20"
    assert table_of(PLAN, folder).body[0][-1] == f"{lowest:.3f}"
    assert "more-steps" not in done.table and "| tiny-gat-vanilla-0 | " in done.table


@pytest.mark.parametrize(
    ("body", "rule", "reason"),
    [
        ("nodes: int = 21", "one budget for all", "injects 21 nodes, and the budget is 20"),
        ("box: tuple[float, float] = (-2.0, 2.0)", "one budget for all", "outside the feature set"),
        (
            "def start(self, site):\n        return torch.rand(20, site.box.low.numel())",
            "deterministic",
            "two runs with one seed give different perturbations",
        ),
        (
            "def start(self, site):\n        MODELS[0].conv2.bias.data.add_(1)\n        return super().start(site)\n"
            "    def __call__(self, read, graph, gain):\n        MODELS.append(read.model)\n"
            "        return super().__call__(read, graph, gain)",
            "leaves no trace",
            "changes the model or the graph",
        ),
    ],
)
def test_an_attack_that_breaks_a_rule_is_refused_with_the_reason(folder, tmp_path, body, rule, reason):
    (tmp_path / "attack.py").write_text(
        "import torch\nfrom dataclasses import dataclass\nfrom fgai.adversaries import ADVERSARIES, NodeInjection\n"
        "MODELS = []\n\n@ADVERSARIES.register('cheat')\n@dataclass(frozen=True)\n"
        f"class Cheat(NodeInjection):\n    '''It cheats.'''\n    steps: int = 12\n    step: float = 0.4\n    {body}\n"
    )
    done = submit(tmp_path / "attack.py", "mine", PLAN, folder, threat="injection-20x20", settings=QUICK)
    broken = {check.rule: check.sentence for check in done.checks if check.passed is False}
    assert reason in broken[rule] and not done.table, done.text()


MODEL = """
from torch_geometric.nn import GATConv
from torch import nn
DATASET = "tiny"

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GATConv(16, 8), GATConv(8, 3)

    def forward(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

build = Net
"""


def test_a_model_joins_with_its_weights_and_the_labels_cannot_be_checked(folder, tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.conv2 = GATConv(16, 8), GATConv(8, 3)

    (tmp_path / "model.py").write_text(MODEL)
    with pytest.raises(DataError, match=r"model\.safetensors"):
        submit(tmp_path / "model.py", "mine", PLAN, folder, settings=QUICK)
    save_model(Net(), str(tmp_path / "model.safetensors"))
    done = submit(tmp_path / "model.py", "mine", PLAN, folder, settings=QUICK)
    assert done.ok and done.kind == "model" and "| tiny | own | mine | 1 | " in done.table, done.text()
    assert [check.passed for check in done.checks] == [True, None, True]


def test_a_folder_of_fgai_train_joins(folder, tmp_path):
    model = BACKBONES["gat"](16, 3)
    saved.save(tmp_path / "model", model, backbone="gat", features=16, classes=3, data="tiny", seed=0)
    done = submit(tmp_path / "model", "mine", PLAN, folder, settings=QUICK)
    assert done.ok and "| tiny | gat | mine | 1 | " in done.table, done.text()


@pytest.mark.parametrize("name", ["fgai", "strongest", "../mine", ""])
def test_a_name_that_is_taken_or_no_name_is_refused(tmp_path, name):
    with pytest.raises(SettingError, match="is taken, or cannot be part of a file name"):
        submit(written(tmp_path), name, PLAN, tmp_path)


@pytest.mark.parametrize("name", ["fgai-paper", "at-inductive", "mine-inductive"])
def test_a_name_whose_files_could_be_those_of_another_cell_is_refused(tmp_path, name):
    with pytest.raises(SettingError, match="reads as a preset of another method"):
        submit(written(tmp_path), name, PLAN, tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"), [("x = 1", "registers 0 methods"), ("1 / 0", "ZeroDivisionError"), ("=", "SyntaxError")]
)
def test_a_file_that_holds_nothing_is_refused(tmp_path, text, reason):
    (tmp_path / "mine.py").write_text(text)
    told = CliRunner().invoke(
        app, ["bench", "submit", str(tmp_path / "mine.py"), "--as", "mine", "--out", str(tmp_path / "out")]
    )
    assert told.exit_code == 2 and reason in told.stderr, told.output
    with pytest.raises(DataError, match="is not a Python file"):
        submit(tmp_path / "mine.safetensors", "mine", PLAN, tmp_path)


def test_the_stronger_attack_on_an_explanation_moves_it_more():
    rows = [
        Row("d", "b", "m", 0, {"f1": f1, "g_jsd": moved}, attack=attack, settings={"budget": budget})
        for attack, budget, f1, moved in (("explanation", "", 0.5, 0.2), ("a", "explanation", 0.9, 0.3))
    ]
    assert [row.attack for row in worst_rows(rows, "explanation")] == ["a"]
    assert [row.attack for row in worst_rows(rows, "a")] == ["a"] and worst_rows(rows, "strongest") == []


def test_the_examples_are_whole(tmp_path):
    """`.ci/newuser` runs them with the wheel; here their files are read."""
    shutil.copytree(EXAMPLES, tmp_path / "join")
    assert Plan.read(str(tmp_path / "join" / "plan.toml")).cells()[0].dataset in datasets.DATASETS
    words = (EXAMPLES / "README.md").read_text()
    assert all(file.name in words for file in EXAMPLES.iterdir() if file.suffix in (".py", ".toml"))
