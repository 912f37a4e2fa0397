"""The one training loop, and what it returns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.acceleration import accelerated
from fgai.errors import DataError
from fgai.graph import need
from fgai.metrics import micro_f1
from fgai.progress import progress
from fgai.reading import Call, evaluating
from fgai.seeding import seeded

Terms = Mapping[str, Tensor]


@dataclass(frozen=True)
class Epoch:
    """What one epoch cost, term by term, and how the model then did on the validation nodes."""

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
    """How long and how fast to train: Adam; the best epoch on validation is kept, and patience ends the rest."""

    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 5e-4
    patience: int = 100
    seed: int = 0


def train(
    model: nn.Module,
    data: Data,
    terms: Callable[[nn.Module], Terms],
    call: Call,
    schedule: Schedule,
    title: str,
) -> Fit:
    """Minimise the sum of `terms` over a copy of `model`; the best epoch by validation F1 (ties: by loss) is kept."""
    if schedule.epochs < 1 or not need(data, "val_mask").any():
        raise DataError(
            f"{schedule.epochs} epochs and {int(need(data, 'val_mask').sum())} validation nodes; training needs at "
            "least one of each, the best epoch is chosen by them"
        )
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), schedule.lr, weight_decay=schedule.weight_decay)
    history: list[Epoch] = []
    best, kept, chosen = (-1.0, 0.0), model.state_dict(), Epoch(-1, {}, 0.0)
    with seeded(schedule.seed), accelerated(model), progress(title, schedule.epochs) as advance:
        for number in range(schedule.epochs):
            model.train()
            optimizer.zero_grad()
            parts = terms(model)
            torch.stack(list(parts.values())).sum().backward()
            optimizer.step()
            f1, loss = validate(model, data, call)
            history.append(Epoch(number, {name: float(part.detach()) for name, part in parts.items()}, f1))
            advance(f"validation F1 {f1:.3f}")
            if (f1, -loss) > best:
                best, kept, chosen = (f1, -loss), copy.deepcopy(model.state_dict()), history[-1]
            elif number - chosen.number >= schedule.patience:
                break
    model.load_state_dict(kept)
    return Fit(model.eval(), chosen, tuple(history))


def validate(model: nn.Module, data: Data, call: Call) -> tuple[float, float]:
    """Micro-F1 and cross-entropy on the validation nodes."""
    mask, y = need(data, "val_mask"), need(data, "y")
    with evaluating(model), torch.no_grad():
        logits = call(model, data)[mask]
    return micro_f1(logits, y[mask]), float(nn.functional.cross_entropy(logits, y[mask]))
