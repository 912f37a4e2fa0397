"""The models of cells: trained once, saved in a folder, and used again."""

from __future__ import annotations

import hashlib
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from fgai import backbones, datasets, saved
from fgai.adversaries import NodeInjection
from fgai.bench.plan import Cell
from fgai.files import jsonable
from fgai.methods import METHODS, Epoch
from fgai.methods.layernorm import Normalised

PRETRAINED = "vanilla"  # the method of the model that a method with `needs_pretrained` starts from


@dataclass(frozen=True)
class TrainedModel:
    """The model of a cell, its method, the seconds and the epochs of its training, and whether it was saved before."""

    model: nn.Module
    method: Any
    seconds: float
    history: tuple[Epoch, ...]
    loaded: bool

    @property
    def sha256(self) -> str:
        """The fingerprint of the weights."""
        digest = hashlib.sha256()
        for name, tensor in self.model.state_dict().items():
            digest.update(f"{name}{list(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True)
class ModelStore:
    """A folder with the trained models of cells.

    Attributes:
        folder: The folder; each model has a folder of its own there, with the name of its cell.
        epochs: Epochs of every method; its own default if None.
        device: The device to train on.
    """

    folder: Path
    epochs: int | None = None
    device: str = "cpu"

    def path(self, cell: Cell) -> Path:
        """The folder of the saved model of a cell."""
        return self.folder / cell.name

    def trained(self, cell: Cell, data: Data, share: float = 1.0) -> TrainedModel:
        """Return the model of a cell: the saved one, or one that is trained now and saved.

        A method with `needs_pretrained` starts from the vanilla model of the same seed. `share` is the share of the
        nodes of the dataset that `data` has.
        """
        method, sha = self.method(cell, share), datasets.fingerprint(data)
        if (loaded := self._load(cell, _settings(cell, method), sha)) is not None:
            model, seconds = loaded.model.to(self.device), float(loaded.manifest["seconds"])
            return TrainedModel(model, method, seconds, loaded.history, loaded=True)
        first = self.start(cell, data)
        begin = time.perf_counter()
        fit = method.fit(first, data)
        done = TrainedModel(fit.model, method, time.perf_counter() - begin, tuple(fit.history), loaded=False)
        if isinstance(fit.model, type(first) | Normalised):  # others than backbones cannot be saved
            about = {"data": cell.dataset, "data_sha256": sha, "method": _settings(cell, method), "seed": cell.seed}
            about |= {"seconds": done.seconds, "history": [asdict(epoch) for epoch in done.history]}
            saved.save(self.path(cell), fit.model, backbone=cell.backbone, **backbones.shape_for(data), **about)
        return done

    def start(self, cell: Cell, data: Data) -> nn.Module:
        """Return the model that the method of a cell starts from: a new one, or the vanilla model of the same seed."""
        if getattr(METHODS[cell.method], "needs_pretrained", False):
            return self.trained(replace(cell, method=PRETRAINED, preset="default"), data).model
        return backbones.build(cell.backbone, data, seed=cell.seed).to(self.device)

    def method(self, cell: Cell, share: float = 1.0) -> Any:
        """Return the method of a cell. On a share of the nodes, its attack injects that share of its nodes."""
        changed = {"seed": cell.seed} | ({} if self.epochs is None else {"epochs": self.epochs})
        method = METHODS[cell.method].preset(cell.preset, **changed)
        attack = getattr(method, "adversary", None)
        if not isinstance(attack, NodeInjection) or share == 1:
            return method
        return replace(method, adversary=replace(attack, nodes=max(1, round(share * attack.nodes))))

    def _load(self, cell: Cell, settings: dict[str, Any], sha: str) -> saved.Saved | None:
        """Return the saved model of a cell if it was trained with these settings on the graph of this fingerprint."""
        if not (self.path(cell) / saved.MANIFEST).exists():
            return None
        loaded = saved.load(self.path(cell))
        about = loaded.manifest
        same = about.get("method") == settings and about.get("data_sha256") == sha
        return loaded if same and "seconds" in about else None


def _settings(cell: Cell, method: Any) -> dict[str, Any]:
    """What the manifest of a saved model says of its method."""
    return jsonable({"name": cell.method, **asdict(method)})
