"""Runs a plan: trains and attacks every unfinished cell, and saves its rows."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch_geometric.data import Data

from fgai import backbones, datasets, saved
from fgai.adversaries import THREATS
from fgai.attention import Attention
from fgai.auditing.audit import CERTIFIED
from fgai.bench.cells import row_per_attack
from fgai.bench.engines import ENGINES, default_workers
from fgai.bench.models import ModelStore
from fgai.bench.perturbations import Worst
from fgai.bench.plan import Cell, Plan, attack_parts
from fgai.bench.results import CellStore, Row
from fgai.bench.tracking import Track
from fgai.certificates import certified_radius, certified_share
from fgai.datasets.split import without_test_nodes
from fgai.devices import placed
from fgai.errors import SettingError
from fgai.explanations import EXPLANATIONS
from fgai.metrics import METRICS
from fgai.progress import progress
from fgai.reading import Call, read
from fgai.registry import import_from_cwd
from fgai.seeding import seeded

K = 10
CERTIFIED_NAMES = (*(f"share_{radius:g}" for radius in CERTIFIED), "median_radius")


@dataclass(frozen=True)
class Settings:
    """How to run all cells.

    Attributes:
        attacks: Names in `fgai.adversaries.THREATS`; by default, those that the columns of the plan name.
        epochs: Epochs of every method; its own default if None.
        device: The device to train and attack on.
        perturbations: A folder for the worst perturbation of each cell; None saves none.
    """

    attacks: tuple[str, ...] | None = None
    epochs: int | None = None
    device: str = "cpu"
    perturbations: Path | None = None


def run(
    plan: Plan,
    folder: str | Path,
    *,
    engine: str = "serial",
    workers: int | None = None,
    only: Mapping[str, str] | None = None,
    seeds: int | None = None,
    settings: Settings = Settings(),  # noqa: B008, frozen
    modules: Sequence[str] = (),
    track: Track | None = None,
) -> list[Cell]:
    """Run the cells of a plan that `folder` does not hold yet. A cell that fails is saved as a row with its error.

    Args:
        plan: The plan.
        folder: The folder of finished cells.
        engine: A name in `fgai.bench.engines.ENGINES`.
        workers: Number of processes; one per core by default.
        only: Run only the cells with these fields, such as `{"dataset": "cora"}`.
        seeds: Maximum number of seeds.
        settings: Attacks, epochs and device.
        modules: Modules that register what the plan names, such as your own method. Every worker imports them.
        track: Called with the metrics of each cell that ends (`fgai.bench.tracking`).

    Returns:
        The cells that ran.
    """
    for module in modules:
        import_from_cwd(module)
    settings = replace(settings, attacks=plan.attacks if settings.attacks is None else settings.attacks)
    _check(plan, settings)
    store = CellStore(folder)
    pending = [cell for cell in plan.cells(only, seeds) if not store.finished(cell, settings.attacks or ())]
    work = partial(finish, store=store, settings=settings, modules=tuple(modules))
    with progress(plan.name, len(pending)) as advance:
        for cell in ENGINES[engine](work, pending, workers or default_workers()):
            rows = store.rows(cell)
            if track is not None:
                track(cell.name, _metrics(rows), cell.seed)
            advance(f"{cell.name} {'failed' if any(row.error for row in rows) else ''}")
    return pending


def _check(plan: Plan, settings: Settings) -> None:
    """Check before anything runs that every column can be filled."""
    metrics = (*METRICS, "seconds", "peak_mb", *CERTIFIED_NAMES)
    for kind, names, known in (
        ("metric", {column.metric for column in plan.columns}, metrics),
        ("attack", {threat for threat, _ in map(attack_parts, plan.attacks)}, ("none", *THREATS)),
        ("explanation", {named for _, named in map(attack_parts, plan.attacks) if named}, EXPLANATIONS),
    ):
        if unknown := sorted(names - {*known}):
            raise SettingError(
                f"{plan.name} has a column of the {kind} {', '.join(unknown)}, which is not registered (--import names "
                f"a module that registers your own); there is {', '.join(known)}"
            )


def _metrics(rows: Sequence[Row]) -> dict[str, float]:
    """The metrics of all rows of a cell, by `attack/name`."""
    values = {f"{row.attack}/{name}": value for row in rows for name, value in row.metrics.items()}
    return {name: value for name, value in values.items() if value is not None}


def finish(cell: Cell, store: CellStore, settings: Settings, modules: Sequence[str] = ()) -> None:
    """Train and attack one cell. Each row is saved as soon as it is known; an error that ends the cell is the last."""
    if store.finished(cell, settings.attacks or ()):
        return
    for module in modules:
        import_from_cwd(module)
    rows = [row for row in store.rows(cell) if not row.error]
    try:
        for rows in rows_of_cell(cell, store, settings):
            store.put(cell, rows)
    except Exception as error:
        message = f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
        about = {"preset": cell.preset, "inductive": cell.inductive}
        failed = Row(cell.dataset, cell.backbone, cell.method, cell.seed, {}, **about, error=message)
        store.put(cell, [*rows, failed])


def rows_of_cell(cell: Cell, store: CellStore, settings: Settings) -> Iterator[list[Row]]:
    """Yield the rows of one cell so far: one for the clean graph, with certified shares, and one per attack.

    Rows that are about the same model and graph are kept. Others, also those of earlier attacks, are made anew. They
    stay until then, so that a run that is killed loses none; `CellStore.finished` tells that they are not of one model.
    """
    with seeded(cell.seed):
        graphs = graphs_of(cell, settings)
        rows = {row.attack: row for row in store.rows(cell) if not row.error}
        older = not any(row.model_sha256 for row in rows.values())  # rows of a version that did not record the model
        fitted = models_of(store, settings).trained(cell, graphs.train, graphs.share)
        sha, method = fitted.sha256, fitted.method

        def is_current(row: Row) -> bool:
            same_model = row.model_sha256 == sha or (older and fitted.loaded)
            return same_model and row.data_sha256 == graphs.sha

        known = [name for name in rows if name == "none" or attack_parts(name)[0] in THREATS]
        asked = dict.fromkeys(("none", *(settings.attacks or ()), *known))
        attacks = [name for name in asked if name not in rows or not is_current(rows[name])]
        worst = Worst(cell.name, settings.perturbations, keep=any(map(is_current, rows.values())))
        call = saved.call_of(method)  # a defence is attacked through its own cleaning
        rows = {name: replace(row, model_sha256=sha) if is_current(row) else row for name, row in rows.items()}
        for row in rows_of_model(fitted.model, graphs.data, cell, attacks, sha=graphs.sha, call=call, worst=worst):
            row = replace(row, settings=asdict(method), seconds=fitted.seconds) if row.attack == "none" else row
            rows[row.attack] = replace(row, model_sha256=sha)
            yield list(rows.values())
        yield [row for row in rows.values() if is_current(row)]


def rows_of_model(
    model: nn.Module, data: Data, cell: Cell, attacks: Sequence[str], *, sha: str, call: Call | None, worst: Worst
) -> Iterator[Row]:
    """Yield the rows of a trained model by attack, with certified shares for `none`; `worst` gets the perturbations."""
    about = {"dataset": cell.dataset, "backbone": cell.backbone, "method": cell.method, "seed": cell.seed}
    rows = row_per_attack(model, data, call=call, sha=sha, attacks=attacks, on_attack=worst.offer, **about)
    for row in rows:
        shares = certified(read(model, data, call=call).explanation) if row.attack == "none" else {}
        metrics = {**row.metrics, **shares}
        yield replace(row, preset=cell.preset, inductive=cell.inductive, metrics=metrics)


def models_of(store: CellStore, settings: Settings) -> ModelStore:
    """The trained models of the cells of a folder."""
    return ModelStore(store.folder / "models", settings.epochs, settings.device)


@dataclass(frozen=True)
class Graphs:
    """The graph of a cell, the one that its model is trained on, and the fingerprint of the dataset."""

    data: Data
    train: Data
    sha: str

    @property
    def share(self) -> float:
        """The share of the nodes that the model is trained on."""
        return int(self.train.num_nodes or 0) / int(self.data.num_nodes or 0)


def graphs_of(cell: Cell, settings: Settings) -> Graphs:
    """Load the dataset of a cell. An inductive model is trained without the test nodes and their edges."""
    raw = datasets.load(cell.dataset, seed=cell.seed)
    data = prepared(raw, cell, settings)
    train = prepared(without_test_nodes(raw), cell, settings) if cell.inductive else data
    return Graphs(data, train, datasets.fingerprint(raw))


def prepared(data: Data, cell: Cell, settings: Settings) -> Data:
    """The graph with the inputs of the backbone, on the device."""
    return placed(backbones.BACKBONES[cell.backbone].prepare(datasets.compact(data)), torch.device(settings.device))


def certified(attention: Attention) -> dict[str, float | None]:
    """Certified shares and the median radius over nodes with more than K neighbours; the others keep their top K."""
    radius = certified_radius(attention, K)[attention.degree > K]
    if len(radius) == 0:
        return {}
    shares = [certified_share(radius, size) for size in CERTIFIED]
    return dict(zip(CERTIFIED_NAMES, [*shares, float(radius.median())], strict=True))
