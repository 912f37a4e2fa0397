import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_model
from sklearn.metrics import f1_score
from torch_geometric.nn.models import GAT
from typer.testing import CliRunner

from fgai import Voted, certify, datasets, saved
from fgai.adversaries import ADVERSARIES, THREATS, NodeInjection, Threat
from fgai.auditing import AuditReport
from fgai.backbones import BACKBONES, build
from fgai.calling import call_by_signature
from fgai.certificates import Links
from fgai.cli import app
from fgai.datasets import DATASETS
from fgai.methods import METHODS
from fgai.metrics import METRICS
from loose import loose
from worlds import molecule_batch, named_molecules


@pytest.fixture(name="run")
def _run(tmp_path, monkeypatch):
    monkeypatch.setenv("FGAI_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "300")
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_ls_lists_every_entry_of_every_registry_with_what_it_is(run):
    lines = [line.split() for line in run("ls").stdout.splitlines()]
    for registry in (DATASETS, BACKBONES, METHODS):
        for name in registry:
            assert [registry.kind, name, *registry.about(name).split()] in lines


def test_ls_lists_one_kind_by_its_plural_or_singular(run):
    for word in ("datasets", "dataset"):
        kinds = {line.split()[0] for line in run("ls", word).stdout.splitlines()[1:]}
        assert kinds == {"dataset"}
    wrong = run("ls", "adversry")
    assert wrong.exit_code == 2 and "did you mean 'adversaries'?" in wrong.stderr and wrong.stdout == ""


def test_json_is_all_that_the_standard_output_gets(run, model, tmp_path):
    entries = json.loads(run("ls", "metrics", "--json").stdout)
    assert [entry["name"] for entry in entries] == list(METRICS) and {entry["kind"] for entry in entries} == {"metric"}
    audited = run("audit", model, *ATTACK, "--json", "--out", tmp_path / "a.json")
    assert json.loads(audited.stdout) == json.loads((tmp_path / "a.json").read_text())
    certified = run("certify", model, "--json", "--out", tmp_path / "c.json")
    assert json.loads(certified.stdout) == json.loads((tmp_path / "c.json").read_text())
    reported = run("report", model, *ATTACK, "--json", "--out", tmp_path / "r.html")
    assert list(json.loads(reported.stdout)["reports"]) == ["gat vanilla"] and "r.html" in reported.stderr


@pytest.mark.parametrize("backbone", BACKBONES)
def test_a_trained_model_is_read_back_with_the_figures_that_were_reported(run, tmp_path, backbone):
    out, kind = tmp_path / "model", backbone.rpartition("-")[2]
    name = {"links": "synthetic-links", "graphs": "worlds:molecule_batch"}.get(kind, "synthetic")
    done = run("train", "--data", name, "--backbone", backbone, "--epochs", 3, "--seed", 1, "--out", out)
    assert done.exit_code == 0
    model, manifest = saved.load(out).model, saved.load(out).manifest
    graph = BACKBONES[backbone].prepare(molecule_batch() if kind == "graphs" else datasets.load(name, seed=1))
    with torch.no_grad():
        answer = call_by_signature(model, graph).argmax(1)
    for name, mask in (("f1", graph.test_mask), ("val_f1", graph.val_mask)):
        assert manifest["metrics"][name] == f1_score(graph.y[mask], answer[mask], average="micro")
    assert f"test micro-F1 {manifest['metrics']['f1']:.3f}, saved in {out}" in done.stdout
    assert manifest["data_sha256"] == datasets.fingerprint(graph)
    assert manifest["method"]["epochs"] == 3


def test_another_graph_than_that_of_training_is_noted(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("changed.py").write_text(
        "from fgai import datasets\n"
        "def graph():\n"
        "    data = datasets.load('synthetic', seed=0)\n"
        "    data.y[0] = (data.y[0] + 1) % (int(data.y.max()) + 1)\n"
        "    return data\n"
    )
    run("train", "--data", "synthetic", "--epochs", 1, "--out", tmp_path / "model")
    for command in (("audit", tmp_path / "model", *ATTACK), ("report", tmp_path / "model", *ATTACK, "--out", "r.html")):
        assert "is not the graph that" not in run(*command).stderr
        other = run(*command, "--data", "changed:graph")
        assert other.exit_code == 0 and "note: changed:graph is not the graph that" in other.stderr


def test_the_command_gives_the_logits_of_the_same_training_in_python(run, tmp_path):
    run("train", "--data", "synthetic", "--epochs", 3, "--seed", 5, "--out", tmp_path / "model")
    graph = datasets.load("synthetic", seed=5)
    fit = METHODS["vanilla"](epochs=3, seed=5).fit(build("gat", graph, seed=5), graph)
    back = saved.load(tmp_path / "model").model
    assert torch.equal(call_by_signature(back, graph), call_by_signature(fit.model, graph))


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        (("--data", "croa"), "did you mean 'cora'?"),
        (("--data", "synthetic", "--backbone", "gatt"), "did you mean 'gat'?"),
    ],
    ids=["data", "backbone"],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_nothing_is_written(run, tmp_path, asked, hint):
    done = run("train", *asked, "--out", tmp_path / "model")
    assert done.exit_code == 2
    assert hint in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "model").exists()


def test_weights_changed_after_training_are_refused(run, tmp_path):
    run("train", "--data", "synthetic", "--epochs", 1, "--out", tmp_path)
    path = tmp_path / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(saved.DataError, match="not the ones its manifest describes"):
        saved.load(tmp_path)


def test_the_folder_of_a_trained_model_holds_two_files_and_no_pickle(run, tmp_path):
    out = tmp_path / "model"
    run("train", "--data", "synthetic", "--epochs", 1, "--out", out)
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "weights.safetensors"]
    assert json.loads((out / "manifest.json").read_text())["data"] == "synthetic"


@pytest.mark.parametrize("words", [(), ("--help",), ("train", "--help")], ids=" ".join)
def test_help_names_the_commands_and_options(run, words):
    told = re.sub(r"\x1b\[[0-9;]*m", "", run(*words).output)
    assert ("--backbone" if "train" in words else "train") in told


def test_an_error_keeps_its_square_brackets(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ogb", None)
    monkeypatch.delitem(sys.modules, "ogb.nodeproppred", raising=False)
    done = run("train", "--data", "ogbn-arxiv", "--out", tmp_path / "model")
    assert done.exit_code == 2
    assert "pip install 'fgai[ogb]'" in done.stderr


def test_the_folder_is_named_as_the_user_wrote_it(run, tmp_path):
    done = run("train", "--data", "synthetic", "--epochs", 1, "--out", tmp_path / "a[b]")
    assert str(tmp_path / "a[b]") in done.stdout


ATTACK = ["--set", "nodes=2", "--set", "edges=4", "--set", "steps=1", "--seeds", "1"]


@pytest.fixture(name="model")
def _model(run, tmp_path):
    run("train", "--data", "synthetic", "--epochs", "2", "--out", str(tmp_path / "gat"))
    return tmp_path / "gat"


def test_a_saved_model_is_audited_and_the_report_kept(run, model, tmp_path):
    answer = run("audit", str(model), *ATTACK, "--out", str(tmp_path / "audit.json"))
    assert answer.exit_code == 0, answer.output
    assert "Can it be trusted?" in answer.stdout and "Certified" in answer.stdout
    assert AuditReport.load(tmp_path / "audit.json").text() == answer.stdout.rstrip("\n")


def test_a_saved_model_is_certified(run, model, tmp_path):
    answer = run("certify", str(model), "--k", "3", "--vanilla", str(model), "--out", str(tmp_path / "c.json"))
    assert answer.exit_code == 0, answer.output
    numbers = json.loads((tmp_path / "c.json").read_text())
    assert numbers["beta1"]["worst"] == 1.0 and numbers["alpha1"]["worst"] == 0.0  # it is its own vanilla
    assert "not input space" in answer.stdout


def test_a_saved_model_is_certified_against_an_attacker(run, model, tmp_path):
    out = tmp_path / "p.json"
    answer = run("certify", model, "--against", "links:2", "--groups", 5, "--out", out)
    assert answer.exit_code == 0, answer.output
    loaded, data = saved.load(model).model, datasets.load("synthetic")
    proof = certify(Voted(loaded, 5), data, against=Links(2))
    assert answer.stdout == f"{proof}\n" and json.loads(out.read_text()) == json.loads(proof.json())
    box = run("certify", model, "--against", "injection:1", "--set", "box=-9,9", "--json")
    assert json.loads(box.stdout)["against"]["box"] == [-9.0, 9.0]


def test_an_attacker_without_sense_is_refused(run, model):
    cases = {
        "--against links": "such as links:5",
        "--against nodes:3": "such as links:5",
        "--against links:many": "int is required",
        "--against links:1 --radius 0.3": "radius and against=Links",
        "--against links:1 --groups 99999": "at most 1000",
        "--groups 5": "give --against",
    }
    for words, why in cases.items():
        answer = run("certify", model, *words.split())
        assert answer.exit_code == 2 and why in answer.stderr, words


def test_the_split_of_a_saved_model_is_that_of_its_training(run, model):
    for command in (("audit", *ATTACK), ("certify",)):
        answer = run(command[0], model, *command[1:], "--split", 7)
        assert answer.exit_code == 2 and "was trained on the split of seed 0" in answer.stderr, answer.output


def test_options_without_effect_on_an_audit_in_batches_are_refused(run, model):
    answer = run("audit", model, *ATTACK, "--batch", 50, "--sample", 40)
    assert answer.exit_code == 2 and "--sample 40" in answer.stderr, answer.output


MINE = """
from torch_geometric.nn.models import GAT
from fgai import datasets

def build():
    return GAT(32, 8, num_layers=2, out_channels=4, heads=2)

def graph():
    return datasets.synthetic(nodes=200, edges=2_000)
"""


def test_a_users_own_model_weights_and_graph_are_audited(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    save_model(GAT(32, 8, num_layers=2, out_channels=4, heads=2), "w.safetensors")
    own = ["--model", "mine:build", "--weights", "w.safetensors", "--data", "mine:graph"]
    assert "Can it be trusted?" in run("audit", *own, *ATTACK).stdout
    page = run("report", *own, *ATTACK, "--out", "mine.html")
    assert page.exit_code == 0 and "mine:build" in Path("mine.html").read_text(), page.output
    assert "certified" in run("certify", *own, "--k", "3").stdout
    wrong = run("audit", "--model", "mine:biuld", "--data", "mine:graph", *ATTACK)
    assert wrong.exit_code == 2 and "module:function" in wrong.stderr


@pytest.mark.parametrize(
    ("body", "sentence"),
    [("return None", "odd:build returned NoneType; let it return a Module"), ("1 / 0", "odd.py, line 2")],
)
def test_a_function_that_returns_no_model_or_raises_is_said(run, tmp_path, monkeypatch, body, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "odd", raising=False)
    (tmp_path / "odd.py").write_text(f"def build():\n    {body}\n")
    answer = run("audit", "--model", "odd:build", "--data", "synthetic", *ATTACK)
    assert answer.exit_code == 2 and sentence in " ".join(answer.stderr.split()), answer.output


@pytest.mark.parametrize("command", ["audit", "certify"])
def test_nothing_to_look_at_is_said_in_words(run, command):
    answer = run(command)
    assert answer.exit_code == 2 and "fgai train" in answer.stderr


def test_a_trained_model_is_made_faithful_and_saved_as_the_same_kind(run, tmp_path):
    run("train", "--data", "synthetic", "--epochs", 3, "--seed", 1, "--out", tmp_path / "plain")
    done = run("fit", tmp_path / "plain", "--epochs", 2, "--out", tmp_path / "faithful")
    plain, faithful = (saved.load(tmp_path / name) for name in ("plain", "faithful"))
    now, before = (found.manifest["metrics"]["f1"] for found in (faithful, plain))
    assert done.exit_code == 0 and f"fgai: test micro-F1 {now:.3f} ({before:.3f} before)" in done.output
    assert type(plain.model) is type(faithful.model)
    assert plain.model.state_dict().keys() == faithful.model.state_dict().keys()
    assert faithful.manifest["method"]["name"] == "fgai" and faithful.manifest["seed"] == 1
    wrong = run("fit", tmp_path / "plain", "--preset", "papre", "--out", tmp_path / "x")
    assert wrong.exit_code != 0 and "default, paper, released" in wrong.output


def test_models_of_one_graph_are_shown_side_by_side_in_one_file(run, model, tmp_path):
    run("fit", model, "--epochs", 2, "--out", tmp_path / "faithful")
    out, budget = tmp_path / "both.html", ["--set", "nodes=2", "--set", "edges=4", "--seeds", 1]
    done = run("report", model, tmp_path / "faithful", *budget, "--node", 7, "--out", out)
    assert done.exit_code == 0, done.output
    shown = json.loads(re.search(r'id="content">(.*?)</script>', out.read_text())[1])
    assert shown["models"] == ["gat vanilla", "gat fgai"] and "7" in shown["views"]["gat fgai"]
    told, graph = dict(shown["provenance"]), datasets.load("synthetic", seed=0)
    assert told["data sha256"] == datasets.fingerprint(graph) and told["data"] == "synthetic"
    assert told["weights of gat fgai"] == saved.load(tmp_path / "faithful").manifest["weights_sha256"]
    assert {"Training of gat vanilla", "Training of gat fgai"} <= {chart["title"] for chart in shown["charts"]}
    twice = run("report", model, model, "--out", tmp_path / "twice.html")
    assert twice.exit_code == 2 and "models that differ" in twice.stderr and not (tmp_path / "twice.html").exists()


def test_models_of_graphs_are_reported_beside_each_other(run, tmp_path):
    data, out = ("--data", "worlds:named_molecules"), tmp_path / "both.html"
    for backbone in ("gat-graphs", "gatv2-graphs"):
        run("train", *data, "--backbone", backbone, "--epochs", 2, "--out", tmp_path / backbone)
    folders = tmp_path / "gat-graphs", tmp_path / "gatv2-graphs"
    graph = named_molecules()
    inside = int((~graph.test_mask).nonzero()[0])  # a graph that is not scored is only shown if it is asked for
    node = int(graph.ptr[inside])
    done = run("report", *folders, *data, *ATTACK, "--node", node, "--out", out)
    assert done.exit_code == 0, done.output
    shown = json.loads(re.search(r'id="content">(.*?)</script>', out.read_text(), re.DOTALL)[1])
    first, second = shown["graphs"].values()
    assert {*first} <= {*second} and str(inside) in first and first[str(inside)]["atoms"][0][0] == node
    assert not any(shown["views"].values()) and "Certified, top 5" in {chart["title"] for chart in shown["charts"]}


TYPED = """
from worlds import film_model, films as data
def build():
    return film_model("hgt")
"""


def test_a_typed_model_is_reported_and_is_trained_in_one_process_only(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "typed_mine.py").write_text(TYPED)
    page = run("report", "--model", "typed_mine:build", *ATTACK, "--out", "typed.html")
    assert page.exit_code == 0 and '"kinds":["movie"' in Path("typed.html").read_text(), page.output
    refused = run("fit", "--model", "typed_mine:build", "--ranks", 2, "--out", "new")
    assert refused.exit_code == 2 and "Training on several ranks is for graphs with one type of nodes" in refused.stderr
    assert "train in one process: omit --ranks and --batch" in refused.stderr and not Path("new").exists()


@pytest.mark.parametrize("command", ["audit", "certify", "report"])
def test_a_model_from_elsewhere_names_no_code_to_run(run, model, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    manifest = json.loads((model / "manifest.json").read_text())
    (model / "manifest.json").write_text(json.dumps({**manifest, "data": "evil:f"}))
    answer = run(command, model)
    assert answer.exit_code == 2 and "that you trust" in answer.stderr
    fitted = run("fit", model, "--out", tmp_path / "x")
    assert fitted.exit_code == 2 and "that you trust" in fitted.stderr


def test_a_folder_called_like_a_dataset_is_not_taken_for_its_graph(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("train", "--data", "synthetic", "--epochs", 1, "--out", "synthetic")
    assert run("fit", "synthetic", "--epochs", 1, "--out", "faithful").exit_code == 0


def test_what_cannot_be_written_is_said_before_the_attack(run, model, tmp_path):
    answer = run("audit", model, "--out", tmp_path / "audit.pdf")
    assert answer.exit_code == 2 and ".html" in answer.stderr and "trusted" not in answer.stdout
    for words in (("certify", "--out", "c.html"), ("report", "--out", "r.pdf"), ("certify", "--norm", "l3")):
        refused = run(words[0], model, *words[1:])
        assert refused.exit_code == 2 and words[-1] in refused.stderr and not Path(words[-1]).exists()
    wrong = run("fit", model, "--batch", 10, "--fanout", "10,x", "--out", tmp_path / "x")
    assert wrong.exit_code == 2 and "such as 10,10" in wrong.stderr


def test_a_figure_is_drawn_by_name(run, tmp_path):
    results = Path(__file__).parents[2] / "results"
    assert run("figure", "certified", "--results", results, "--out", tmp_path / "c.svg").exit_code == 0
    assert (tmp_path / "c.svg").read_text().startswith("<?xml")
    wrong = run("figure", "certifeid", "--results", results)
    assert wrong.exit_code == 2 and "did you mean 'certified'" in wrong.stderr


def test_a_graph_is_converted_and_a_model_made_faithful_from_disk(run, model, tmp_path):
    done = run("convert", "synthetic", "--out", tmp_path / "graph")
    assert "1,000 nodes and 10,000 edges with x, y, train_mask" in done.stdout
    words = ("--epochs", 1, "--batch", 500, "--fanout", "5,5")
    assert run("fit", model, "--data", tmp_path / "graph", "--out", tmp_path / "disk", *words).exit_code == 0
    assert run("fit", model, "--out", tmp_path / "memory", *words).exit_code == 0
    ours, theirs = (saved.load(tmp_path / name) for name in ("disk", "memory"))
    for name, value in ours.model.state_dict().items():
        torch.testing.assert_close(value, theirs.model.state_dict()[name], msg=name)
    assert ours.manifest["metrics"] == pytest.approx(theirs.manifest["metrics"])
    assert run("audit", tmp_path / "disk", *ATTACK).exit_code == 0  # it knows which dataset it has seen
    other = run("convert", "synthetic", "--split", 1, "--out", tmp_path / "other")
    assert other.exit_code == 0
    run("fit", model, "--data", tmp_path / "other", "--out", tmp_path / "mixed", *words)
    unknown = run("audit", tmp_path / "mixed", *ATTACK)
    assert unknown.exit_code == 2 and "give --data" in unknown.stderr


def test_a_graph_is_converted_with_what_a_backbone_needs(run, tmp_path):
    run("train", "--data", "synthetic", "--backbone", "gt", "--epochs", 1, "--out", tmp_path / "gt")
    assert "pe" in run("convert", "synthetic", "--backbone", "gt", "--out", tmp_path / "graph").stdout
    words = ("--epochs", 1, "--batch", 500, "--fanout", "5,5", "--out", tmp_path / "faithful")
    done = run("fit", tmp_path / "gt", "--data", tmp_path / "graph", *words)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (("--only", "dataset=amazon-foto"), "no cell has the dataset amazon-foto; there is amazon-computers"),
        (("--only", "method=at", "--only", "method=ln"), "names a field twice"),
        (("--seeds", "0"), "give at least one"),
    ],
)
def test_cells_that_are_not_there_are_said_in_words(run, tmp_path, asked, answer):
    done = run("bench", "table2", *asked, "--out", tmp_path)
    assert done.exit_code == 2 and answer in done.stderr


def test_options_that_would_change_nothing_are_refused(run, model, tmp_path):
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 0]]))
    out = ("--out", tmp_path / "graph")
    for words, named in (
        (("audit", model, "--set", "seed=9"), "--seeds"),
        (("train", "--data", "synthetic", *out, "--set", "seed=4", "--seed", "2"), "--seed"),
        (("train", "--data", "synthetic", *out, "--set", "epochs=3", "--epochs", "5"), "--epochs 5"),
        (("report", model, "--weights", tmp_path / "w.safetensors"), "--weights"),
        (("certify", model, "--against", "attention:0.001", "--fixed", "pe"), "--fixed"),
        (("convert", tmp_path / "e.npy", *out, "--node-table", "n.csv", "--split", "4"), "--node-table, --split"),
        (("convert", "synthetic", *out, "--ends", "a,b", "--nodes", "7"), "--ends, --nodes"),
        (("table", "table2", tmp_path / "nofolder"), "nofolder"),
    ):
        done = run(*words)
        assert done.exit_code == 2 and done.stderr.startswith("fgai: ") and named in done.stderr, (words, done.stderr)


def test_a_huge_budget_is_certified_in_few_rows(run, model, tmp_path):
    proof = run("certify", model, "--against", "links:999999999999", "--groups", "3", "--json")
    assert len(json.loads(proof.stdout)["curve"]) < 200
    assert "at most" in run("certify", model, "--against", f"links:{10**20}", "--groups", "3").stderr


def test_an_edge_list_is_converted(run, tmp_path):
    (tmp_path / "edges.txt").write_text("0 1\n1 2\n")
    np.save(tmp_path / "x.npy", np.eye(3))
    done = run("convert", tmp_path / "edges.txt", "--array", f"x={tmp_path / 'x.npy'}", "--out", tmp_path / "graph")
    assert "3 nodes and 2 edges with x" in done.stdout
    again = run("convert", tmp_path / "edges.txt", "--out", tmp_path / "graph")
    assert again.exit_code == 2 and "exists already" in again.stderr


def test_two_ranks_make_a_model_faithful_from_disk(run, model, tmp_path):
    run("convert", "synthetic", "--out", tmp_path / "graph")
    words = ("--ranks", 2, "--epochs", 1, "--batch", 250, "--out", tmp_path / "faithful")
    done = run("fit", model, "--data", tmp_path / "graph", *words)
    assert done.exit_code == 0, done.output
    assert saved.load(tmp_path / "faithful").manifest["method"]["epochs"] == 1
    missing = run("fit", tmp_path / "nothing", *words)
    assert missing.exit_code == 2 and "no saved model" in missing.stderr


def test_two_ranks_audit_a_graph_on_disk_as_one_rank_does(run, model, tmp_path):
    run("convert", "synthetic", "--out", tmp_path / "graph")
    words = ("audit", model, *ATTACK, "--json")
    two = run(*words, "--data", tmp_path / "graph", "--ranks", 2, "--batch", 300, "--out", tmp_path / "a.json")
    assert two.exit_code == 0, two.output
    found, one = json.loads(two.stdout), json.loads(run(*words, "--batch", 300).stdout)
    assert found == json.loads((tmp_path / "a.json").read_text())
    assert found["clean"] == pytest.approx(one["clean"], abs=1e-6)
    for name, estimate in one["attacked"].items():
        assert found["attacked"][name]["mean"] == pytest.approx(estimate["mean"], abs=1e-6)
    assert found["clean"]["f1"] == pytest.approx(loose(saved.load(model).manifest["metrics"])["f1"], abs=1e-6)


def test_a_graph_on_disk_is_certified_as_the_graph_itself_is(run, model, tmp_path):
    run("convert", "synthetic", "--out", tmp_path / "graph")
    for words in (("--k", 3, "--radius", 0.01), ("--against", "deletions:1")):
        whole, batches = (
            run("certify", model, *words, *more) for more in ((), ("--data", tmp_path / "graph", "--batch", 300))
        )
        assert batches.exit_code == 0 and batches.stdout == whole.stdout


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("--require", "stable"), "an audit in batches has no grades"),
        (("--explanation", "first"), "the attention of the last layer only"),
        (("--out", "a.html"), ".json"),
        (("--batch", -5), "give smaller batches, of at least one node"),
        (("--ranks", 0), "give at least 1"),
        (("--ranks", 2, "--engine", "spark"), "Registered: local, torchrun, ray"),
        (("--ranks", 2, "--data", "ba-2motifs"), "A neighbour loader"),
    ],
)
def test_what_an_audit_in_batches_does_not_have_is_said_in_words(run, model, tmp_path, monkeypatch, words, answer):
    monkeypatch.chdir(tmp_path)
    done = run("audit", model, *ATTACK, *(() if "--ranks" in words or "--batch" in words else ("--batch", 9)), *words)
    assert done.exit_code == 2 and answer in done.stderr and done.stdout == ""


def test_an_output_that_cannot_be_written_is_said_before_anything_is_computed(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")

    def worked(*_, **__):
        raise AssertionError("the work began")

    for name in ("cli.loading.load_graph", "bench.run.run", "bench.figures.figure"):
        monkeypatch.setattr(f"fgai.{name}", worked)
    monkeypatch.setattr(saved, "load", worked)
    inside = tmp_path / "file" / "x"
    for words in (
        ("train", "--data", "synthetic", "--out", tmp_path / "file"),
        ("train", "--data", "synthetic", "--out", inside),
        ("fit", tmp_path, "--out", tmp_path / "file"),
        ("fit", tmp_path, "--out", tmp_path / "new", "--checkpoint", tmp_path),
        ("convert", "synthetic", "--out", inside),
        ("audit", tmp_path, "--out", f"{inside}.json"),
        ("certify", tmp_path, "--out", f"{inside}.json"),
        ("report", tmp_path, "--out", f"{inside}.html"),
        ("bench", "table2", "--out", tmp_path / "file"),
        ("figure", "certified", "--out", f"{inside}.svg"),
    ):
        answer = run(*words)
        assert answer.exit_code == 2 and "cannot be written" in answer.stderr, words
        assert "Traceback" not in answer.stderr and answer.stdout == ""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "not enough memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            "not enough memory",
        ),
        (PermissionError(13, "Permission denied", "/x"), "Permission denied"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_memory_and_no_room_end_in_a_sentence(run, tmp_path, monkeypatch, error, said):
    def fail(*_):
        raise error

    monkeypatch.setattr("fgai.cli.loading.prepare_graph", fail)
    answer = run("train", "--data", "synthetic", "--out", tmp_path / "m")
    assert answer.exit_code == 2 and said in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_users_own_model_is_made_faithful_and_audited_from_the_new_weights(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    save_model(GAT(32, 8, num_layers=2, out_channels=4, heads=2), "w.safetensors")
    own = ["--model", "mine:build", "--data", "mine:graph"]
    done = run("fit", *own, "--weights", "w.safetensors", "--epochs", 1, "--out", "new")
    assert done.exit_code == 0 and "mine:build on mine:graph, fgai: saved in new" in done.output  # no test nodes, no F1
    assert (tmp_path / "new" / "weights.safetensors").read_bytes() != (tmp_path / "w.safetensors").read_bytes()
    assert run("audit", *own, "--weights", "new/weights.safetensors", *ATTACK).exit_code == 0
    refused = run("audit", "new", *ATTACK)
    assert refused.exit_code == 2 and "your own model mine:build" in refused.stderr
    wrapped = run("fit", *own, "--method", "ln", "--out", "x")
    assert wrapped.exit_code == 2 and "preprocesses" in wrapped.stderr and not Path("x").exists()
    both = run("audit", "new", *own, *ATTACK)
    assert both.exit_code == 2 and "two models" in both.stderr


@pytest.mark.parametrize("method", [name for name in METHODS if name != "fgai"])
def test_what_any_method_trains_is_read_back_with_its_f1_and_audited(run, tmp_path, method):
    out = tmp_path / "model"
    small = ["--set", "steps=1"] if method == "pro-gnn" else []
    done = run("train", "--data", "synthetic", "--method", method, *small, "--epochs", 2, "--out", out)
    assert done.exit_code == 0, done.output
    back, graph = saved.load(out), loose(datasets.load("synthetic"))
    with torch.no_grad():
        answer = (back.call or call_by_signature)(back.model, graph).argmax(1)
    test = graph.test_mask
    assert loose(back.manifest["metrics"])["f1"] == f1_score(graph.y[test], answer[test], average="micro")
    assert back.manifest["method"]["name"] == method and back.has_preprocessing == (method not in ("vanilla", "at"))
    if method not in ("pro-gnn", "gnn-svd"):  # their cleaning takes seconds per graph, and an audit cleans many
        assert run("audit", out, *ATTACK).exit_code == 0
    again = run("fit", out, "--epochs", 1, "--out", tmp_path / "again")
    assert again.exit_code == (2 if back.has_preprocessing else 0), again.output


def test_a_method_that_needs_a_trained_model_is_refused_by_train(run, tmp_path):
    done = run("train", "--data", "synthetic", "--method", "fgai", "--out", tmp_path / "x")
    assert done.exit_code == 2 and "fgai fit --method fgai" in done.stderr


def test_fit_takes_any_method_in_memory_and_in_batches(run, model, tmp_path):
    words = ("--method", "at", "--set", "weight=0.5", "--epochs", 1)
    assert run("fit", model, *words, "--out", tmp_path / "at").exit_code == 0
    assert saved.load(tmp_path / "at").manifest["method"]["weight"] == 0.5
    batches = run("fit", model, *words, "--batch", 100, "--fanout", "5,5", "--out", tmp_path / "batches")
    assert batches.exit_code == 0, batches.output


@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_audit_takes_every_adversary(run, model, tmp_path, adversary):
    small = {
        "node-injection": ["nodes=2", "edges=4", "steps=1"],
        "graph-injection": ["nodes=2", "edges=4", "steps=1", "features=l2"],
        "typed-injection": ["nodes=2", "edges=4", "steps=1"],
        "attack-ensemble": ["nodes=2", "edges=4,5", "schedules=[[1, 0.1]]"],
        "edge-rewiring": ["added=2", "dropped=2", "greedy=false"],
        "attention-ball": ["steps=1", "norm=l2"],
        "feature-ball": ["steps=1", "radius=0.5"],
        "prbcd": ["flips=4", "epochs=2", "block=100"],
        "grbcd": ["flips=4", "epochs=2", "block=100"],
        "chosen-injection": ["nodes=2", "edges=4,5", "schedules=[[1, 0.1]]", "adam=[[1, 0.2]]"],
        "worst-of": [],
        "single-target": ["nodes=2", "steps=1"],
    }[adversary]
    words = [word for setting in small for word in ("--set", setting)]
    out = tmp_path / "audit.json"
    done = run("audit", model, "--adversary", adversary, *words, "--seeds", 1, "--sample", 20, "--out", out)
    assert done.exit_code == 0, done.output
    described = AuditReport.load(out).adversary
    assert described["name"] == adversary
    for setting in small:
        field, value = setting.split("=")
        assert str(described[field]).lower().replace(" ", "").strip("[]") == value.replace(" ", "").strip("[]")


@pytest.mark.parametrize(
    ("setting", "answer"),
    [
        ("nodes=two", "int is required"),
        ("nodes=1.5", "int is required"),
        ("nodes=-1", "at least 1"),
        ("nods=1", "it has nodes, edges, steps"),
        ("nodes", "has no value"),
        ("step=1" + "0" * 400, "too large"),
        ("box=" + "[" * 5_000, "is required"),
    ],
)
def test_a_setting_that_an_adversary_does_not_take_is_refused_in_a_sentence(run, model, setting, answer):
    done = run("audit", model, "--set", setting)
    assert done.exit_code == 2 and answer in done.stderr and "Traceback" not in done.stderr
    unknown = run("audit", model, "--adversary", "node-injektion")
    assert unknown.exit_code == 2 and "did you mean 'node-injection'?" in unknown.stderr


def test_audit_takes_a_threat_model_alone(run, model, monkeypatch):
    tiny = Threat("paper", NodeInjection(2, 4, steps=1), "kl", "One who adds two nodes.", "realistic")
    monkeypatch.setitem(THREATS._entries, "realistic", tiny)
    done = run("audit", model, "--threat", "realistic", "--seeds", 1)
    assert done.exit_code == 0 and "Under realistic it is" in done.output, done.output
    for words in (("--gain", "kl"), ("--set", "nodes=1"), ("--adversary", "prbcd")):
        both = run("audit", model, "--threat", "realistic", *words)
        assert both.exit_code == 2 and "give --threat alone" in both.stderr
    unknown = run("audit", model, "--threat", "realistik")
    assert unknown.exit_code == 2 and "did you mean 'realistic'?" in unknown.stderr


def test_a_module_that_is_imported_registers_an_adversary(run, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ADVERSARIES, "_entries", dict(ADVERSARIES))
    (tmp_path / "my_attack.py").write_text(
        "from fgai.adversaries import ADVERSARIES, NodeInjection\nADVERSARIES.add('mine', NodeInjection)\n"
    )
    done = run("audit", model, "--import", "my_attack", "--adversary", "mine", *ATTACK)
    assert done.exit_code == 0, done.output
