"""Every reader of files as a target: a whole file is made once, and each case reads a mutated copy."""

import hashlib
import json
import os
import shutil
from functools import cache

import numpy as np
import scipy.sparse
import torch
from campaign import Target, lasting
from inputs import graph, model
from mutations import mutated_file
from torch_geometric.data import Batch
from verdicts import unsound_audit, unsound_fit, unsound_perturbation, unsound_weights

import fgai
from fgai import datasets, saved
from fgai.adversaries import GAINS, FeatureBall, GraphInjection, NodeInjection, Perturbation
from fgai.auditing import WRITERS, AuditReport
from fgai.backbones import build
from fgai.bench.figures import figure
from fgai.bench.perturbations import Origin, SavedPerturbation, load_all, unit_test
from fgai.bench.plan import Cell, Plan
from fgai.bench.results import CellStore as Cells
from fgai.bench.results import Cost, Row, read_costs, read_rows, write_costs
from fgai.bench.tables import table_of
from fgai.large import DiskGraph, Loader, convert, convert_arrays, convert_tables
from fgai.methods import AdversarialTraining
from fgai.training.loop import _Run
from loose import loose
from worlds import molecules

ATTACK = NodeInjection(1, 2, steps=1)
CELL = Cell("tiny", "gat", "vanilla", 0)


@cache
def shelf():
    """A folder with one whole file, or folder, for every reader."""
    home = lasting("shelf")
    data = graph()
    about = {"data": "synthetic", "method": {"name": "vanilla"}, "seed": 0, "metrics": {"f1": 0.5}, "history": []}
    saved.save(home / "model", model(), backbone="gat", features=5, classes=3, **about)
    net = model()
    net.requires_grad_(False)
    report = fgai.audit(net, data, ATTACK, seeds=1)
    report.save(home / "audit.json")
    batch = loose(Batch.from_data_list(molecules(4)))
    fgai.audit(build("gat-graphs", batch), batch, GraphInjection(1, 2, steps=1), seeds=1).save(home / "graphs.json")
    FeatureBall(steps=1)(fgai.Reader(net), data, GAINS["kl"](fgai.read(net, data)))
    moved = torch.zeros(16, 5)
    nudge = {site: 0.01 * part.weight for site, part in fgai.read(net, data).attention.items()}
    _injected(data, moved, nudge).save(home / "change.safetensors")
    origin = Origin("inputs:graph", datasets.fingerprint(data), "strongest", "tiny-gat-vanilla-0", 0, 0.5, 0.4)
    SavedPerturbation(Perturbation(torch.ones(1, 5), torch.tensor([[16, 0], [0, 16]])), origin).save(
        home / "perturbations"
    )
    _checkpoint(home / "run.safetensors")
    rows = [
        Row("tiny", "gat", "vanilla", 0, {"f1": 0.5, "g_tvd": None}, attack=a, data_sha256="0") for a in ("none", "x")
    ]
    Cells(home / "cells").put(CELL, rows)
    write_costs(
        home / "costs.json", [Cost("read", "cora", "gat", 1.5, "python x.py"), Cost("fit", "cora", "gt", 2.0, "y")]
    )
    (home / "plan.toml").write_text(PLAN)
    (home / "none.toml").write_text(
        PLAN.replace("2, cora = 1", "0").replace('where = { vanilla = ["cora"] }', "")
    )  # no cells
    convert(data, home / "graph", {"data": "synthetic", "seed": 0})
    ends = data.edge_index.numpy()
    (home / "edges.txt").write_text("\n".join(f"{s} {t}" for s, t in ends.T) + "\n")
    np.save(home / "edges.npy", ends)
    np.save(home / "x.npy", data.x.numpy())
    _raw(home / "raw")
    _results(home, report)
    return home


PLAN = """title = "A table"
backbones = ["gat"]
methods = ["vanilla", "fgai:paper"]
seeds = { synthetic = 2, cora = 1 }
notes = ["a note"]
columns = [
  { heading = "F1", metric = "f1", attack = "none" },
  { heading = "TVD", metric = "g_tvd", attack = "ensemble" },
]
where = { vanilla = ["cora"] }

[paper.gat.vanilla]
cora = [0.5, 0.25]
"""


def _injected(data, moved, nudge):
    ends = torch.tensor([[16, 0], [0, 16]])
    return Perturbation(torch.ones(1, 5), ends, data.edge_index[:, :2], moved, nudge, {})


def _checkpoint(path):
    """A run of adversarial training that was killed in its eleventh epoch."""
    save, calls = _Run.save, []

    def once(run, place, settings):
        save(run, place, settings)
        calls.append(shutil.copy(place, path))

    loose(_Run).save = once
    try:
        METHOD.fit(model(), graph(), checkpoint=path.with_suffix(".tmp"))
    finally:
        _Run.save = save
    assert calls


METHOD = AdversarialTraining(adversary=ATTACK, epochs=11, patience=100)


def _raw(home):
    """A graph of 16 nodes as Amazon's raw file spells one."""
    data = graph()
    x, ones = scipy.sparse.csr_matrix(data.x.numpy()), np.ones(data.num_edges)
    links = scipy.sparse.csr_matrix((ones, data.edge_index.numpy()), (16, 16))
    parts = {
        f"{name}_{part}": getattr(matrix, part) for name, matrix in (("attr", x), ("adj", links)) for part in PARTS
    }
    folder = home / "Amazon" / "Photo" / "raw"
    folder.mkdir(parents=True)
    np.savez(folder / "amazon_electronics_photo.npz", labels=data.y.numpy(), **parts)


PARTS = ("data", "indices", "indptr", "shape")


def _results(home, report):
    """The files that figures are drawn from."""
    for method in ("vanilla", "fgai"):
        report.save(home / "results" / "audits" / f"tiny-gat-{method}-0.json")
    terms = {"closeness": 1.0, "similarity": 0.5, "prediction": 0.1, "explanation": 0.2}
    past = [{"number": i, "terms": terms, "val_f1": 0.5} for i in range(3)]
    (home / "results" / "histories").mkdir()
    (home / "results" / "histories" / "tiny-gat-fgai-0.json").write_text(json.dumps(past))


def mutated_copy(rng, source, folder):
    """A copy of a file or folder in which one file is another; the path of the copy."""
    place = folder / source.name
    if source.is_dir():
        shutil.copytree(source, place)
        victim = rng.choice(sorted(path for path in place.rglob("*") if path.is_file()))
    else:
        victim = place
        place.write_bytes(source.read_bytes())
    if rng.random() < 0.02:
        victim.unlink()
        rng.choice((lambda: None, victim.mkdir, lambda: victim.symlink_to(victim)))()
    else:
        victim.write_bytes(mutated_file(rng, victim))
    return place


def reader(name, file, use, unsound=lambda result: "", cost=1.0, tweak=lambda rng, place: None):
    """A target that reads a mutated copy of `file` of the shelf."""

    def prepare(rng, folder):
        place = mutated_copy(rng, shelf() / file, folder)
        tweak(rng, place)
        return lambda: use(place)

    return Target(name, prepare, unsound, cost)


def _signed(rng, place):
    """Half of the time the manifest names the digest of the mutated weights, so that they are looked at."""
    try:
        manifest = json.loads((place / "manifest.json").read_text())
        if rng.random() < 0.7:
            manifest["weights_sha256"] = hashlib.sha256((place / "weights.safetensors").read_bytes()).hexdigest()
            (place / "manifest.json").write_text(json.dumps(manifest))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return


def _use_audit(path):
    report = AuditReport.load(path)
    for writer in WRITERS.values():
        writer(report)
    return report


def _use_perturbation(path):
    change = Perturbation.load(path)
    change.apply(graph())
    return change


def _use_saved(folder):
    loaded = load_all(folder)
    return unit_test(model(), graph(), loaded, sha=loaded[0].origin.data_sha256)


def _use_rows(path):
    rows = read_rows(path)
    return [row.key for row in rows]


def _use_cells(folder):
    cells = Cells(folder)
    found = list(cells.all_rows()), cells.rows(CELL), cells.finished(CELL, ("none", "x"))
    table_of(Plan.read(str(shelf() / "plan.toml")), folder)
    return found


def _use_plan(path):
    plan = Plan.read(str(path))
    plan.cells({"seed": "0"})
    return plan.lines(), table_of(plan, path.parent / "none", beside_paper=True)


def _use_store(folder):
    store = DiskGraph(folder)
    batch = next(iter(Loader(store, (3, 3), batch=8)))
    assert batch.edge_index.numel() == 0 or int(batch.edge_index.max()) < batch.num_nodes
    return batch


def _use_edges(path):
    return (convert_arrays if path.suffix == ".npy" else convert_tables)(path, path.parent / "made")


def _use_array(path):
    return convert_tables(shelf() / "edges.txt", path.parent / "made", arrays={"x": path})


def _resumed(path):
    return METHOD.fit(model(), graph(), checkpoint=path)


def _dataset(root, ran):
    """Load from a cache, and see that no code in its files ran."""
    keep = os.environ.pop("FGAI_RAW", None)
    try:
        return datasets.load("amazon-photo", root=root), ran.exists()
    finally:
        if keep is not None:
            os.environ["FGAI_RAW"] = keep


class Payload:
    """What a pickle may hold: opening it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def _raw_case(rng, folder):
    if rng.random() < 0.9:
        place = mutated_copy(rng, shelf() / "raw", folder)
    else:
        place = shutil.copytree(shelf() / "raw", folder / "raw")
        parts = np.load(shelf() / "raw" / "Amazon/Photo/raw/amazon_electronics_photo.npz")
        changed = {name: parts[name] for name in parts}
        changed[rng.choice(sorted(changed))] = np.array([Payload(folder / "ran")], dtype=object)
        np.savez(place / "Amazon/Photo/raw/amazon_electronics_photo.npz", **changed)
    return lambda: _dataset(place, folder / "ran")


def _cache_case(rng, folder):
    """The dataset has been loaded once; then a file that loading made is another, or a pickle with a payload."""
    shutil.copytree(_loaded(), folder / "cache")
    made = sorted(
        p for p in (folder / "cache").rglob("*") if p.is_file() and "raw" not in p.parts and p.suffix != ".lock"
    )
    victim = rng.choice(made)
    if rng.random() < 0.3:
        torch.save(Payload(folder / "ran"), victim)
    else:
        victim.write_bytes(mutated_file(rng, victim))
    return lambda: _dataset(folder / "cache", folder / "ran")


@cache
def _loaded():
    place = lasting("cache")
    shutil.copytree(shelf() / "raw", place, dirs_exist_ok=True)
    _dataset(place, place / "ran")
    return place


def _unsound_dataset(found):
    data, ran = found
    return "code from the file ran" if ran else "" if bool(data.x.isfinite().all()) else "features are not finite"


def _figure(name):
    return lambda folder: figure(name, folder, "tiny", "gat")


READERS = [
    reader("saved model", "model", saved.load, lambda found: unsound_weights(found.model), tweak=_signed),
    reader("weights file", "model/weights.safetensors", lambda p: saved.load_weights(model(), p), unsound_weights),
    reader("checkpoint", "run.safetensors", _resumed, unsound_fit, cost=20),
    reader("perturbation", "change.safetensors", _use_perturbation, unsound_perturbation),
    reader("audit", "audit.json", _use_audit, unsound_audit, cost=3),
    reader("saved perturbations", "perturbations", _use_saved),
    reader("bench rows", "cells/tiny-gat-vanilla-0.json", _use_rows),
    reader("bench cells", "cells", _use_cells),
    reader("costs", "costs.json", read_costs),
    reader("plan", "plan.toml", _use_plan),
    reader("graph store", "graph", _use_store, cost=2),
    reader("edge list", "edges.txt", _use_edges, cost=2),
    reader("edge array", "edges.npy", _use_edges, cost=2),
    reader("node array", "x.npy", _use_array, cost=2),
    Target("dataset's raw files", _raw_case, _unsound_dataset, cost=4),
    Target("dataset's cache", _cache_case, _unsound_dataset, cost=4),
    *(reader(f"results of figure {name}", "results", _figure(name), cost=60) for name in ("stars", "loss-terms")),
]
