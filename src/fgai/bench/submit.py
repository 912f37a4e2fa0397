"""A method, an attack or a model of somebody else joins the bench: its rules are checked, its cells run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn
from torch_geometric.data import Data

from fgai import datasets, saved
from fgai.adversaries import ADVERSARIES, THREATS, Threat, WithinBudget, budget_of
from fgai.bench.models import PRETRAINED
from fgai.bench.perturbations import Worst
from fgai.bench.plan import Cell, Plan, is_name
from fgai.bench.results import CellStore
from fgai.bench.rules import Check, blind_to_test_labels, deterministic, fair_attack, visible_gradients
from fgai.bench.run import Settings, graphs_of, models_of, prepared, rows_of_model, run
from fgai.bench.tables import decided_by, grid, markdown, table_of, worst_rows
from fgai.calling import Call
from fgai.errors import DataError, FGAIError, SettingError
from fgai.methods import METHODS
from fgai.reading import open_reader
from fgai.registry import import_file
from fgai.seeding import seeded

REMEDY = "register one method or one attack, or define `build` and DATASET, as in examples/join"
OWN = "own"  # the backbone of a model that is not a registered one


@dataclass(frozen=True)
class Submission:
    """What became of a submission.

    Attributes:
        kind: What the file holds.
        name: Its name in the tables.
        checks: The results of the rules.
        failed: The error of each cell that failed, by name.
        table: Its rows, in Markdown; empty if it was refused.
    """

    kind: Literal["method", "attack", "model"]
    name: str
    checks: tuple[Check, ...]
    failed: Mapping[str, str]
    table: str = ""

    @property
    def ok(self) -> bool:
        """Whether no rule is broken and no cell failed."""
        return not self.failed and all(check.passed is not False for check in self.checks)

    def text(self) -> str:
        """The rules, the failures and the table."""
        lines = [f"{self.kind} {self.name}", *map(str, self.checks)]
        lines += [f"failed: {cell}: {error}" for cell, error in self.failed.items()]
        return "\n".join([*lines, "", self.table] if self.table else lines)


@dataclass(frozen=True)
class _Model:
    """A model with its weights."""

    model: nn.Module
    cell: Cell
    prepare: Callable[[Data], Data]
    call: Call | None = None


def submit(
    file: str | Path,
    name: str,
    plan: Plan,
    folder: str | Path,
    *,
    only: Mapping[str, str] | None = None,
    seeds: int = 1,
    threat: str = "strongest",
    weights: str | Path | None = None,
    settings: Settings = Settings(),  # noqa: B008, frozen
) -> Submission:
    """Check the rules for a method, an attack or a model, and run its cells.

    A Python file is run, with all rights of this process. Give one that you trust. Weights are a safetensors file.

    Args:
        file: A Python file that registers one method (`fgai.methods.METHODS`) or one attack
            (`fgai.adversaries.ADVERSARIES`), or that defines `build()`, which returns a model, and `DATASET`, the name
            of its graph. Or a folder that `fgai train` wrote.
        name: The name of its rows; it must be new.
        plan: The cells of a method, those that an attack attacks, and the threat models of all of them.
        folder: The folder of finished cells. Cells of an earlier submission of this name are replaced.
        only: Run only the cells of the plan with these fields.
        seeds: Number of seeds of each dataset.
        threat: The threat model whose budget and gain an attack has.
        weights: The weights of a model; by default the file beside it that ends in `.safetensors`.
        settings: Epochs, device and the folder of perturbations.

    Returns:
        The results of the rules and, if none is broken, the rows.

    Raises:
        DataError: If the file holds nothing that can join.
        SettingError: If the name is taken.
    """
    if not is_name(name) or name in METHODS or name in THREATS:
        raise SettingError(f"--as {name[:60]!r} is taken, or cannot be part of a file name; choose another name")
    if name.endswith("-inductive") or any(name.startswith(f"{method}-") for method in METHODS):
        raise SettingError(f"--as {name!r} reads as a preset of another method in file names; choose another name")
    budget_of(threat)  # refuse before anything runs
    store, entry = CellStore(folder), _entry(Path(file), name, weights)
    if isinstance(entry, _Model):
        return _submit_model(entry, name, plan, store, settings)
    if entry[0] == "method":
        if name not in METHODS:
            METHODS.add(name, entry[1])
        return _submit_method(name, replace(plan, methods=(name,), where={}), store, only, seeds, settings)
    about = (entry[1].__doc__ or name).strip().partition("\n")[0]
    family, gain = THREATS[threat].family, THREATS[threat].gain
    THREATS.add(name, Threat(family, WithinBudget(entry[1](), threat), gain, about, name), about)
    return _submit_attack(name, threat, plan, store, only, seeds, settings)


def _entry(file: Path, name: str, weights: str | Path | None) -> _Model | tuple[str, Any]:
    """What a file holds: a model, or the class of a method or of an attack."""
    if file.is_dir():
        loaded = saved.load(file)
        manifest, backbone = loaded.manifest, loaded.backbone
        cell = Cell(str(manifest.get("data", "")), backbone, name, int(manifest.get("seed", 0)))
        return _Model(loaded.model, cell, lambda data: prepared(data, cell, Settings()), loaded.call)
    before = {"method": {*METHODS}, "attack": {*ADVERSARIES}}
    module = import_file(file)
    new = [("method", METHODS[one]) for one in METHODS if one not in before["method"]]
    new += [("attack", ADVERSARIES[one]) for one in ADVERSARIES if one not in before["attack"]]
    if len(new) == 1:
        return new[0]
    if new or not callable(getattr(module, "build", None)) or getattr(module, "DATASET", None) not in datasets.DATASETS:
        raise DataError(f"{file} registers {len(new)} methods and attacks, and is no model of a dataset; {REMEDY}")
    path = Path(weights) if weights is not None else file.with_suffix(".safetensors")
    cell = Cell(module.DATASET, OWN, name, int(getattr(module, "SEED", 0)))
    return _Model(saved.load_weights(module.build(), path), cell, getattr(module, "prepare", lambda data: data))


def _submit_method(
    name: str, plan: Plan, store: CellStore, only: Mapping[str, str] | None, seeds: int, settings: Settings
) -> Submission:
    cells = plan.cells(only, seeds)
    for cell in cells:  # of an earlier file of this name
        store.path(cell).unlink(missing_ok=True)
        shutil.rmtree(models_of(store, settings).path(cell), ignore_errors=True)
    checks = _checked(lambda: _check_method(cells[0], store, settings))
    done = Submission("method", name, checks, {})
    if done.ok:
        run(plan, store.folder, only=only, seeds=seeds, settings=settings)
        shown = replace(plan, seeds={dataset: min(seeds, count) for dataset, count in plan.seeds.items()})
        done = replace(done, failed=_failed(cells, store), table=markdown(table_of(shown, store.folder)))
    return done


def _check_method(cell: Cell, store: CellStore, settings: Settings) -> list[Check]:
    """The rules for a method, on its first cell."""
    with seeded(cell.seed):
        graphs, models = graphs_of(cell, settings), models_of(store, settings)
        fitted = models.trained(cell, graphs.train, graphs.share)

    def fit(graph: Data) -> nn.Module:
        return fitted.method.fit(models.start(cell, graphs.train), graph).model

    model, call = fitted.model, saved.call_of(fitted.method)
    return _until_broken(
        lambda: _check_forward(model, graphs.data, call),
        lambda: blind_to_test_labels(model, fit, graphs.train, call, cell.seed),
        lambda: _check_gradients(model, graphs.data, call, cell, store, settings),
    )


def _until_broken(*rules: Callable[[], Check]) -> list[Check]:
    """The results of the rules, up to the first that is broken."""
    checks: list[Check] = []
    for rule in rules:
        if checks and checks[-1].passed is False:
            break
        checks.append(rule())
    return checks


def _check_forward(model: nn.Module, data: Data, call: Call | None) -> Check:
    with open_reader(model, call) as read:
        return deterministic(read, data)


def _check_gradients(
    model: nn.Module, data: Data, call: Call | None, cell: Cell, store: CellStore, settings: Settings
) -> Check:
    """The rule on gradients; the other model is a vanilla one of the same backbone, or GAT."""
    backbone = "gat" if cell.backbone == OWN else cell.backbone
    plain = replace(cell, backbone=backbone, method=PRETRAINED, preset="default")
    with seeded(cell.seed):
        graphs = graphs_of(plain, settings)
        vanilla = models_of(store, settings).trained(plain, graphs.train, graphs.share).model
    with open_reader(model, call) as read, open_reader(vanilla) as other:
        return visible_gradients(read, data, other, graphs.data)


def _submit_model(one: _Model, name: str, plan: Plan, store: CellStore, settings: Settings) -> Submission:
    cell, raw = one.cell, datasets.load(one.cell.dataset, seed=one.cell.seed)
    data, model = one.prepare(raw), one.model.to(settings.device)
    data = data.to(settings.device)
    untold = Check(
        "no peeking at test labels", None, "the weights were trained elsewhere; publish the code that trained them."
    )
    checks = _checked(
        lambda: _until_broken(
            lambda: _check_forward(model, data, one.call),
            lambda: untold,
            lambda: _check_gradients(model, data, one.call, cell, store, settings),
        )
    )
    done = Submission("model", name, checks, {})
    if done.ok:
        attacks, sha = ("none", *plan.attacks), datasets.fingerprint(raw)
        with seeded(cell.seed):
            worst = Worst(cell.name, settings.perturbations)
            rows = list(rows_of_model(model, data, cell, attacks, sha=sha, call=one.call, worst=worst))
        store.put(cell, rows)
        shown = replace(
            plan, seeds={cell.dataset: cell.seed + 1}, backbones=(cell.backbone,), methods=(name,), where={}
        )
        done = replace(done, table=markdown(table_of(shown, store.folder)))
    return done


def _submit_attack(
    name: str,
    threat: str,
    plan: Plan,
    store: CellStore,
    only: Mapping[str, str] | None,
    seeds: int,
    settings: Settings,
) -> Submission:
    cells = plan.cells(only, seeds)
    for cell in cells:  # rows of an earlier file of this name
        if rows := [row for row in store.rows(cell) if row.attack != name]:
            store.put(cell, rows)
    checks = _checked(lambda: _check_attack(cells[0], name, store, settings))
    done = Submission("attack", name, checks, {})
    if done.ok:
        run(plan, store.folder, only=only, seeds=seeds, settings=replace(settings, attacks=(threat, name)))
        done = replace(done, failed=_failed(cells, store), table=_duels(cells, store, threat, name))
    return done


def _check_attack(cell: Cell, name: str, store: CellStore, settings: Settings) -> list[Check]:
    """The rules for an attack, on the first model that it attacks."""
    with seeded(cell.seed):
        graphs = graphs_of(cell, settings)
        fitted = models_of(store, settings).trained(cell, graphs.train, graphs.share)
    with open_reader(fitted.model, saved.call_of(fitted.method)) as read:
        return fair_attack(THREATS[name], read, graphs.data, cell.seed)


def _duels(cells: list[Cell], store: CellStore, threat: str, name: str) -> str:
    """The threat model and the attack that has its budget side by side, by cell."""
    body, metric, asked = [], decided_by(threat), ("none", threat, name)
    for cell in cells:
        rows = {row.attack: row for row in store.rows(cell)}
        if {*asked} <= rows.keys():
            values = [f"{float(rows[attack].metrics[metric] or 0):.3g}" for attack in asked]
            body.append([cell.name, *values, worst_rows([*rows.values()], threat)[0].attack])
    return grid(["cell", metric, f"{metric}, {threat}", f"{metric}, {name}", "worst: stands in the table"], body)


def _checked(rules: Callable[[], list[Check]]) -> tuple[Check, ...]:
    """The results of the rules; an error in the submitted code is one that is not passed."""
    try:
        return (*rules(),)
    except Exception as error:  # of any kind: the code is somebody else's
        return (Check("runs", False, f"{'' if isinstance(error, FGAIError) else f'{type(error).__name__}: '}{error}"),)


def _failed(cells: list[Cell], store: CellStore) -> dict[str, str]:
    """The first line of the error of each failed cell."""
    rows = [(cell.name, row) for cell in cells for row in store.rows(cell)]
    return {name: row.error.partition("\n")[0] for name, row in rows if row.error}
