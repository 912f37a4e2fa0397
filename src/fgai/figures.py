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
    files = _found(results / "histories", f"{dataset}-*-fgai-0.json")
    return plots.loss_terms({_parts(f)[0]: [Epoch(**epoch) for epoch in json.loads(f.read_text())] for f in files})


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


def _found(folder: Path, pattern: str) -> list[Path]:
    files = sorted(folder.glob(pattern))
    if not files:
        raise DataError(f"{folder} holds no {pattern}; `python benchmarks/figures.py` makes them for amazon-photo")
    return files


def _parts(file: Path) -> tuple[str, str]:
    """Backbone and method of `<dataset>-<backbone>-<method>-<seed>.json`."""
    _, backbone, method, _ = file.stem.rsplit("-", 3)
    return backbone, method


def _audits(results: Path, dataset: str) -> dict[str, dict[str, AuditReport]]:
    """Audits by backbone and method."""
    files = {_parts(file): file for file in _found(results / "audits", f"{dataset}-*-0.json")}
    return {
        backbone: {m: AuditReport.load(files[backbone, m]) for m in METHODS if (backbone, m) in files}
        for backbone in sorted({backbone for backbone, _ in files})
    }


def _pair(results: Path, dataset: str, backbone: str) -> dict[str, AuditReport]:
    reports = _audits(results, dataset).get(backbone, {})
    if missing := {"vanilla", "fgai"} - reports.keys():
        raise DataError(f"{results / 'audits'} holds no {', '.join(sorted(missing))} of {backbone} on {dataset}")
    return {method: reports[method] for method in ("vanilla", "fgai")}
