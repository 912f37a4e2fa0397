"""The paper's figures by name, drawn from the files in `results/`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from fgai import plots
from fgai.audit import AuditReport
from fgai.audit.record import Curves
from fgai.audit.run import CERTIFIED
from fgai.bench.rows import Row
from fgai.bench.store import Store
from fgai.errors import DataError
from fgai.methods import Epoch
from fgai.metrics.deletion import SHARES
from fgai.registry import Registry

METHODS = ("vanilla", "ln", "at", "fgai")  # in the order in which they are told
FIGURES: Registry[Callable[[Path, str, str], Any]] = Registry("figure")


def figure(name: str, results: str | Path = "results", dataset: str = "amazon-photo", backbone: str = "gat") -> Any:
    """A figure by name, of one dataset; those that show one backbone show this one."""
    return FIGURES[name](Path(results), dataset, backbone)


@FIGURES.register("f-curves")
def f_curves(results: Path, dataset: str, backbone: str) -> Any:
    """F+ and F- of every backbone and method, clean and under 20 nodes of 20 links, mean over seeds."""
    found: dict[str, dict[str, dict[str, list[Row]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for row in Store(results / "cells").every():
        if row.dataset == dataset and row.curves:
            found[row.backbone][row.method][row.attack].append(row)
    if not found:
        raise DataError(
            f"the cells in {results / 'cells'} hold no curves of {dataset}; `fgai bench table2 --out FOLDER` makes them"
        )
    return plots.f_curves(
        {
            backbone: {method: _curves(methods[method]) for method in METHODS if method in methods}
            for backbone, methods in sorted(found.items())
        }
    )


def _curves(rows: Mapping[str, Sequence[Row]]) -> Curves:
    clean, attacked = (
        {
            first: tuple(np.mean([np.array(row.curves[first], dtype=float) for row in rows[attack]], axis=0).tolist())
            for first in ("most", "least")
        }
        for attack in ("none", "injection-20x20")
    )
    return Curves(SHARES, clean, attacked)


@FIGURES.register("attention-maps")
def attention_maps(results: Path, dataset: str, backbone: str) -> Any:
    """The attention in one neighbourhood before and after the attack, vanilla and FGAI."""
    return plots.attention_maps(_pair(results, dataset, backbone))


@FIGURES.register("stars")
def stars(results: Path, dataset: str, backbone: str) -> Any:
    """Where one node looks before and after the attack, vanilla and FGAI."""
    return plots.stars(_pair(results, dataset, backbone))


@FIGURES.register("loss-terms")
def loss_terms(results: Path, dataset: str, backbone: str) -> Any:
    """The terms of FGAI's loss by epoch, for every backbone."""
    files = sorted((results / "histories").glob(f"{dataset}-*-fgai-0.json"))
    if not files:
        raise DataError(
            f"{results / 'histories'} holds no losses of {dataset}; `python benchmarks/figures.py` makes those we show"
        )
    backbones = [file.stem.removeprefix(f"{dataset}-").removesuffix("-fgai-0") for file in files]
    losses = [[Epoch(**epoch) for epoch in json.loads(file.read_text())] for file in files]
    return plots.loss_terms(dict(zip(backbones, losses, strict=True)))


@FIGURES.register("certified")
def certified(results: Path, dataset: str, backbone: str) -> Any:
    """The share of nodes whose top 10 is certified, of every dataset and method."""
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in Store(results / "cells").every():
        if row.attack == "none" and row.backbone == backbone:
            found[row.dataset][row.method].append(row)
    if not found:
        raise DataError(f"{results / 'cells'} holds no cells of {backbone}; `fgai bench table2` makes them")
    return plots.certified_curves(
        {
            dataset: {
                method: [(r, mean(float(row.metrics[f"share_{r:g}"] or 0) for row in rows)) for r in CERTIFIED]
                for method, rows in methods.items()
            }
            for dataset, methods in found.items()
        }
    )


def _pair(results: Path, dataset: str, backbone: str) -> dict[str, AuditReport]:
    files = {m: results / "audits" / f"{dataset}-{backbone}-{m}-0.json" for m in ("vanilla", "fgai")}
    if missing := [file.name for file in files.values() if not file.exists()]:
        raise DataError(
            f"{results / 'audits'} holds no {' and '.join(missing)}; `python benchmarks/figures.py` makes those we show"
        )
    return {method: AuditReport.load(file) for method, file in files.items()}
