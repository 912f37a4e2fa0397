"""The one training loop, and what it returns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.acceleration import accelerated
from fgai.errors import DataError, SettingError
from fgai.graph import need
from fgai.methods import checkpoint as disk
from fgai.methods.opponent import Opponent
from fgai.metrics import micro_f1
from fgai.progress import progress
from fgai.reading import Call, evaluating
from fgai.seeding import seeded

Terms = Mapping[str, Tensor]


@dataclass(frozen=True)
class Epoch:
    """What one epoch cost, term by term, and how the model did on the validation nodes when last asked."""

    number: int
    terms: Mapping[str, float]
    val_f1: float


@dataclass(frozen=True)
class Fit:
    """A trained model, the epoch whose weights it has, and the history of its training."""

    model: nn.Module
    best: Epoch
    history: tuple[Epoch, ...]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train, with Adam.

    `keep` says whose weights are kept: the `best` epoch's on validation (patience ends the rest), or the `last` one's,
    with a rate that falls to zero along a cosine.
    """

    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 5e-4
    patience: int = 100
    seed: int = 0
    keep: Literal["best", "last"] = "best"

    def rate(self, number: int) -> float:
        """The learning rate of an epoch."""
        return self.lr if self.keep == "best" else self.lr * (1 + math.cos(math.pi * number / self.epochs)) / 2


@dataclass
class _Run:
    """The state of a run: all that a checkpoint holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    opponents: Sequence[Opponent]
    kept: dict[str, Tensor]
    history: list[Epoch]
    best: tuple[float, float] = (-1.0, 0.0)  # validation F1, minus the loss
    chosen: int = -1

    def save(self, path: Path, settings: Mapping[str, Any]) -> None:
        tensors = {
            "model": self.model.state_dict(),
            "kept": {name: value.clone() for name, value in self.kept.items()},  # it may be the model's own
            "optimizer": disk.optimizer_tensors(self.optimizer),
            "random": {"torch": torch.get_rng_state()},
            **{f"opponent{i}": opponent.state() for i, opponent in enumerate(self.opponents)},
        }
        history = [asdict(epoch) for epoch in self.history]
        disk.save(path, tensors, {"settings": settings, "best": self.best, "chosen": self.chosen, "history": history})

    def restore(self, path: Path, settings: Mapping[str, Any]) -> None:
        tensors, about = disk.load(path)
        if about["settings"] != settings:
            raise SettingError(
                f"{path} holds a run with {about['settings']}, and this one has {settings}; "
                "give another file, or delete that one"
            )
        self.model.load_state_dict(tensors["model"])
        self.kept = tensors["kept"]
        disk.restore_optimizer(self.optimizer, tensors["optimizer"])
        torch.set_rng_state(tensors["random"]["torch"])
        for i, opponent in enumerate(self.opponents):
            opponent.restore(tensors[f"opponent{i}"])
        self.best, self.chosen = tuple(about["best"]), about["chosen"]
        self.history = [Epoch(**epoch) for epoch in about["history"]]


def train(
    model: nn.Module,
    data: Data,
    terms: Callable[[nn.Module, int], Terms],
    call: Call,
    schedule: Schedule,
    title: str,
    *,
    opponents: Sequence[Opponent] = (),
    checkpoint: str | Path | None = None,
) -> Fit:
    """Minimise the sum of `terms(model, epoch)` over a copy of `model`.

    With `checkpoint` the run is written to that file every ten epochs, and one that is found there is gone on with; the
    result is that of a run that was not interrupted. A finished run takes the file away.
    """
    if schedule.epochs < 1 or not need(data, "val_mask").any():
        raise DataError(
            f"{schedule.epochs} epochs and {int(need(data, 'val_mask').sum())} validation nodes; training needs at "
            "least one of each, the best epoch is chosen by them"
        )
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), schedule.lr, weight_decay=schedule.weight_decay)
    run = _Run(model, optimizer, opponents, copy.deepcopy(model.state_dict()), [])
    settings, path = {"title": title, **asdict(schedule)}, None if checkpoint is None else Path(checkpoint)
    with seeded(schedule.seed), accelerated(model, as_pyg=False), progress(title, schedule.epochs) as advance:
        if path is not None and path.exists():
            run.restore(path, settings)
            for epoch in run.history:
                advance(f"validation F1 {epoch.val_f1:.3f}")
        for number in range(len(run.history), schedule.epochs):
            _epoch(run, number, terms, schedule, lambda: validate(model, data, call))
            advance(f"validation F1 {run.history[-1].val_f1:.3f}")
            if schedule.keep == "best" and number - run.chosen >= schedule.patience:
                break
            if path is not None and number % 10 == 9:
                run.save(path, settings)
    if path is not None:
        path.unlink(missing_ok=True)
    model.load_state_dict(run.kept)
    return Fit(model.eval(), run.history[run.chosen], tuple(run.history))


def _epoch(
    run: _Run,
    number: int,
    terms: Callable[[nn.Module, int], Terms],
    schedule: Schedule,
    judge: Callable[[], tuple[float, float]],
) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] = schedule.rate(number)
    run.model.train()
    run.optimizer.zero_grad()
    parts = terms(run.model, number)
    torch.stack(list(parts.values())).sum().backward()
    run.optimizer.step()
    if schedule.keep == "best" or number % 10 == 9 or number + 1 == schedule.epochs:
        f1, loss = judge()
    else:  # the last epoch is kept anyhow
        f1, loss = (run.history[-1].val_f1, 0.0) if run.history else (0.0, 0.0)
    run.history.append(Epoch(number, {name: float(part.detach()) for name, part in parts.items()}, f1))
    if schedule.keep == "last":
        run.kept, run.chosen = run.model.state_dict(), number
    elif (f1, -loss) > run.best:
        run.best, run.kept, run.chosen = (f1, -loss), copy.deepcopy(run.model.state_dict()), number


def validate(model: nn.Module, data: Data, call: Call) -> tuple[float, float]:
    """Micro-F1 and cross-entropy on the validation nodes."""
    mask, y = need(data, "val_mask"), need(data, "y")
    with evaluating(model), torch.no_grad():
        logits = call(model, data)[mask]
    return micro_f1(logits, y[mask]), float(nn.functional.cross_entropy(logits, y[mask]))
