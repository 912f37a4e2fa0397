"""The training loop of all methods, and its result."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from fgai import distributed
from fgai.calling import Call, call_by_signature
from fgai.copying import copy_to_train
from fgai.devices import device_of, random_state, restore_random_state
from fgai.errors import CallError, DataError, SettingError
from fgai.progress import progress
from fgai.reading import TrainingReader, training_reader
from fgai.records import record
from fgai.seeding import seeded
from fgai.settings import check_numbers, check_seed, check_whole
from fgai.training import checkpoint as disk
from fgai.training.checks import BatchChecks, check_terms, check_weights, fingerprint
from fgai.training.constraint import Constraint
from fgai.training.data import Batch, BatchSource
from fgai.training.history import Epoch, check_history
from fgai.training.warm_start import WarmStart

Terms = Mapping[str, Tensor]
LossTerms = Callable[[TrainingReader, Batch], Terms]
MAX_RATE = 1e6  # of lr and weight_decay: larger ones overflow float32


@dataclass(frozen=True)
class Fit:
    """A trained model, the epoch that its weights are from, and all epochs."""

    model: nn.Module
    best: Epoch
    history: tuple[Epoch, ...]

    def __repr__(self) -> str:
        parts = [type(self.model).__name__, f"epoch {self.best.number} of {len(self.history)}", self.best.status]
        return f"Fit({', '.join(filter(None, parts))})"


@dataclass(frozen=True)
class Schedule:
    """Length, learning rate and seed of a training run with Adam.

    `keep` selects the weights to return: those of the `best` epoch on the validation nodes (training stops after
    `patience` epochs without a better one), or of the `last` epoch, with a learning rate that decays to zero along a
    cosine.
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
        if max(self.lr, self.weight_decay) > MAX_RATE:
            raise SettingError(f"lr={self.lr!r}, weight_decay={self.weight_decay!r}; give at most {MAX_RATE:g} each")
        check_seed(self.seed)

    def rate(self, number: int) -> float:
        """Return the learning rate of an epoch."""
        return self.lr if self.keep == "best" else self.lr * (1 + math.cos(math.pi * number / self.epochs)) / 2


class Scheduled(Protocol):
    """A method with a training schedule."""

    @property
    def schedule(self) -> Schedule:
        """Length, learning rate and seed of the training."""
        ...


@dataclass
class _Run:
    """The state of a run, all of which a checkpoint saves."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    warm_starts: Sequence[WarmStart]
    constraint: Constraint | None
    best_state: dict[str, Tensor]
    history: list[Epoch]
    best: tuple[float, float] = (-1.0, 0.0)  # validation F1, minus the loss
    best_epoch: int = -1
    steps: int = 0

    def save(self, path: Path, settings: Mapping[str, Any]) -> None:
        device = device_of(self.model)
        own = {"random/torch": torch.get_rng_state()}
        if device.type != "cpu":
            own["random/device"] = random_state(device)
        for i, warm_start in enumerate(self.warm_starts):
            own |= {f"warm_start{i}/{name}": value for name, value in warm_start.state().items()}
        tensors = {
            "model": self.model.state_dict(),  # `disk.save` copies to the CPU
            "best": {name: value.clone() for name, value in self.best_state.items()},  # may share the model's memory
            "optimizer": disk.optimizer_tensors(self.optimizer),
            **{f"rank{number}": theirs for number, theirs in enumerate(distributed.all_gather(own))},
        }
        history = [asdict(epoch) for epoch in self.history]
        about = {"best": self.best, "best_epoch": self.best_epoch, "steps": self.steps, "history": history}
        if distributed.rank() == 0:
            disk.save(path, tensors, {"settings": settings, **about})

    def restore(self, path: Path, settings: Mapping[str, Any]) -> None:
        tensors, about = disk.load(path)
        if about.settings != settings:
            was = about.settings
            other = sorted(name for name in {*was, *settings} if was.get(name) != settings.get(name))
            raise SettingError(
                f"{path} holds a run with other {', '.join(other)}: { {name: was.get(name) for name in other} }, but "
                f"this run has { {name: settings.get(name) for name in other} }; give another file, or delete that one"
            )
        history = tuple(record(Epoch, epoch, path, disk.REMEDY) for epoch in about.history)
        check_history(history, path, disk.REMEDY)
        device = device_of(self.model)
        own = tensors.get(f"rank{distributed.rank()}", {})
        attacks = {name: value.to(device) for name, value in own.items() if name.startswith("warm_start")}
        states = [
            {name: attacks.get(f"warm_start{i}/{name}") for name in warm_start.state()}
            for i, warm_start in enumerate(self.warm_starts)
        ]
        disk.check(path, tensors, self.model, self.optimizer)
        disk.check_random(path, own.get("random/torch"))
        numbered = [epoch.number for epoch in history] == [*range(len(history))]
        if not -1 <= about.best_epoch < len(history) <= about.steps or not numbered:
            raise DataError(
                f"{path} names epoch {about.best_epoch} as the best of {about.steps} steps, and its {len(history)} "
                f"epochs do not fit that; {disk.REMEDY}"
            )
        for warm_start, state in zip(self.warm_starts, states, strict=True):
            warm_start.restore(state, path)
        self.model.load_state_dict(tensors["model"])
        self.best_state = tensors["best"]
        disk.restore_optimizer(self.optimizer, tensors["optimizer"])
        torch.set_rng_state(own["random/torch"])
        if device.type != "cpu" and "random/device" in own:
            restore_random_state(own["random/device"], device)
        self.best, self.best_epoch, self.steps = about.best, about.best_epoch, about.steps
        self.history = list(history)


def train(
    method: Scheduled,
    model: nn.Module,
    source: BatchSource,
    terms: LossTerms,
    *,
    call: Call | None = None,
    warm_starts: Sequence[WarmStart] = (),
    constraint: Constraint | None = None,
    checkpoint: str | Path | None = None,
) -> Fit:
    """Minimise the sum of the loss terms over a copy of `model`; several ranks average their gradients.

    Args:
        method: The method, whose schedule is used and whose settings a checkpoint must match.
        model: The model to start from; it is not changed.
        source: The batches of each step, and the validation nodes.
        terms: `terms(read, batch)` returns the loss terms of a batch by name; `read` reads the copy.
        call: How the model is called on a graph; by its signature by default.
        warm_starts: The attacks of `terms`, whose state a checkpoint saves.
        constraint: What every step keeps the weights to.
        checkpoint: A file to which the run is saved every `source.eval_interval` epochs. If it exists, the run
            resumes, and the result is that of an uninterrupted run. A finished run deletes it.
    """
    schedule, call = method.schedule, call or call_by_signature
    _check_inputs(model, source, schedule)
    model = copy_to_train(model)
    if constraint is not None:
        constraint.start(model)
    optimizer = torch.optim.Adam(model.parameters(), schedule.lr, weight_decay=schedule.weight_decay)
    run = _Run(model, optimizer, warm_starts, constraint, copy.deepcopy(model.state_dict()), [])
    path = checkpoint and Path(checkpoint)
    settings = _settings(method, model, call) | (fingerprint(source.graphs, model) if path else {})
    reader, bar = training_reader(model, call), progress(type(method).__name__, schedule.epochs)
    with torch.enable_grad(), seeded(schedule.seed), reader as read, bar as advance:
        checked_terms = partial(_checked_terms, terms, BatchChecks(call, constraint), read)
        if path and path.exists():
            run.restore(path, settings)
            for epoch in run.history:
                advance(epoch.status)
        for number in range(len(run.history), schedule.epochs):
            _epoch(run, read, number, checked_terms, schedule, source)
            advance(run.history[-1].status)
            if schedule.keep == "best" and number - run.best_epoch >= schedule.patience:
                break
            if path and _due(number, source):
                run.save(path, settings)
    if path and distributed.rank() == 0:
        path.unlink(missing_ok=True)
    check_weights(run.best_state)
    model.load_state_dict(run.best_state)
    return Fit(model.eval(), run.history[run.best_epoch], tuple(run.history))


def _check_inputs(model: nn.Module, source: BatchSource, schedule: Schedule) -> None:
    """Raise an error for a model or data that cannot be trained."""
    if schedule.keep == "best" and not source.has_validation:
        raise DataError(
            "the best epoch is chosen on validation nodes, but there is no `val_mask` that holds any; give one. With "
            "a loader: Batches(loader, validation=another)"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise DataError(
            f"{type(model).__name__} has no trainable parameter: all are frozen, or there is none; call "
            "requires_grad_() on those to train"
        )
    if half := sorted({str(p.dtype) for p in model.parameters() if p.dtype in (torch.half, torch.bfloat16)}):
        raise SettingError(
            f"the model has weights in {', '.join(half)}, in which small updates are lost; train model.float(), with "
            "torch.autocast in `call` for speed, and convert the result"
        )


def _settings(method: Scheduled, model: nn.Module, call: Call) -> dict[str, Any]:
    """Return the settings that two runs must share for one to resume the other."""
    called = getattr(call, "__qualname__", type(call).__name__)
    about = {"method": repr(method), "model": type(model).__name__, "call": called}
    return {**about, "ranks": distributed.world_size(), **asdict(method.schedule)}


def _checked_terms(terms: LossTerms, batch_checks: BatchChecks, read: TrainingReader, batch: Batch) -> Terms:
    """Check a batch, then return its loss terms."""
    batch_checks.check(read, batch)
    return terms(read, batch)


def _due(number: int, source: BatchSource) -> bool:
    """Return whether an epoch ends with a validation and a checkpoint."""
    return number % source.eval_interval == source.eval_interval - 1


def _epoch(
    run: _Run,
    read: TrainingReader,
    number: int,
    terms: Callable[[Batch], Terms],
    schedule: Schedule,
    source: BatchSource,
) -> None:
    """Train one epoch, validate if due, and update the history and the best weights of the run."""
    for group in run.optimizer.param_groups:
        group["lr"] = schedule.rate(number)
    run.model.train()
    steps = [_step(run, terms, batches) for batches in source.epoch(number)]
    check_terms(means := _means(steps), number)
    f1, loss = run.history[-1].val_f1 if run.history else None, 0.0
    due = schedule.keep == "best" or _due(number, source) or number + 1 == schedule.epochs  # always after the last
    if due and source.has_validation:
        f1, loss = source.validate(run.model, read.call)
    run.history.append(Epoch(number, means, f1))
    if schedule.keep == "last":
        run.best_state, run.best_epoch = run.model.state_dict(), number
    elif f1 is not None and (f1, -loss) > run.best:
        run.best, run.best_state, run.best_epoch = (f1, -loss), copy.deepcopy(run.model.state_dict()), number


def _step(run: _Run, terms: Callable[[Batch], Terms], batches: Sequence[Batch]) -> list[Terms]:
    """Take one step on the mean loss over the batches of all ranks; return the terms of this rank's batches."""
    run.optimizer.zero_grad()
    terms_of_batches = []
    for batch in (batch.to(device_of(run.model)) for batch in batches):
        loss_terms = terms(replace(batch, step=run.steps))
        loss = torch.stack(list(loss_terms.values())).sum() / len(batches)
        if not loss.requires_grad:
            raise CallError(
                f"the predictions of {type(run.model).__name__} do not depend on a parameter that can be trained; "
                "check its forward, and that some parameter has requires_grad"
            )
        loss.backward()
        terms_of_batches.append({name: value.detach() for name, value in loss_terms.items()})
    distributed.average_gradients(run.model.parameters())
    if run.constraint is not None:
        run.constraint.before_step(run.model)
    run.optimizer.step()
    if run.constraint is not None:
        run.constraint.after_step(run.model)
    run.steps += 1
    return terms_of_batches


def _means(steps: Sequence[Sequence[Terms]]) -> dict[str, float]:
    """Return the mean of each term over the batches of a step, then over steps and ranks, with one device transfer."""
    names = list(steps[0][0])
    rows = [torch.stack([terms[name] for name in names]) for step in steps for terms in step]
    values = iter(torch.stack(rows).tolist())
    by_step = [[next(values) for _ in step] for step in steps]
    means = [[sum(column) / len(step) for column in zip(*step, strict=True)] for step in by_step]
    total = distributed.all_reduce(torch.tensor(means, dtype=torch.double).mean(0))
    return dict(zip(names, (total / distributed.world_size()).tolist(), strict=True))
