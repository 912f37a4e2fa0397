"""What ranks run in `test_distributed`: found by name in a process of its own."""

import json
import os
import signal
from pathlib import Path

import torch

from fgai import FGAI, GraphInjection, NodeInjection, datasets, distributed
from fgai.backbones import build
from fgai.datasets.split import split_nodes
from fgai.errors import DataError
from fgai.large import GraphLoader, Loader, audit_batches, certify_batches, full_neighbour_loader, layerwise_readings
from fgai.large.fitting import fit_graph
from fgai.methods import Batches
from worlds import film_model, films, molecule_batch

DATA = split_nodes(datasets.synthetic(400, 4_000, features=16, classes=4, signal=1.0, seed=3), seed=3)
ATTACK = NodeInjection(nodes=2, edges=8, steps=2)
METHOD = FGAI(adversary=ATTACK, epochs=4)
MOLECULES = molecule_batch()
GRAPHS = FGAI(adversary=GraphInjection(1, 1, steps=1), epochs=3)
TYPED = FGAI(adversary=NodeInjection(1, 3, steps=1), epochs=3)


def fitted(slots=1, checkpoint=None, loader=None):
    model = build("gat", DATA)
    batches = Batches(
        loader or Loader(DATA, (5, 5), batch=50),
        full_neighbour_loader(DATA, 2, seed_nodes=DATA.val_mask, batch=10),
        slots,
    )
    return METHOD.fit(model, batches, checkpoint=checkpoint)


def graphs_fitted(slots=0):
    """Fit on batches of seven graphs; with slots, in one process on several batches a step."""
    model, data = build("gat-graphs", MOLECULES), MOLECULES
    if not slots:
        return fit_graph(GRAPHS, model, data, batch=7)
    validation = GraphLoader(data, batch=60, graphs=data.val_mask, shuffle=False)
    return GRAPHS.fit(model, Batches(GraphLoader(data, batch=7, graphs=data.train_mask), validation, slots))


def typed_fitted(slots=0):
    """Fit on a typed graph as a whole; with slots, in one process, attacked several times a step."""
    return TYPED.fit(film_model("hgt"), Batches([films()] * slots, [films()], slots) if slots else films())


def told(fit):
    flat = torch.cat([value.flatten() for value in fit.model.state_dict().values()])
    return {"terms": [dict(e.terms) for e in fit.history], "f1": fit.best.val_f1, "weights": flat.tolist()}


def fit_here(folder):
    """Fit on nodes, on graphs and on a typed graph, and write what this rank came to."""
    found = {"nodes": told(fitted()), "graphs": told(graphs_fitted()), "typed": told(typed_fitted())}
    (Path(folder) / f"{distributed.rank()}.json").write_text(json.dumps(found))


class Killed(Loader):
    """In its third epoch, and once, rank 1 dies without a word."""

    def set_epoch(self, epoch):
        mark = Path(os.environ["FGAI_TEST_MARK"])
        if epoch == 2 and distributed.rank() == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().set_epoch(epoch)


def fit_and_die(folder):
    """The same, but one rank is killed in the middle."""
    fit = fitted(checkpoint=Path(folder) / "run", loader=Killed(DATA, (5, 5), batch=50))
    (Path(folder) / f"{distributed.rank()}.json").write_text(json.dumps(told(fit)))


def audit_here(folder):
    """Each rank audits and certifies its share; all say the same. Then each reads its share layer by layer."""
    model = build("gat", DATA)
    found = audit_batches(model, full_neighbour_loader(DATA, 2, batch=64), ATTACK)
    parts = [(part.nodes, part.reading.logits) for part in layerwise_readings(model.eval(), DATA, batch=150)]
    nodes, logits = (torch.cat(values).tolist() for values in zip(*parts, strict=True))
    radii = certify_batches(model, full_neighbour_loader(DATA, 2, batch=150), k=3, steps=1).certified
    said = {"clean": dict(found.clean), "nodes": nodes, "logits": logits, "radii": radii.tolist()}
    (Path(folder) / f"{distributed.rank()}.json").write_text(json.dumps(said))


def refuse():
    """What a rank says when its disk is full."""
    raise DataError("the disk is full; make room")
