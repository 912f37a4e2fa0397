"""What ranks run in `test_distributed`: found by name in a process of its own."""

import json
import os
import signal
from pathlib import Path

import torch

from fgai import FGAI, NodeInjection, datasets, distributed
from fgai.backbones import build
from fgai.datasets.split import split_nodes
from fgai.errors import DataError
from fgai.large import Loader, audit_batches, full_neighbour_loader, layerwise_readings
from fgai.methods import Batches

DATA = split_nodes(datasets.synthetic(400, 4_000, features=16, classes=4, signal=1.0, seed=3), seed=3)
ATTACK = NodeInjection(nodes=2, edges=8, steps=2)
METHOD = FGAI(adversary=ATTACK, epochs=4)


def fitted(slots=1, checkpoint=None, loader=None):
    model = build("gat", DATA)
    batches = Batches(
        loader or Loader(DATA, (5, 5), batch=50),
        full_neighbour_loader(DATA, 2, seed_nodes=DATA.val_mask, batch=10),
        slots,
    )
    return METHOD.fit(model, batches, checkpoint=checkpoint)


def told(fit):
    flat = torch.cat([value.flatten() for value in fit.model.state_dict().values()])
    return {"terms": [dict(e.terms) for e in fit.history], "f1": fit.best.val_f1, "weights": flat.tolist()}


def fit_here(folder):
    """Fit, and write what this rank came to."""
    (Path(folder) / f"{distributed.rank()}.json").write_text(json.dumps(told(fitted())))


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
    """Each rank audits its share; all say the same. Then each reads its share layer by layer."""
    model = build("gat", DATA)
    found = audit_batches(model, full_neighbour_loader(DATA, 2, batch=64), ATTACK)
    parts = [(part.nodes, part.reading.logits) for part in layerwise_readings(model.eval(), DATA, batch=150)]
    nodes, logits = (torch.cat(values).tolist() for values in zip(*parts, strict=True))
    said = {"clean": dict(found.clean), "nodes": nodes, "logits": logits}
    (Path(folder) / f"{distributed.rank()}.json").write_text(json.dumps(said))


def refuse():
    """What a rank says when its disk is full."""
    raise DataError("the disk is full; make room")
