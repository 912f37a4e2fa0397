"""Every public call as a target, made from the registries and `fgai.__all__`: what is added later is tried, too."""

import inspect
import math
from typing import Any

import torch
from campaign import Target
from inputs import (
    FLOATS,
    INTEGERS,
    WORDS,
    either,
    graph,
    hostile_graph,
    hostile_model,
    hostile_settings,
    model,
)
from torch_geometric.explain import Explainer
from verdicts import unsound_audit, unsound_certificate, unsound_fit, unsound_proof

import fgai
from fgai import backbones, datasets, large, methods, report
from fgai.adversaries import ADVERSARIES, GAINS, NodeInjection, Perturbation
from fgai.auditing import sanity
from fgai.backbones import BACKBONES
from fgai.certificates import Deletions, Features, Injection, Links
from fgai.datasets import DATASETS
from fgai.explanations import EXPLANATIONS
from fgai.methods import METHODS, Batches
from fgai.metrics import METRICS
from fgai.trial import clean_trial

ATTACK = NodeInjection(1, 2, steps=1)
COUNTS = tuple(v for v in INTEGERS if isinstance(v, int))
FEW = tuple(v for v in COUNTS if v < 3)  # of what costs time
NUMBERS = (*FEW, *(v for v in FLOATS if isinstance(v, float)))
NODES = ((), (0,), (-1,), (10**9,), (3, 3), (2**63,))


def call(name, make, unsound=lambda result: "", cost=10.0):
    """A target that needs no file: `make(rng)` returns what to call."""
    return Target(name, lambda rng, folder: make(rng), unsound, cost)


def _audit(rng):
    net, data = either(rng) if rng.random() < 0.7 else (model(), graph())
    given = {"seeds": 1, "gain": rng.choice((*GAINS, "zzz")) if rng.random() < 0.4 else "kl"}
    if rng.random() < 0.3:
        name = rng.choice(("seeds", "show_nodes", "name", "gain"))
        given[name] = rng.choice({"seeds": FEW, "show_nodes": NODES, "name": WORDS, "gain": WORDS}[name])
    by = hostile_settings(rng, ADVERSARIES[rng.choice(list(ADVERSARIES))], wrong=rng.choice((0, 1)))
    return lambda: fgai.audit(net, data, by(), **given)


def _compare(rng):
    net, data = either(rng)
    models = rng.choice(({"a": model(), "b": net}, {"b": net, "": model()}, {}, {"a": net}))
    return lambda: fgai.compare(models, data, ATTACK, seeds=1)


def _certify(rng):
    net, data = either(rng) if rng.random() < 0.7 else (model(), graph())
    before = rng.choice((None, None, model(), hostile_model(rng)))
    given = {"k": 2, "radius": 0.01, "steps": 1}
    for name in rng.sample(sorted({*given, "norm"}), rng.choice((0, 0, 1, 2))):
        given[name] = rng.choice({"k": (*COUNTS, *NUMBERS), "radius": NUMBERS, "steps": FEW, "norm": WORDS}[name])
    return lambda: fgai.certify(net, data, before, **given)


def _voted(rng):
    """A proof against a hostile set, of votes or of the model itself."""
    net, data = either(rng) if rng.random() < 0.7 else (model(), graph())
    groups, size = rng.choice((0, 1, 3, 3, 3)), rng.choice((1, 1, *FEW, *NUMBERS))
    box = rng.choice(((-9.0, 9.0), (-9.0, 9.0), (1.0, -1.0), (float("nan"), 1.0), (0.0, 1e308)))
    make = rng.choice(
        (
            *[lambda: Links(size), lambda: Deletions(size), lambda: Injection(size, box), lambda: Features(size)],
            lambda: fgai.AttentionBall(size),
        )
    )
    voted = rng.random() < 0.6
    return lambda: fgai.certify(fgai.Voted(net, groups) if voted else net, data, against=make(), k=2)


def _read(rng):
    net, data = either(rng)
    return lambda: fgai.read(net, data).probs


def _reader(rng):
    net, data = either(rng)
    nudge = rng.choice(({}, {"conv1": torch.ones(3)}, {"zzz": torch.ones(1)}, {"conv2": torch.full((64, 1), math.nan)}))
    kind = rng.choice(("weight_delta", "score_delta"))
    return lambda: fgai.Reader(net)(data, **{kind: nudge})


def _accelerated(rng):
    net, data = either(rng)

    def use():
        with fgai.accelerated(net):
            return fgai.read(net, data)

    return use


def _open_reader(rng):
    net, data = either(rng)

    def use():
        with fgai.open_reader(net) as read:
            return read(data)

    return use


def _explain(rng):
    net, data = either(rng)
    settings = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}
    how = {"explanation_type": "model", "edge_mask_type": "object", "model_config": settings}
    name = rng.choice((*EXPLANATIONS, *EXPLANATIONS, "layer:conv1", "layer:zzz", None, *WORDS))
    index = rng.choice((None, None, 0, torch.tensor([1, 2])))
    if not torch.is_tensor(_said(net, data)):  # PyG calls the model first, and fails by itself
        net, data = model(), graph()
    return lambda: Explainer(net, fgai.AttentionExplainer(name), **how)(data.x, data.edge_index, index=index)


def _faithfulness(rng):
    net, data = either(rng) if rng.random() < 0.7 else (model(), graph())
    given: dict[str, Any] = {"nodes": 5}
    for name in rng.sample(("nodes", "share", "at_least", "draws", "seed"), rng.choice((0, 0, 1, 2))):
        given[name] = rng.choice(NUMBERS)
    name = rng.choice((*EXPLANATIONS, *EXPLANATIONS, "layer:conv1", "layer:zzz", None, *WORDS))
    return lambda: fgai.measure_faithfulness(net, data, name, **given)


def _explain_node(rng):
    net, data = either(rng)
    name, node, k = rng.choice((*EXPLANATIONS, "layer:zzz", *WORDS)), rng.choice(COUNTS), rng.choice((1, 5, *COUNTS))
    return lambda: fgai.read(net, data).top(node, k, name)


def _said(net, data):
    """What a model answers, if PyG's own explainer can go on with that."""
    try:
        logits = net(data.x, data.edge_index)
        return logits.argmax(-1) if logits.dim() == 2 and logits.numel() else None
    except Exception:
        return None


def _fit(kind):
    def make(rng):
        method = hostile_settings(rng, kind, wrong=rng.choice((0, 0, 1, 2)))
        net, data = either(rng) if rng.random() < 0.7 else (model(), graph())
        if rng.random() < 0.1:
            source = large.Loader(graph(), (2, 2), batch=8)
            data = rng.choice((source, Batches(source), [graph()], [], [None], Batches([data], [data])))
        return lambda: method().fit(net, data)

    return make


def _preset(rng):
    name, given = (
        rng.choice((*WORDS, "default", "paper", "released")),
        rng.choice(({}, {"epochs": 1}, {"epochs": -1}, {"margin": math.nan})),
    )
    return lambda: methods.FGAI.preset(name, **given)


def _attack(kind):
    def make(rng):
        by, gain = hostile_settings(rng, kind, wrong=rng.choice((0, 1, 1, 2))), GAINS[rng.choice(list(GAINS))]
        net, data = either(rng) if rng.random() < 0.5 else (model(), graph())

        def use():
            read = fgai.Reader(net)
            return by()(read, data, gain(fgai.read(net, data)))

        return use

    return make


def _metric(name):
    def make(rng):
        net, data = either(rng)
        net.eval()
        return lambda: METRICS[name].compute(clean_trial(fgai.Reader(net), data))

    return make


def _perturbation(rng):
    data = hostile_graph(rng) if rng.random() < 0.5 else graph()
    x = rng.choice((None, torch.ones(1, 5), torch.ones(2, 4), torch.full((1, 5), float("nan")), torch.ones(5)))
    ends = [torch.tensor(some) for some in ([[16], [0]], [[0], [16]], [[-1], [0]], [[99], [0]], [[0.5], [1]], [0, 1])]
    none = torch.empty(2, 0, dtype=torch.long)
    added, dropped = rng.choice((*ends, none)), rng.choice((*ends, none))
    return lambda: Perturbation(x, added, dropped).apply(data)


def _loader(rng):
    data = hostile_graph(rng) if rng.random() < 0.5 else graph()
    given = {"fanout": rng.choice(((2, 2), (), (0,), (-1, -1), (-2,), (10**9,))), "batch": rng.choice(COUNTS)}
    given |= {
        "seed_nodes": rng.choice((None, torch.tensor([3]), torch.tensor([99]), torch.tensor([-1]), torch.tensor([0.5])))
    }
    given |= {"seed": rng.choice(COUNTS)} if rng.random() < 0.3 else {}
    return lambda: next(iter(large.Loader(data, **given)))


def _by_batches(function):
    def make(rng):
        net, data = either(rng)
        return lambda: function(net, large.full_neighbour_loader(data, hops=2, batch=8))

    return make


def _layerwise(rng):
    net, data = either(rng)
    return lambda: list(large.layerwise_readings(net, data))


def _convert(rng, folder):
    data = hostile_graph(rng)
    return lambda: large.convert(data, folder / "made")


def _report(rng, folder):
    data = graph()
    data.names = rng.choice((["x" * 200_000] * 16, ["</script>"] * 16, [None] * 16, 3, ["‮"] * 16, torch.ones(16)))
    about = rng.choice(({}, {"a": "x" * 10**6}, {"": "</script>"}, {1: 2}))
    proofs = rng.choice(({}, {"zzz": None}))
    path = folder / rng.choice(("a.html", "b/c.html", "x", "", "a\0b.html", "a" * 300 + ".html"))
    return lambda: report.save(path, fgai.audit(model(), data, ATTACK, seeds=1), about=about, certificates=proofs)


def _synthetic(rng):
    names = [p for p in inspect.signature(datasets.synthetic).parameters if p not in ("nodes", "edges", "features")]
    given = {
        "nodes": rng.choice((0, 1, 2, 30, -1)),
        "edges": rng.choice((0, 2, 3, 40, -2)),
        "features": rng.choice((0, 1, 4, -1)),
    }
    given |= {rng.choice(names): rng.choice(NUMBERS)} if rng.random() < 0.7 else {"nodes": 30, "edges": 40}
    return lambda: datasets.synthetic(**given)


def _dataset(name):
    def make(rng):
        seed = rng.choice(COUNTS)
        return lambda: datasets.load(name, seed=seed)

    return make


def _backbone(name):
    def make(rng):
        if rng.random() < 0.5:
            data = hostile_graph(rng)
            return lambda: backbones.build(name, data, seed=0)
        data = hostile_graph(rng)
        return lambda: BACKBONES[name].prepare(data)

    return make


def _sanity(name):
    def make(rng):
        net, data = either(rng)
        return lambda: getattr(sanity, name)(net, data)

    return make


def _tap(rng):
    net = hostile_model(rng)
    return lambda: fgai.Tap(net)


CALLS = [
    call("fgai.read", _read, cost=3),
    call("fgai.audit", _audit, unsound_audit, cost=60),
    call("fgai.compare", _compare, unsound_audit, cost=120),
    call("fgai.certify", _certify, unsound_certificate, cost=20),
    call("fgai.Voted", _voted, unsound_proof, cost=20),
    call("fgai.Reader", _reader, cost=3),
    call("fgai.accelerated", _accelerated, cost=3),
    call("fgai.open_reader", _open_reader, cost=3),
    call("fgai.AttentionExplainer", _explain, cost=3),
    call("fgai.measure_faithfulness", _faithfulness, cost=20),
    call("Reading.top", _explain_node, cost=3),
    call("fgai.Perturbation", _perturbation, cost=2),
    call("fgai.Tap", _tap, cost=2),
    call("FGAI.preset", _preset, cost=1),
    *(call(f"method {name}", _fit(kind), unsound_fit, cost=20) for name, kind in METHODS.items()),
    *(call(f"adversary {name}", _attack(kind), cost=10) for name, kind in ADVERSARIES.items()),
    *(call(f"metric {name}", _metric(name), cost=10) for name in METRICS),
    *(call(f"backbone {name}", _backbone(name), cost=2) for name in BACKBONES),
    *(call(f"dataset {name}", _dataset(name), cost=20) for name in DATASETS if name.startswith("synthetic")),
    call("datasets.synthetic", _synthetic, cost=2),
    *(call(f"sanity.{name}", _sanity(name), cost=15) for name in ("without_attention", "cascading_randomisation")),
    call("large.Loader", _loader, cost=3),
    call("large.audit_batches", _by_batches(large.audit_batches), cost=60),
    call("large.certify_batches", _by_batches(large.certify_batches), cost=40),
    call("large.layerwise", _layerwise, cost=5),
    Target("large.convert", _convert, cost=3),
    Target("report.save", _report, cost=100),
]
RECORDS = {  # what calls return; nobody fills them by hand
    *("Attention", "AttentionPoint", "AuditReport", "Certificate", "Comparison", "Fit", "Reading", "FGAIError"),
    *("Faithfulness", "__version__"),
}
TRIED = {  # names of `fgai.__all__` whose targets above have other names
    **{kind.__name__: f"adversary {name}" for name, kind in ADVERSARIES.items()},
    **{kind.__name__: f"method {name}" for name, kind in METHODS.items()},
    **{name: f"fgai.{name}" for name in ("read", "audit", "compare", "certify", "Voted", "Reader")},
    **{name: f"fgai.{name}" for name in ("accelerated", "Tap")},
    **{name: f"fgai.{name}" for name in ("AttentionExplainer", "Perturbation", "open_reader", "measure_faithfulness")},
}


def untried():
    """The public names that are neither called here, nor a record, nor a module."""
    names = {target.name for target in CALLS}
    public = [name for name in fgai.__all__ if not inspect.ismodule(getattr(fgai, name)) and name not in RECORDS]
    return [name for name in public if TRIED.get(name) not in names]
