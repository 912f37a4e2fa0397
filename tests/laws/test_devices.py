"""Everything runs where the model is, and gives what the CPU gives; what is registered later is run, too.

`cuda` and `mps` are pretended (`pretend_device`), so they run on any machine; a real CUDA device is used if there is
one. The pretended `mps` has no float64. Where there is float64 the model is in it, so that results of other kernels
can be compared to 1e-6.
"""

import copy
import inspect
import json
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from torch_geometric.explain import Explainer
from torch_geometric.nn.models import GAT
from typer.testing import CliRunner

import fgai
from fgai import Reader, datasets, devices, explainer, large, saved
from fgai import certificates as certificate
from fgai.adversaries import ADVERSARIES, GAINS, AttentionBall, Budget, GraphInjection, NodeInjection
from fgai.auditing import sanity
from fgai.backbones import BACKBONES
from fgai.certificates import worst_push
from fgai.cli import app
from fgai.datasets.split import split_graphs, split_nodes
from fgai.devices import device_of
from fgai.explanations import EXPLANATIONS, compare_nodes
from fgai.faithfulness import measure_faithfulness, pyg_scores, truth_scores
from fgai.large.fitting import fit_graph
from fgai.methods import METHODS, Batches
from fgai.metrics import METRICS
from fgai.reading import read
from fgai.training import loop as training
from fgai.trial import attacked_trial, clean_trial
from loose import loose
from pretend_device import PretendDevice, PretendError
from worlds import molecule_batch, molecules

DEVICES = {
    "cuda": lambda: PretendDevice("cuda"),
    "mps": lambda: PretendDevice("mps", without=(torch.float64,)),
    "a real cuda": nullcontext,
}
SMALL = {
    "nodes": 2,
    "steps": 2,
    "added": 4,
    "dropped": 4,
    "rounds": 2,
    "pool": 40,
    "surrogates": ("kl",),
    "schedules": ((2, 0.5),),
    "epochs": 2,
}
ATTACK = NodeInjection(nodes=2, edges=3, steps=2, step=0.5)
DATA = split_nodes(datasets.synthetic(60, 400, 8, 3), 0)


# A slow law runs on the strictest pretended device in CI, and on both by hand.
STRICTEST = [pytest.param(name, marks=pytest.mark.slow) if name == "cuda" else name for name in DEVICES]


@pytest.fixture(name="device", params=DEVICES)
def _device(request):
    if request.param == "a real cuda" and not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    return request.param


def world(device):
    """A model and a graph, on the CPU."""
    torch.manual_seed(0)
    model, data = GAT(8, 8, 2, 3, heads=2), copy.copy(DATA)
    if device != "mps":
        model, data.x = model.double(), data.x.double()
    return model, data


def small(kind, **settings):
    """An adversary or a method with small settings, whatever it is called."""
    given = {**SMALL, "adversary": ATTACK, **settings}
    named = {f.name: f for f in fields(kind)}
    made = {name: value for name, value in given.items() if name in named}
    if "edges" in named:
        made["edges"] = (3,) if isinstance(named["edges"].default, tuple) else 3
    if "adam" in named and isinstance(named["adam"].default, tuple):
        made["adam"] = ((2, 0.5),)
    return kind(**made)


def molecule_world(device):
    """A model that classifies graphs and a batch of them, on the CPU."""
    data: Any = split_graphs(molecules(16), seed=0)
    model = fgai.backbones.build("gat-graphs", data)
    if device != "mps":
        model, data.x = model.double(), data.x.double()
    return model, data


def same_on(device, job, world=world):
    """What a job gives of a model and a graph on the device is what it gives of them on the CPU."""
    expected = plain(job(*world(device)))
    model, data = world(device)
    with DEVICES[device]():
        name = "cuda" if "cuda" in device else device
        got = plain(job(model.to(name), data.to(name)))
    assert got == expected or differences(got, expected) < 1e-6
    return got


def plain(value):
    """Numbers, by their path."""
    return dict(_leaves("", value))


def _leaves(path, value):
    if isinstance(value, torch.Tensor):
        value = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        yield path, value.cpu().tolist()
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(f"{path}/{name}", part)
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _leaves(f"{path}/{number}", part)
    elif is_dataclass(value):
        for f in fields(value):
            yield from _leaves(f"{path}/{f.name}", getattr(value, f.name))
    elif isinstance(value, str | int | float | None):
        yield path, value


def differences(got, expected):
    """The largest difference of two nested records, relative to numbers above 1; infinite where they are not alike."""
    if isinstance(expected, Mapping):
        alike = got.keys() == expected.keys()
        return max((differences(got[key], expected[key]) for key in expected), default=0.0) if alike else math.inf
    if isinstance(expected, list):
        alike = len(got) == len(expected)
        return max(map(differences, got, expected), default=0.0) if alike else math.inf
    if isinstance(expected, float):
        equal = got == expected or (math.isnan(got) and math.isnan(expected))
        off = abs(got - expected) / max(1.0, abs(expected))
        return 0.0 if equal else off if math.isfinite(off) else math.inf
    return 0.0 if got == expected else math.inf


def weights(fit):
    return {
        "weights": dict(fit.model.state_dict()),
        "history": [epoch.terms for epoch in fit.history],
        "best": fit.best,
    }


def attacked(now):
    return now.logits, {site: a.weight for site, a in now.attention.items()}, now.perturbation


def test_the_pretended_device_refuses_what_a_real_one_refuses():
    with PretendDevice("cuda") as device:
        x = torch.ones(3, device="cuda")
        assert x.is_cuda and (x * 2 + torch.tensor(1.0)).is_cuda and x[torch.tensor([0])].is_cuda
        mixed = (lambda: x + torch.ones(3), lambda: x.numpy(), lambda: torch.ones(3)[x.long()])
        for wrong in (*mixed, lambda: torch.rand(3, device="cuda", generator=torch.Generator())):
            with pytest.raises(PretendError):
                wrong()
        assert device.syncs.total() == 0 and float(x.sum()) == 3.0 and device.syncs.total() == 1
    with PretendDevice("mps", without=(torch.float64,)), pytest.raises(PretendError, match="mps has no"):
        torch.ones(1).to("mps").double()


def test_a_difference_is_seen():
    assert differences({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]}) == 0.2 and differences([0.5], [0.75]) == 0.25
    assert differences([1.0], [1.0, 2.0]) == differences(math.nan, 1.0) == differences("a", "b") == math.inf


@pytest.mark.parametrize("name", METHODS)
def test_every_method(name, device):
    def job(model, data):
        fit = small(METHODS[name]).fit(model, data)
        assert device_of(fit.model) == device_of(model)
        return weights(fit)

    same_on(device, job)


@pytest.mark.parametrize("device", STRICTEST, indirect=True)
@pytest.mark.parametrize("name", METHODS)
def test_a_graph_on_the_cpu_goes_to_the_model(name, device):
    same_on(device, lambda model, data: weights(small(METHODS[name]).fit(model, data.cpu())))


@pytest.mark.parametrize("elsewhere", [False, True], ids=["with the model", "on the cpu"])
def test_certified_training(elsewhere, device):
    method = small(fgai.FGAI, certified=1.0, injection=certificate.Injection(1, (-9.0, 9.0)))

    def one_last_head(device):
        _, data = world(device)
        return fgai.backbones.build("gat", data).to(data.x.dtype), data

    same_on(device, lambda m, data: weights(method.fit(m, data.cpu() if elsewhere else data)), one_last_head)


@pytest.mark.parametrize("settings", [{"stability": "margin"}, {"k": 0.5, "similarity_metric": "top-k"}], ids=str)
def test_settings_of_fgai_that_need_double_precision(settings, device):
    same_on(device, lambda model, data: weights(small(fgai.FGAI, **settings).fit(model, data)))


@pytest.mark.parametrize("device", STRICTEST, indirect=True)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_goes_on_from_a_checkpoint(name, device, tmp_path, monkeypatch):
    file, epoch = tmp_path / "run.safetensors", training._epoch

    def killed(run, read, number, *rest):
        if number == 2:
            raise KeyboardInterrupt
        epoch(run, read, number, *rest)

    def job(model, data):
        method = small(METHODS[name], epochs=3)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(training, "_epoch", killed)
            patch.setattr(training, "_due", lambda number, source: True)
            method.fit(model, data, checkpoint=file)
        assert file.exists()
        return weights(method.fit(model, data, checkpoint=file))

    same_on(device, job)


@pytest.mark.parametrize("name", ADVERSARIES)
def test_every_adversary(name, device):
    def job(model, data):
        reader = Reader(model.eval())
        return attacked(small(ADVERSARIES[name])(reader, data, GAINS["kl"](reader(data).detach())))

    same_on(device, job)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
def test_every_norm_of_a_ball(norm, device):
    def job(model, data):
        reader = Reader(model.eval())
        gain = GAINS["kl"](reader(data).detach())
        balls = [replace(small(ADVERSARIES[name]), norm=norm) for name in ("attention-ball", "feature-ball")]
        return [attacked(ball(reader, data, gain)) for ball in balls]

    same_on(device, job)


@pytest.mark.parametrize("name", GAINS)
def test_every_gain(name, device):
    def job(model, data):
        reader = Reader(model.eval())
        clean = reader(data).detach()
        moved = [attack(reader, data, GAINS["kl"](clean)) for attack in (ATTACK, AttentionBall(radius=0.5, steps=2))]
        return [GAINS[name](clean)(now) for now in moved]

    same_on(device, job)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric(name, device):
    def job(model, data):
        now = attacked_trial(ATTACK, "kl", clean_trial(Reader(model.eval()), data), seed=0)
        return METRICS[name].compute(now)

    same_on(device, job)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_backbone(name, device):
    graph = datasets.load("synthetic-links") if name.endswith("links") else DATA
    graph = molecule_batch() if name.endswith("graphs") else graph
    graph = BACKBONES[name].prepare(graph)

    def job(*_):
        where = "cpu" if not here else "cuda" if "cuda" in device else device
        model = fgai.backbones.build(name, graph).to(where)
        return read(model, copy.copy(graph).to(where))

    here = False
    expected = plain(job())
    here = True
    with DEVICES[device]():
        assert differences(plain(job()), expected) < 1e-6


def test_an_audit_and_a_comparison(device):
    def job(model, data):
        made = fgai.compare({"one": model}, data, ATTACK, seeds=1, show_nodes=[3])
        return json.loads(made.json())

    same_on(device, job)


CERTIFICATES = {
    "certify": lambda model, data: [
        *(
            certificate.certify(model, data, copy.deepcopy(model), 3, 0.1, norm=norm, steps=2)
            for norm in ("l1", "linf")
        ),
        *proofs_against(model, data),
    ],
    "interval_bounds": lambda model, data: certificate.interval_bounds(Reader(model), data, 0.01),
    "prediction_bound": lambda model, data: certificate.prediction_bound(Reader(model), data, "l2"),
    "worst_push": lambda model, data: [
        worst_push(read(model, data).explanation, 3, 0.1, norm) for norm in ("l1", "l2", "linf")
    ],
    "eviction_costs": lambda model, data: certificate.eviction_costs(read(model, data).explanation, 0.5, "l2"),
    "guaranteed_overlap": lambda model, data: certificate.guaranteed_overlap(read(model, data).explanation, 3),
    "certified_radius": lambda model, data: certificate.certified_radius(read(model, data).explanation, 3),
    "certified_share": lambda model, data: certificate.certified_share(
        certificate.certified_radius(read(model, data).explanation, 3), 0.01
    ),
    "ordered_overlap": lambda model, data: certificate.ordered_overlap(
        read(model, data).explanation.mean_heads(), 3, nodes=1
    ),
    "cloned_overlap": lambda model, data: certificate.cloned_overlap(read(model, data).explanation, 3, nodes=1),
    "cloned_weight": lambda model, data: certificate.cloned_weight(read(model, data).explanation, nodes=1),
}


def proofs_against(model, data):
    """A proof against each threat, of a model that bounds are known for, and of its votes."""
    gat = fgai.backbones.build("gat", DATA).to(device_of(model), data.x.dtype)
    box = (float(data.x.min()) - 1, float(data.x.max()) + 1)
    cases = [
        (gat, certificate.Deletions(1)),
        (gat, certificate.Injection(1, box)),
        (gat, certificate.Features(1e-4)),
        (gat, AttentionBall(0.01)),
        (certificate.Voted(gat, 5), certificate.Links(1)),
        (model, certificate.Deletions(1)),
    ]
    made = [certificate.certify(each, data, against=threat, k=3) for each, threat in cases]
    assert [proof.how for proof in made] == ["bound", "none", "bound", "bound", "vote", "none"]
    return [(proof, proof.shares(), proof.text()) for proof in made]


SANITY = {
    "without_attention": sanity.without_attention,
    "cascading_randomisation": sanity.cascading_randomisation,
    "overlap_at_random": sanity.overlap_at_random,
}


def functions(module):
    """The public functions of a module or package."""
    names = getattr(module, "__all__", vars(module))
    found = {name: getattr(module, name) for name in names if not name.startswith("_")}
    return {n for n, f in found.items() if inspect.isfunction(f) and f.__module__.startswith(module.__name__)}


def test_every_certificate_and_sanity_check_is_under_this_law():
    assert functions(certificate) == set(CERTIFICATES)
    assert functions(sanity) == set(SANITY)


@pytest.mark.parametrize("name", CERTIFICATES)
def test_every_certificate(name, device):
    same_on(device, lambda model, data: CERTIFICATES[name](model.eval(), data))


@pytest.mark.parametrize("name", SANITY)
def test_every_sanity_check(name, device):
    same_on(device, SANITY[name])


def test_a_certificate_says_the_same_in_words(device):
    same_on(device, lambda model, data: (made := fgai.certify(model, data, k=3, steps=1)).text() + str(made.as_dict()))


EXPLAINERS = {
    name: kind
    for name, kind in vars(explainer).items()
    if inspect.isclass(kind) and kind.__module__ == explainer.__name__ and hasattr(kind, "supports")
}


@pytest.mark.parametrize("name", EXPLAINERS)
def test_every_explainer(name, device):
    settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    how = {"explanation_type": "model", "edge_mask_type": "object", "model_config": settings}

    def job(model, data):
        made = Explainer(model, loose(EXPLAINERS[name]()), **how)(data.x, data.edge_index)
        return made.edge_mask, fgai.metrics.as_attention(loose(made)).weight, made._repr_html_()

    same_on(device, job)


@pytest.mark.parametrize("device", STRICTEST, indirect=True)
@pytest.mark.parametrize("name", [*EXPLANATIONS, "layer:convs.0"])
def test_every_explanation_and_its_faithfulness(name, device):
    settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    how = {"explanation_type": "model", "edge_mask_type": "object", "model_config": settings}

    def job(model, data):
        with fgai.open_reader(model) as reader:
            attribution = reader.checked(data).attribution(name, read=reader, graph=data)
            node = reader.checked(data).explain(5, name, read=reader, graph=data)
        marked = Explainer(model, loose(fgai.AttentionExplainer(name)), **how)(data.x, data.edge_index, index=5)
        difference = compare_nodes(attribution, attribution, data.y.new_tensor([3, 5]), k=2)
        mask, near = node.mask(data.edge_index), data.edge_index[1] == 5
        truth = truth_scores(mask[near], data.edge_index[0][near] > 30)
        picture = node.to_pyg(data)._repr_html_(), loose(marked).edge_mask
        faithful = [measure_faithfulness(model, data, name, nodes=nodes) for nodes in (20, data.y.new_tensor([3, 5]))]
        return (
            attribution.total(),
            node,
            difference,
            truth,
            picture,
            faithful,
            pyg_scores(model, data, data.y[:2], name),
        )

    same_on(device, job)


@pytest.mark.parametrize("name", ["fgai", "at", "vanilla"])
def test_batches_come_on_the_cpu_and_go_to_the_model(name, device):
    def job(model, data):
        loader = large.Loader(data, (5, 5), batch=20, seed_nodes=data.train_mask)
        check = large.full_neighbour_loader(data, 2, seed_nodes=data.val_mask)
        assert next(iter(loader)).x.device.type == "cpu"
        return weights(small(METHODS[name]).fit(model, Batches(loader, check, positions=2)))

    same_on(device, job)


@pytest.mark.parametrize("device", STRICTEST, indirect=True)
@pytest.mark.parametrize("name", ["fgai", "at", "ln", "vanilla"])
def test_graphs_are_trained_on_whole_and_in_batches(name, device):
    def job(model, data):
        method = small(METHODS[name], adversary=GraphInjection(1, 1, steps=1))
        return [weights(fit_graph(method, model, data, batch=size)) for size in (0, 6)]

    same_on(device, job, molecule_world)


@pytest.mark.parametrize("device", STRICTEST, indirect=True)
def test_graphs_are_audited_and_attacked(device):
    def job(model, data):
        report = fgai.audit(model, data, GraphInjection(1, 2, steps=2), seeds=1, sample=10)
        return json.loads(report.json()), fgai.certify(model, data)

    same_on(device, job, molecule_world)


def test_readings_audits_and_certificates_of_batches(device):
    def job(model, data):
        model.eval()
        batches = lambda: large.full_neighbour_loader(data, 2, batch=40)  # noqa: E731
        whole = large.concat_readings(large.batch_readings(model, batches()), 60)
        last = large.concat_readings(large.layerwise_readings(model, data, batch=40), 60)
        proved = large.certify_batches(model, batches(), k=3, steps=1)
        return whole, last, large.audit_batches(model, batches(), ATTACK), proved

    same_on(device, job)


def test_a_perturbation_is_saved_and_made_again(device, tmp_path):
    def job(model, data):
        reader = Reader(model.eval())
        attack = replace(ATTACK, features="similar")
        attack(reader, data, GAINS["kl"](reader(data).detach())).perturbation.save(tmp_path / "change.safetensors")
        loaded = fgai.Perturbation.load(tmp_path / "change.safetensors")
        Budget(ATTACK.nodes, ATTACK.edges, "similar").check(loaded, data)
        return attacked(loaded.read(reader, data))

    same_on(device, job)


GRAPH_STEP, BATCH_STEP = 20, 40  # the most times that the CPU waits in a step of FGAI


def waits(epochs, batch):
    torch.manual_seed(0)
    data, model = split_nodes(datasets.synthetic(300, 2000, 8, 3), 0), GAT(8, 8, 2, 3, heads=2)
    with PretendDevice("cuda") as device:
        graphs = large.Loader(data, (5, 5), batch=100) if batch else data.to("cuda")
        fgai.FGAI(epochs=epochs, adversary=NodeInjection(nodes=5, edges=10, steps=3)).fit(model.to("cuda"), graphs)
    return device.syncs


@pytest.mark.parametrize(("batch", "steps", "most"), [(False, 1, GRAPH_STEP), (True, 3, BATCH_STEP)])
def test_a_step_of_fgai_seldom_waits_for_the_device(batch, steps, most):
    found = waits(5, batch)
    found.subtract(waits(1, batch))
    assert found.total() / (4 * steps) <= most, found.most_common(10)


def test_the_command_line_takes_a_device(tmp_path, monkeypatch):
    monkeypatch.setenv("FGAI_DATA", str(tmp_path / "data"))
    small = ["--set", "nodes=2", "--set", "edges=3", "--seeds", "1", "--sample", "20"]
    where = {"cpu": tmp_path / "cpu", "cuda": tmp_path / "cuda"}
    for name, folder in where.items():
        monkeypatch.setattr(devices, "_available_devices", lambda: ["cpu", "cuda"])
        commands = [
            ["train", "--data", "synthetic", "--epochs", "2", "--out", folder / "vanilla"],
            ["fit", folder / "vanilla", "--epochs", "1", "--out", folder / "fgai"],
            ["fit", folder / "vanilla", "--epochs", "1", "--batch", "500", "--out", folder / "batches"],
            ["audit", where["cpu"] / "vanilla", *small, "--set", "steps=1", "--out", folder / "audit.json"],
            ["certify", folder / "fgai", "--vanilla", folder / "vanilla", "--out", folder / "certificate.json"],
        ]
        with PretendDevice("cuda") if name == "cuda" else nullcontext():
            for words in commands:
                done = CliRunner().invoke(app, [str(word) for word in (*words, "--device", name)])
                assert done.exit_code == 0, (words, done.output, done.exception)
    one, two = (json.loads((folder / "audit.json").read_text())["clean"] for folder in where.values())
    assert differences(plain(one), plain(two)) < 1e-5  # float32, and the CPU has products of its own


@pytest.mark.parametrize("command", ["train", "fit", "audit", "certify", "report", "bench"])
@pytest.mark.parametrize("name", ["gpu", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_refused_in_a_sentence(command, name, tmp_path, monkeypatch):
    monkeypatch.setenv("FGAI_DATA", str(tmp_path))
    model = tmp_path / "model"
    saved.save(model, BACKBONES["gat"](16, 4), backbone="gat", features=16, classes=4, data="synthetic")
    words = {"train": ["--data", "synthetic", "--out", tmp_path / "x"], "fit": [model, "--out", tmp_path / "x"]}
    given = words.get(command, ["table2", "--out", tmp_path / "x"] if command == "bench" else [model])
    done = CliRunner().invoke(app, [str(word) for word in (command, *given, "--device", name)])
    assert done.exit_code == 2 and "this machine has" in done.stderr and "cpu" in done.stderr
    assert not (tmp_path / "x").exists()
