"""Running a plan: every cell that is not finished is trained, attacked, and kept."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data

from fgai import backbones, datasets, saved
from fgai.attention import Attention
from fgai.auditing.audit import CERTIFIED
from fgai.bench.cells import ATTACKS, row_per_attack
from fgai.bench.engines import ENGINES, default_workers
from fgai.bench.plan import Cell, Plan
from fgai.bench.results import CellStore, Row
from fgai.bench.tracking import Track
from fgai.certificates import certified_radius, certified_share
from fgai.devices import placed
from fgai.errors import SettingError
from fgai.methods import METHODS
from fgai.metrics import METRICS
from fgai.progress import progress
from fgai.reading import read
from fgai.registry import import_from_cwd
from fgai.seeding import seeded

K = 10
CERTIFIED_NAMES = (*(f"share_{radius:g}" for radius in CERTIFIED), "median_radius")
REFINED = "vanilla"  # what a method that refines a trained model starts from


@dataclass(frozen=True)
class Settings:
    """How cells run, the same for all: attacks by name, fewer epochs where a trial is meant, and on which device."""

    attacks: tuple[str, ...] = tuple(ATTACKS)
    epochs: int | None = None
    device: str = "cpu"


def run(
    plan: Plan,
    folder: str | Path,
    *,
    engine: str = "serial",
    workers: int | None = None,
    only: Mapping[str, str] | None = None,
    seeds: int | None = None,
    settings: Settings = Settings(),  # noqa: B008, frozen
    using: Sequence[str] = (),
    track: Track | None = None,
) -> list[Cell]:
    """Run the cells of a plan that `folder` does not hold yet; those that ran are returned. A failure is a row, too.

    `using` names modules that register what the plan names, such as a method of your own; every worker imports them.
    `track` is told the figures of each cell as it ends (`fgai.bench.tracking`).
    """
    for module in using:
        import_from_cwd(module)
    _check(plan, settings)
    store = CellStore(folder)
    wanted = [cell for cell in plan.cells(only, seeds) if not store.finished(cell, settings.attacks)]
    work = partial(finish, store=store, settings=settings, using=tuple(using))
    with progress(plan.name, len(wanted)) as advance:
        for cell in ENGINES[engine](work, wanted, workers or default_workers()):
            rows = store.rows(cell)
            if track is not None:
                track(cell.name, _figures(rows), cell.seed)
            advance(f"{cell.name} {'failed' if any(row.error for row in rows) else ''}")
    return wanted


def _check(plan: Plan, settings: Settings) -> None:
    """Every column can be filled; said before anything runs."""
    metrics = (*METRICS, "seconds", "peak_mb", *CERTIFIED_NAMES)
    for kind, asked, there in (
        ("metric", {column.metric for column in plan.columns}, metrics),
        ("attack", {column.attack for column in plan.columns}, ("none", *settings.attacks)),
    ):
        if strange := sorted(asked - {*there}):
            raise SettingError(
                f"{plan.name} has a column of the {kind} {', '.join(strange)}; there is {', '.join(there)}"
            )


def _figures(rows: Sequence[Row]) -> dict[str, float]:
    known = {f"{row.attack}/{name}": value for row in rows for name, value in row.metrics.items()}
    return {name: value for name, value in known.items() if value is not None}


def finish(cell: Cell, store: CellStore, settings: Settings, using: Sequence[str] = ()) -> None:
    """Train and attack one cell and keep its rows, or the error that ended it."""
    if store.finished(cell, settings.attacks):
        return
    for module in using:
        import_from_cwd(module)
    try:
        rows = rows_of_cell(cell, store, settings)
    except Exception as error:
        words = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
        rows = [Row(cell.dataset, cell.backbone, cell.method, cell.seed, {}, preset=cell.preset, error=words)]
    store.put(cell, rows)


def rows_of_cell(cell: Cell, store: CellStore, settings: Settings) -> Sequence[Row]:
    """The rows of one cell: clean, with what the certificate says, and under every attack."""
    with seeded(cell.seed):
        data = datasets.load(cell.dataset, seed=cell.seed)
        sha = datasets.fingerprint(data)
        data = placed(backbones.BACKBONES[cell.backbone].prepare(datasets.compact(data)), torch.device(settings.device))
        model, method, seconds = trained(cell, data, store, settings)
        about = {"dataset": cell.dataset, "backbone": cell.backbone, "method": cell.method, "seed": cell.seed}
        call = method.cleaned_call()  # an attack on a defence that cleans the graph includes the cleaning
        attacks = {name: ATTACKS[name] for name in settings.attacks}
        clean, *attacked = (
            replace(row, preset=cell.preset)
            for row in row_per_attack(model, data, call=call, sha=sha, attacks=attacks, **about)
        )
    proved = certified(read(model, data, call=call).explanation)
    return [replace(clean, metrics={**clean.metrics, **proved}, settings=asdict(method), seconds=seconds), *attacked]


def trained(cell: Cell, data: Data, store: CellStore, settings: Settings) -> tuple[nn.Module, Any, float]:
    """The model of a cell, the method that made it, and the seconds that took.

    A method that refines starts from the vanilla model of the same seed, which is kept on a shelf.
    """
    kind, shelf = METHODS[cell.method], store.folder / "models" / cell.name
    changed = {"seed": cell.seed} | ({} if settings.epochs is None else {"epochs": settings.epochs})
    method = kind.preset(cell.preset, **changed)
    if cell.method == REFINED and (shelf / "manifest.json").exists():
        found = saved.load(shelf)
        if found.manifest.get("method") == asdict(method) and "seconds" in found.manifest:
            return found.model.to(settings.device), method, float(found.manifest["seconds"])
    model = backbones.build(cell.backbone, data, seed=cell.seed).to(settings.device)
    if kind.needs_pretrained:
        model, *_ = trained(replace(cell, method=REFINED, preset="default"), data, store, settings)
    start = time.perf_counter()
    model = method.fit(model, data).model
    seconds = time.perf_counter() - start
    if cell.method == REFINED:
        about = {"data": cell.dataset, "method": asdict(method), "seed": cell.seed, "seconds": seconds}
        saved.save(shelf, model, backbone=cell.backbone, **backbones.shape_for(data), **about)
    return model, method, seconds


def certified(look: Attention) -> dict[str, float | None]:
    """The certified radii of the nodes with more than K neighbours: the others cannot lose a member."""
    radius = certified_radius(look, K)[look.degree > K]
    if len(radius) == 0:
        return {}
    shares = [certified_share(radius, size) for size in CERTIFIED]
    return dict(zip(CERTIFIED_NAMES, [*shares, float(radius.median())], strict=True))
