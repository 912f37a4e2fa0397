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

from fgai import distributed as ranks
from fgai.calling import Call
from fgai.devices import device_of, random_state, restore_random_state
from fgai.errors import DataError, SettingError
from fgai.progress import progress
from fgai.reading import TrainingReader, training_reader
from fgai.records import record
from fgai.seeding import seeded
from fgai.settings import check_numbers, check_seed, check_whole
from fgai.training import checkpoint as disk
from fgai.training.checks import BatchChecks, check_terms, check_weights, fingerprint
from fgai.training.data import Batch, BatchSource
from fgai.training.warm_start import WarmStart

Terms = Mapping[str, Tensor]
TermsOf = Callable[[TrainingReader, Batch], Terms]


@dataclass(frozen=True)
class Epoch:
    """What one epoch cost, term by term, and how the model did on the validation nodes when last asked, if ever.

    >>> Epoch(0, {"label": 1.9}, 0.25).status, Epoch(0, {"label": 1.9}, None).status
    ('validation F1 0.250', '')
    """

    number: int
    terms: Mapping[str, float]
    val_f1: float | None

    @property
    def status(self) -> str:
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

    def __post_init__(self) -> None:
        check_whole(1, epochs=self.epochs, patience=self.patience)
        check_numbers(0, lr=self.lr, weight_decay=self.weight_decay)
        check_seed(self.seed)

    def rate(self, number: int) -> float:
        """The learning rate of an epoch."""
        return self.lr if self.keep == "best" else self.lr * (1 + math.cos(math.pi * number / self.epochs)) / 2


@dataclass
class _Run:
    """The state of a run: all that a checkpoint holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    warm_starts: Sequence[WarmStart]
    best_state: dict[str, Tensor]
    history: list[Epoch]
    best: tuple[float, float] = (-1.0, 0.0)  # validation F1, minus the loss
    best_epoch: int = -1

    def save(self, path: Path, settings: Mapping[str, Any]) -> None:
        device = device_of(self.model)
        own = {"random/torch": torch.get_rng_state()}
        if device.type != "cpu":
            own["random/device"] = random_state(device)
        for i, warm_start in enumerate(self.warm_starts):
            own |= {f"opponent{i}/{name}": value for name, value in warm_start.state().items()}
        tensors = {
            "model": self.model.state_dict(),  # `disk.save` copies to the CPU
            "kept": {name: value.clone() for name, value in self.best_state.items()},  # it may be the model's own
            "optimizer": disk.optimizer_tensors(self.optimizer),
            **{f"rank{number}": theirs for number, theirs in enumerate(ranks.all_gather(own))},
        }
        history = [asdict(epoch) for epoch in self.history]
        about = {"settings": settings, "best": self.best, "best_epoch": self.best_epoch, "history": history}
        if ranks.rank() == 0:
            disk.save(path, tensors, about)

    def restore(self, path: Path, settings: Mapping[str, Any]) -> None:
        tensors, about = disk.load(path)
        if about.settings != settings:
            was = about.settings
            other = sorted(name for name in {*was, *settings} if was.get(name) != settings.get(name))
            raise SettingError(
                f"{path} holds a run with other {', '.join(other)}: { {name: was.get(name) for name in other} }, and "
                f"this one has { {name: settings.get(name) for name in other} }; give another file, or delete that one"
            )
        history = tuple(record(Epoch, epoch, path, disk.REMEDY) for epoch in about.history)
        check_history(history, path, disk.REMEDY)
        device = device_of(self.model)
        own = tensors.get(f"rank{ranks.rank()}", {})
        moved = {name: value.to(device) for name, value in own.items() if name.startswith("opponent")}
        states = [
            {name: moved.get(f"opponent{i}/{name}") for name in warm_start.state()}
            for i, warm_start in enumerate(self.warm_starts)
        ]
        disk.check(path, tensors, self.model, self.optimizer)
        disk.check_random(path, own.get("random/torch"))
        if not -1 <= about.best_epoch < len(history) or [epoch.number for epoch in history] != [*range(len(history))]:
            raise DataError(f"{path} chose epoch {about.best_epoch} of {len(history)}; {disk.REMEDY}")
        for warm_start, state in zip(self.warm_starts, states, strict=True):
            warm_start.restore(state, path)
        self.model.load_state_dict(tensors["model"])
        self.best_state = tensors["kept"]
        disk.restore_optimizer(self.optimizer, tensors["optimizer"])
        torch.set_rng_state(own["random/torch"])
        if device.type != "cpu" and "random/device" in own:
            restore_random_state(own["random/device"], device)
        self.best, self.best_epoch, self.history = about.best, about.best_epoch, list(history)


def check_history(history: Sequence[Epoch], path: object, remedy: str) -> None:
    """Refuse a history of a file whose epochs do not have the same terms."""
    if len({tuple(epoch.terms) for epoch in history}) > 1:
        raise DataError(f"{path} holds a history whose epochs have different terms; {remedy}")


def train(
    model: nn.Module,
    source: BatchSource,
    terms: TermsOf,
    call: Call,
    schedule: Schedule,
    method: object,
    *,
    warm_starts: Sequence[WarmStart] = (),
    checkpoint: str | Path | None = None,
) -> Fit:
    """Minimise the sum of `terms(read, part)` over a copy of `model`, a step for each list of parts of the source.

    `read` reads that copy. With `checkpoint` the run is written to that file every ten epochs (every epoch of batches),
    and one that is found there is gone on with; the result is that of a run that was not interrupted. A finished run
    takes the file away. Several ranks average their gradients.
    """
    if schedule.keep == "best" and not source.has_validation:
        raise DataError(
            "the best epoch is chosen by validation nodes, and there is no `val_mask` of any; give one that holds "
            "some. With a loader: Batches(loader, validation=another)"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise DataError(
            f"{type(model).__name__} has no parameter that can learn: all are frozen, or there is none; call "
            "requires_grad_() on those to train"
        )
    if half := sorted({str(p.dtype) for p in model.parameters() if p.dtype in (torch.half, torch.bfloat16)}):
        raise SettingError(
            f"the model has weights in {', '.join(half)}, in which small steps are lost; train it with model.float(), "
            "under torch.autocast in `call` if it is to be fast, and convert the result"
        )
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), schedule.lr, weight_decay=schedule.weight_decay)
    run = _Run(model, optimizer, warm_starts, copy.deepcopy(model.state_dict()), [])
    title, path = type(method).__name__, checkpoint and Path(checkpoint)
    called = getattr(call, "__qualname__", type(call).__name__)
    about = {"method": repr(method), "model": type(model).__name__, "call": called}
    settings = {
        **about,
        "ranks": ranks.world_size(),
        **asdict(schedule),
        **(fingerprint(source.graphs, model) if path else {}),
    }
    reader, bar, batch_checks = training_reader(model, call), progress(title, schedule.epochs), BatchChecks(call)
    with seeded(schedule.seed), reader as read, bar as advance:
        told = partial(_checked_terms, terms, batch_checks, read)
        if path and path.exists():
            run.restore(path, settings)
            for epoch in run.history:
                advance(epoch.status)
        for number in range(len(run.history), schedule.epochs):
            _epoch(run, read, number, told, schedule, source)
            advance(run.history[-1].status)
            if schedule.keep == "best" and number - run.best_epoch >= schedule.patience:
                break
            if path and _due(number, source):
                run.save(path, settings)
    if path and ranks.rank() == 0:
        path.unlink(missing_ok=True)
    check_weights(run.best_state)
    model.load_state_dict(run.best_state)
    return Fit(model.eval(), run.history[run.best_epoch], tuple(run.history))


def _checked_terms(terms: TermsOf, batch_checks: BatchChecks, read: TrainingReader, part: Batch) -> Terms:
    """The terms of a part, once what they rest on is checked."""
    batch_checks.check(read.model, part)
    return terms(read, part)


def _due(number: int, source: BatchSource) -> bool:
    return number % source.eval_interval == source.eval_interval - 1


def _epoch(
    run: _Run,
    read: TrainingReader,
    number: int,
    terms: Callable[[Batch], Terms],
    schedule: Schedule,
    source: BatchSource,
) -> None:
    for group in run.optimizer.param_groups:
        group["lr"] = schedule.rate(number)
    run.model.train()
    told = [_step(run, terms, parts) for parts in source.epoch(number)]
    check_terms(means := _means(told), number)
    f1, loss = run.history[-1].val_f1 if run.history else None, 0.0
    due = schedule.keep == "best" or _due(number, source) or number + 1 == schedule.epochs  # the last is kept anyhow
    if due and source.has_validation:
        f1, loss = source.validate(run.model, read.call)
    run.history.append(Epoch(number, means, f1))
    if schedule.keep == "last":
        run.best_state, run.best_epoch = run.model.state_dict(), number
    elif f1 is not None and (f1, -loss) > run.best:
        run.best, run.best_state, run.best_epoch = (f1, -loss), copy.deepcopy(run.model.state_dict()), number


def _step(run: _Run, terms: Callable[[Batch], Terms], parts: Sequence[Batch]) -> list[Terms]:
    """One step down the mean loss of the parts of all ranks; what this rank's were, term by term."""
    run.optimizer.zero_grad()
    told = []
    for part in (part.on(device_of(run.model)) for part in parts):
        found = terms(part)
        (torch.stack(list(found.values())).sum() / len(parts)).backward()
        told.append({name: value.detach() for name, value in found.items()})
    ranks.average_gradients(run.model.parameters())
    run.optimizer.step()
    return told


def _means(told: Sequence[Sequence[Terms]]) -> dict[str, float]:
    """The mean over the parts of each step, then over steps and ranks, term by term; a device is asked once."""
    names = list(told[0][0])
    values = iter(torch.stack([torch.stack([part[name] for name in names]) for step in told for part in step]).tolist())
    steps = [[next(values) for _ in step] for step in told]
    means = [[sum(column) / len(step) for column in zip(*step, strict=True)] for step in steps]
    total = ranks.all_reduce(torch.tensor(means, dtype=torch.double).mean(0))
    return dict(zip(names, (total / ranks.world_size()).tolist(), strict=True))
