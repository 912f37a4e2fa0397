"""Grades and proofs of trained models on disk: the rows of `faithful.json` and `certified.json`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from fgai.errors import DataError
from fgai.readers import read_json
from fgai.records import record

REMEDY = "`python benchmarks/faithful.py` and `python benchmarks/certified.py` make these files"
T = TypeVar("T")


@dataclass(frozen=True)
class Graded:
    """The grades of one model by one explanation, with the numbers that the leaderboard shows."""

    dataset: str
    backbone: str
    method: str
    seed: int
    explanation: str
    used: bool | None
    faithful: Literal["supported", "contradicted", "unknown"] | None
    stable: bool | None
    necessity: float
    against_least: float
    overlap: float
    f1: float
    f1_attacked: float
    g_tvd: float


@dataclass(frozen=True)
class Proved:
    """What is proved about one model against one attacker and budget."""

    dataset: str
    backbone: str
    method: str
    seed: int
    against: str
    groups: int
    budget: int
    certified_and_right: float
    plain: float


def read_findings(kind: type[T], path: Path) -> list[T]:
    """The rows of a file; empty if the file does not exist. Other entries of a row are ignored."""
    raw = read_json(path, REMEDY) if path.exists() else []
    if not isinstance(raw, list):
        raise DataError(f"{path} holds no list of rows; {REMEDY}")
    return [record(kind, row, path, REMEDY, more=True) for row in raw]
