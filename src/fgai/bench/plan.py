"""A plan says which cells a table needs, which figures it shows of them, and what the paper has there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from itertools import chain, product
from pathlib import Path

from fgai.errors import DataError, SettingError, UnknownNameError
from fgai.readers import read_toml
from fgai.records import record

SEEDS, CELLS = 10_000, 100_000  # of a dataset, and of a plan, at most
REMEDY = "it needs title, seeds, backbones, methods, columns; `where` has a list for each method"


@dataclass(frozen=True, order=True)
class Cell:
    """One model: trained once, attacked in every way. A preset is a method's own."""

    dataset: str
    backbone: str
    method: str
    seed: int
    preset: str = "default"

    @property
    def name(self) -> str:
        """For files and messages.

        >>> Cell("cora", "gat", "fgai", 0, "paper").name
        'cora-gat-fgai-paper-0'
        """
        preset = [] if self.preset == "default" else [self.preset]
        return "-".join([self.dataset, self.backbone, self.method, *preset, str(self.seed)])


@dataclass(frozen=True)
class Column:
    """A figure of each cell: a metric under an attack."""

    heading: str
    metric: str
    attack: str


@dataclass(frozen=True)
class Plan:
    """A table or figure: its cells, its columns, the paper's numbers, and why ours may differ."""

    name: str
    title: str
    seeds: Mapping[str, int]  # of each dataset
    backbones: tuple[str, ...]
    methods: tuple[str, ...]  # `name`, or `name:preset`
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    where: Mapping[str, list[str]] = field(default_factory=dict)  # methods that only these datasets have
    paper: Mapping[str, Mapping[str, Mapping[str, list[float]]]] | None = None  # backbone, method, dataset

    @classmethod
    def read(cls, name: str) -> Plan:
        """A plan of ours by name, or one of your own by its path.

        >>> Plan.read("table2").columns[0].heading
        'F1'
        """
        path = Path(name) if name.endswith(".toml") else None
        if (path is None and name not in plans()) or (path is not None and not path.exists()):
            raise UnknownNameError(f"no plan is called '{name[:100]}'; there is {', '.join(plans())}, or a .toml file")
        with as_file(path or files("fgai.bench").joinpath("plans", f"{name}.toml")) as source:
            content = read_toml(source, f"it is not a plan; {REMEDY}")
        plan = record(cls, {"name": path.stem if path else name, **content}, f"{name} is not a plan", REMEDY)
        plan._check()
        return plan

    def _check(self) -> None:
        if not all(0 <= count <= SEEDS for count in self.seeds.values()):
            raise DataError(f"{self.name} has seeds = {self.seeds}; give each dataset a number up to {SEEDS}")
        if wrong := [name for name in (*self.seeds, *self.backbones, *self.methods) if not _is_name(name)]:
            raise DataError(f"{self.name} names {wrong[0]!r:.60}, which cannot be part of a file's name; use words")
        size = len(self.seeds) * len(self.backbones) * len(self.methods) * max(self.seeds.values(), default=0)
        if size > CELLS:
            raise DataError(f"{self.name} has up to {size} cells; a plan has at most {CELLS}, split it")
        for kind, asked, there in (
            ("method", {*self.where}, self.methods),
            ("dataset", {*chain.from_iterable(self.where.values())}, self.seeds),
        ):
            if strange := sorted(asked - {*there}):
                raise DataError(f"{self.name} has no {kind} {', '.join(strange)} that `where` names")

    def cells(self, only: Mapping[str, str] | None = None, seeds: int | None = None) -> list[Cell]:
        """The cells of this table; `only` keeps those with these values, `seeds` bounds their number.

        >>> [cell.name for cell in Plan.read("table2").cells({"dataset": "coauthor-physics", "method": "at"})]
        ['coauthor-physics-gat-at-0', 'coauthor-physics-gatv2-at-0', 'coauthor-physics-gt-at-0']
        """
        if seeds is not None and seeds < 1:
            raise SettingError(f"at most {seeds} seeds; give at least one")
        every = found = [cell for line in self.lines() for cell in self.cells_of(*line)]
        for part, wanted in (only or {}).items():
            if part not in Cell.__dataclass_fields__:
                raise SettingError(f"a cell has no {part!r}; it has {', '.join(Cell.__dataclass_fields__)}")
            there = {str(getattr(cell, part)) for cell in every}
            if strange := [value for value in wanted.split("+") if value not in there]:
                raise SettingError(f"no cell has the {part} {', '.join(strange)}; there is {', '.join(sorted(there))}")
            found = [cell for cell in found if str(getattr(cell, part)) in wanted.split("+")]
        return [cell for cell in found if seeds is None or cell.seed < seeds]

    def lines(self) -> list[tuple[str, str, str]]:
        """Of the table: dataset, backbone and method."""
        every = product(self.seeds, self.backbones, self.methods)
        return [line for line in every if line[0] in self.where.get(line[2], self.seeds)]

    def cells_of(self, dataset: str, backbone: str, method: str) -> list[Cell]:
        """Those of one line of the table, a cell for each seed; `method` may name a preset."""
        name, _, preset = method.partition(":")
        return [Cell(dataset, backbone, name, seed, preset or "default") for seed in range(self.seeds[dataset])]


def _is_name(name: str) -> bool:
    """Whether a cell may be kept in a file of this name: no folder, nothing hidden, not too long."""
    return 0 < len(name) <= 60 and name.isprintable() and "/" not in name and not name.startswith(".")


def plans() -> list[str]:
    """The plans there are."""
    folder = files("fgai.bench").joinpath("plans")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
