"""The paper's figures by name, drawn from the files in `results/`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from fgai import plots
from fgai.auditing import AuditReport
from fgai.auditing.audit import CERTIFIED
from fgai.auditing.record import Curves
from fgai.bench.plan import Plan
from fgai.bench.results import CellStore, Row
from fgai.deletion import SHARES
from fgai.errors import DataError
from fgai.methods import Epoch
from fgai.readers import read_json
from fgai.records import records
from fgai.registry import Registry
from fgai.training.history import check_history

REMEDY = "`python benchmarks/figures.py` makes the published ones"
RUN_AGAIN = "run its cell again"

METHODS = ("vanilla", "ln", "at", "fgai")  # in the order of the legend
DEFAULT_DATASET, DEFAULT_BACKBONE = "amazon-photo", "gat"  # for figures of one dataset, or of one backbone
CURVES = ("none", "injection-20x20")  # the attacks of F+ and F-
FIGURES: Registry[Callable[[Path, str, str], Any]] = Registry("figure")


def figure(name: str, results: str | Path = "results", dataset: str = "", backbone: str = "") -> Any:
    """Draw a figure of the paper from the committed results.

    Args:
        name: A name in `FIGURES`.
        results: The folder of results.
        dataset: The dataset; by default Amazon-Photo, or all datasets for a figure that shows all.
        backbone: The backbone; by default GAT, or all backbones for a figure that shows all.

    Returns:
        A matplotlib figure.
    """
    return FIGURES[name](Path(results), dataset, backbone)


@FIGURES.register("f-curves")
def f_curves(results: Path, dataset: str, backbone: str) -> Any:
    """F+ and F- of all backbones or one, clean and under 20 nodes of 20 links, mean over the seeds of all methods."""
    cells: dict[tuple[str, int], dict[tuple[str, str], Row]] = defaultdict(dict)
    for row in CellStore(results / "cells").all_rows():
        chosen = row.dataset == (dataset or DEFAULT_DATASET) and row.backbone == (backbone or row.backbone)
        if chosen and row.curves and row.attack in CURVES:
            if any(len(row.curves.get(first, ())) != len(SHARES) for first in ("most", "least")):
                raise DataError(
                    f"a row of {'-'.join(map(str, row.key))} has no curves at {len(SHARES)} shares; {RUN_AGAIN}"
                )
            cells[row.backbone, row.seed][row.method, row.attack] = row
    needed = set(product(METHODS, CURVES))
    complete = {key: rows for key, rows in sorted(cells.items()) if needed <= rows.keys()}
    if not complete:
        raise DataError(
            f"the cells in {results / 'cells'} hold no curves of {', '.join(METHODS)} {_cells_of(dataset, backbone)}; "
            "`fgai bench table2 --out FOLDER` makes them"
        )
    return plots.f_curves(
        {
            backbone: {m: _curves([rows for (b, _), rows in complete.items() if b == backbone], m) for m in METHODS}
            for backbone in dict.fromkeys(backbone for backbone, _ in complete)
        }
    )


def _curves(seeds: Sequence[Mapping[tuple[str, str], Row]], method: str) -> Curves:
    clean, attacked = (
        {
            first: tuple(np.mean([np.array(rows[method, attack].curves[first], float) for rows in seeds], 0).tolist())
            for first in ("most", "least")
        }
        for attack in CURVES
    )
    return Curves(SHARES, clean, attacked)


@FIGURES.register("attention-maps")
def attention_maps(results: Path, dataset: str, backbone: str) -> Any:
    """The attention in one neighbourhood before and after the attack, vanilla and FGAI."""
    return plots.attention_maps(_pair(results, dataset or DEFAULT_DATASET, backbone or DEFAULT_BACKBONE))


@FIGURES.register("stars")
def stars(results: Path, dataset: str, backbone: str) -> Any:
    """The attention of one node before and after the attack, vanilla and FGAI."""
    return plots.stars(_pair(results, dataset or DEFAULT_DATASET, backbone or DEFAULT_BACKBONE))


@FIGURES.register("loss-terms")
def loss_terms(results: Path, dataset: str, backbone: str) -> Any:
    """The terms of FGAI's loss by epoch, for all backbones or one."""
    files = sorted((results / "histories").glob(f"{dataset or DEFAULT_DATASET}-*-fgai-0.json"))
    named = {file.stem.removeprefix(f"{dataset or DEFAULT_DATASET}-").removesuffix("-fgai-0"): file for file in files}
    shown = {name: file for name, file in named.items() if name == (backbone or name)}
    if not shown:
        raise DataError(f"{results / 'histories'} holds no losses {_cells_of(dataset, backbone)}; {REMEDY}")
    return plots.loss_terms({name: _history(file) for name, file in shown.items()})


def _cells_of(dataset: str, backbone: str) -> str:
    """The dataset and the backbone that were asked for."""
    return f"on {dataset or DEFAULT_DATASET}" + (f" with {backbone}" if backbone else "")


def _history(file: Path) -> list[Epoch]:
    history = records(Epoch, read_json(file, REMEDY), file, REMEDY)
    check_history(history, file, REMEDY)
    if not history:
        raise DataError(f"{file} holds no epoch; {REMEDY}")
    return history


@FIGURES.register("certified")
def certified(results: Path, dataset: str, backbone: str) -> Any:
    """The share of nodes whose top 10 is certified, for all methods, on one dataset or on all of table 2."""
    names, backbone = [dataset] if dataset else [*Plan.read("table2").seeds], backbone or DEFAULT_BACKBONE
    cells: dict[str, dict[str, list[Row]]] = {name: defaultdict(list) for name in names}
    for row in CellStore(results / "cells").all_rows():
        if row.attack == "none" and row.backbone == backbone and row.dataset in cells:
            cells[row.dataset][row.method].append(row)
    panels = {name: {m: _shares(rows[m]) for m in METHODS} for name, rows in cells.items() if rows.keys() >= {*METHODS}}
    if not panels:
        raise DataError(
            f"{results / 'cells'} holds no cells of {', '.join(METHODS)} with {backbone} on {' or '.join(names)}; "
            "`fgai bench table2` makes them"
        )
    return plots.certified_curves(panels)


def _shares(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """The certified share at each radius, mean over seeds."""
    for row in rows:
        if missing := [f"share_{r:g}" for r in CERTIFIED if f"share_{r:g}" not in row.metrics]:
            raise DataError(f"a row of {'-'.join(map(str, row.key))} has no {missing[0]}; {RUN_AGAIN}")
    return [(r, mean(float(row.metrics[f"share_{r:g}"] or 0) for row in rows)) for r in CERTIFIED]


def _pair(results: Path, dataset: str, backbone: str) -> dict[str, AuditReport]:
    files = {m: results / "audits" / f"{dataset}-{backbone}-{m}-0.json" for m in ("vanilla", "fgai")}
    if missing := [file.name for file in files.values() if not file.exists()]:
        raise DataError(f"{results / 'audits'} holds no {' and '.join(missing)}; {REMEDY}")
    return {method: AuditReport.load(file) for method, file in files.items()}
