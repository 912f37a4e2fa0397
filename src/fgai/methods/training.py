"""The one training loop, and what it returns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fgai import ranks
from fgai.errors import DataError, SettingError
from fgai.methods import checkpoint as disk
from fgai.methods.batches import Part, Source
from fgai.methods.opponent import Opponent
from fgai.progress import progress
from fgai.reading import Call, TrainingReader, training_reader
from fgai.seeding import seeded

Terms = Mapping[str, Tensor]
TermsOf = Callable[[TrainingReader, Part], Terms]


@dataclass(frozen=True)
class Epoch:
    """What one epoch cost, term by term, and how the model did on the validation nodes when last asked, if ever.

    >>> Epoch(0, {"label": 1.9}, 0.25).said, Epoch(0, {"label": 1.9}, None).said
    ('validation F1 0.250', '')
    """

    number: int
    terms: Mapping[str, float]
    val_f1: float | None

    @property
    def said(self) -> str:
        """Of the validation, while training goes on."""
        return "" if self.val_f1 is None else f"validation F1 {self.val_f1:.3f}"


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
        own = {"random/torch": torch.get_rng_state()}
        for i, opponent in enumerate(self.opponents):
            own |= {f"opponent{i}/{name}": value for name, value in opponent.state().items()}
        tensors = {
            "model": self.model.state_dict(),
            "kept": {name: value.clone() for name, value in self.kept.items()},  # it may be the model's own
            "optimizer": disk.optimizer_tensors(self.optimizer),
            **{f"rank{number}": theirs for number, theirs in enumerate(ranks.gathered(own))},
        }
        history = [asdict(epoch) for epoch in self.history]
        about = {"settings": settings, "best": self.best, "chosen": self.chosen, "history": history}
        if ranks.rank() == 0:
            disk.save(path, tensors, about)

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
        own = tensors[f"rank{ranks.rank()}"]
        torch.set_rng_state(own["random/torch"])
        for i, opponent in enumerate(self.opponents):
            opponent.restore({name: own[f"opponent{i}/{name}"] for name in opponent.state()})
        self.best, self.chosen = tuple(about["best"]), about["chosen"]
        self.history = [Epoch(**epoch) for epoch in about["history"]]


def train(
    model: nn.Module,
    source: Source,
    terms: TermsOf,
    call: Call,
    schedule: Schedule,
    method: object,
    *,
    opponents: Sequence[Opponent] = (),
    checkpoint: str | Path | None = None,
) -> Fit:
    """Minimise the sum of `terms(read, part)` over a copy of `model`, a step for each list of parts of the source.

    `read` reads that copy. With `checkpoint` the run is written to that file every ten epochs (every epoch of batches),
    and one that is found there is gone on with; the result is that of a run that was not interrupted. A finished run
    takes the file away. Several ranks average their gradients.
    """
    if schedule.epochs < 1 or (schedule.keep == "best" and not source.judged):
        raise DataError(
            f"{schedule.epochs} epochs, and {'some' if source.judged else 'no `val_mask` of'} validation nodes; give "
            "at least one of each, the best epoch is chosen by them. With a loader: Batches(loader, validation=another)"
        )
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), schedule.lr, weight_decay=schedule.weight_decay)
    run = _Run(model, optimizer, opponents, copy.deepcopy(model.state_dict()), [])
    title, path = type(method).__name__, checkpoint and Path(checkpoint)
    called = getattr(call, "__qualname__", type(call).__name__)
    about = {"method": repr(method), "model": type(model).__name__, "call": called}
    settings = {**about, "ranks": ranks.world(), **asdict(schedule)}
    reader, bar = training_reader(model, call), progress(title, schedule.epochs)
    with seeded(schedule.seed), reader as read, bar as advance:
        if path and path.exists():
            run.restore(path, settings)
            for epoch in run.history:
                advance(epoch.said)
        for number in range(len(run.history), schedule.epochs):
            _epoch(run, read, number, terms, schedule, source)
            advance(run.history[-1].said)
            if schedule.keep == "best" and number - run.chosen >= schedule.patience:
                break
            if path and _due(number, source):
                run.save(path, settings)
    if path and ranks.rank() == 0:
        path.unlink(missing_ok=True)
    model.load_state_dict(run.kept)
    return Fit(model.eval(), run.history[run.chosen], tuple(run.history))


def _due(number: int, source: Source) -> bool:
    return number % source.every == source.every - 1


def _epoch(run: _Run, read: TrainingReader, number: int, terms: TermsOf, schedule: Schedule, source: Source) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] = schedule.rate(number)
    run.model.train()
    told = [_step(run, partial(terms, read), parts) for parts in source.epoch(number)]
    f1, loss = run.history[-1].val_f1 if run.history else None, 0.0
    due = schedule.keep == "best" or _due(number, source) or number + 1 == schedule.epochs  # the last is kept anyhow
    if due and source.judged:
        f1, loss = source.validate(run.model, read.call)
    run.history.append(Epoch(number, _mean(told), f1))
    if schedule.keep == "last":
        run.kept, run.chosen = run.model.state_dict(), number
    elif f1 is not None and (f1, -loss) > run.best:
        run.best, run.kept, run.chosen = (f1, -loss), copy.deepcopy(run.model.state_dict()), number


def _step(run: _Run, terms: Callable[[Part], Terms], parts: Sequence[Part]) -> dict[str, float]:
    """One step down the mean loss of the parts of all ranks; what this rank's were, term by term."""
    run.optimizer.zero_grad()
    told = []
    for part in parts:
        found = terms(part)
        (torch.stack(list(found.values())).sum() / len(parts)).backward()
        told.append({name: float(value.detach()) for name, value in found.items()})
    ranks.average_gradients(run.model.parameters())
    run.optimizer.step()
    return {name: sum(one[name] for one in told) / len(told) for name in told[0]}


def _mean(told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean over steps and ranks, term by term."""
    names = list(told[0])
    total = ranks.summed(torch.tensor([[one[name] for name in names] for one in told], dtype=torch.double).mean(0))
    return dict(zip(names, (total / ranks.world()).tolist(), strict=True))
