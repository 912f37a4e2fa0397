"""A plan says which cells a table needs, which figures it shows of them, and what the paper has there."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import chain, product
from pathlib import Path

from fgai.errors import DataError, SettingError, UnknownNameError


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
        source = path or files("fgai.bench").joinpath("plans", f"{name}.toml")
        try:
            content = tomllib.loads(source.read_text())
        except FileNotFoundError as error:
            raise UnknownNameError(
                f"no plan is called '{name}'; there is {', '.join(plans())}, or a .toml file"
            ) from error
        except tomllib.TOMLDecodeError as error:
            raise DataError(f"{name} is not a plan: {error}") from error
        try:
            lists = {part: tuple(content.pop(part, ())) for part in ("backbones", "methods", "notes")}
            columns = tuple(Column(**column) for column in content.pop("columns"))
            plan = cls(path.stem if path else name, columns=columns, **lists, **content)
        except (TypeError, KeyError) as error:
            raise DataError(
                f"{name} is not a plan ({error}); it needs title, seeds, backbones, methods, columns"
            ) from error
        plan._check()
        return plan

    def _check(self) -> None:
        if not isinstance(self.seeds, dict) or not all(isinstance(count, int) for count in self.seeds.values()):
            raise DataError(f"{self.name} has seeds = {self.seeds}; give a number of each dataset, as {{ cora = 3 }}")
        if not all(isinstance(some, list) for some in self.where.values()):
            raise DataError(f"{self.name} has where = {self.where}; give a list for each method")
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


def plans() -> list[str]:
    """The plans there are."""
    folder = files("fgai.bench").joinpath("plans")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
