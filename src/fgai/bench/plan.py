"""A plan: the cells of a table, the columns it shows, and the values of the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from itertools import chain, product
from pathlib import Path

from fgai.errors import DataError, SettingError, UnknownNameError
from fgai.readers import read_toml
from fgai.records import record

MAX_SEEDS, MAX_CELLS = 10_000, 100_000  # of a dataset, and of a plan
INDUCTIVE = " (inductive)"  # ends the label of a model that was trained without the test nodes
REMEDY = "it needs title, seeds, backbones, methods, columns; `where` has a list for each method"


@dataclass(frozen=True, order=True)
class Cell:
    """One trained model, attacked by all attacks.

    `preset` is a preset of the method. An `inductive` model is trained without the test nodes and their edges.
    """

    dataset: str
    backbone: str
    method: str
    seed: int
    preset: str = "default"
    inductive: bool = False

    @property
    def name(self) -> str:
        """The name for files and messages.

        >>> Cell("cora", "gat", "fgai", 0, "paper").name
        'cora-gat-fgai-paper-0'
        """
        preset = [] if self.preset == "default" else [self.preset]
        inductive = ["inductive"] if self.inductive else []
        return "-".join([self.dataset, self.backbone, self.method, *preset, *inductive, str(self.seed)])

    @property
    def label(self) -> str:
        """The method with its preset, as plans write it.

        >>> Cell("cora", "gat", "fgai", 0, "paper").label
        'fgai:paper'
        """
        name = self.method if self.preset == "default" else f"{self.method}:{self.preset}"
        return f"{name}{INDUCTIVE}" if self.inductive else name


@dataclass(frozen=True)
class Column:
    """A column of a table: a metric under an attack."""

    heading: str
    metric: str
    attack: str


@dataclass(frozen=True)
class Plan:
    """A table: its cells, its columns, the values of the paper, and notes on why ours may differ."""

    name: str
    title: str
    seeds: Mapping[str, int]  # number of seeds per dataset
    backbones: tuple[str, ...]
    methods: tuple[str, ...]  # `name`, or `name:preset`
    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()
    where: Mapping[str, list[str]] = field(default_factory=dict)  # datasets, backbones of a method that not all have
    paper: Mapping[str, Mapping[str, Mapping[str, list[float]]]] | None = None  # backbone, method, dataset
    inductive: bool = False  # whether models are trained without the test nodes

    @classmethod
    def read(cls, name: str) -> Plan:
        """Read a built-in plan by name, or your own by the path of a `.toml` file.

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
        if not all(0 <= count <= MAX_SEEDS for count in self.seeds.values()):
            raise DataError(f"{self.name} has seeds = {self.seeds}; give each dataset a number up to {MAX_SEEDS}")
        if wrong := [name for name in (*self.seeds, *self.backbones, *self.methods) if not is_name(name)]:
            raise DataError(f"{self.name} names {wrong[0]!r:.60}, which cannot be part of a file name; use words")
        size = len(self.seeds) * len(self.backbones) * len(self.methods) * max(self.seeds.values(), default=0)
        if size > MAX_CELLS:
            raise DataError(f"{self.name} has up to {size} cells; a plan has at most {MAX_CELLS}, split it")
        for kind, names, known in (
            ("method", {*self.where}, self.methods),
            ("dataset or backbone", {*chain.from_iterable(self.where.values())}, (*self.seeds, *self.backbones)),
        ):
            if unknown := sorted(names - {*known}):
                raise DataError(f"{self.name} has no {kind} {', '.join(unknown)} that `where` names")

    def cells(self, only: Mapping[str, str] | None = None, seeds: int | None = None) -> list[Cell]:
        """The cells of this table, with the values in `only` and seeds below `seeds`.

        >>> [cell.name for cell in Plan.read("table2").cells({"dataset": "coauthor-physics", "method": "at"})]
        ['coauthor-physics-gat-at-0', 'coauthor-physics-gatv2-at-0', 'coauthor-physics-gt-at-0']
        """
        if seeds is not None and seeds < 1:
            raise SettingError(f"at most {seeds} seeds; give at least one")
        cells = selected = [cell for line in self.lines() for cell in self.cells_of(*line)]
        for part, text in (only or {}).items():
            values = text.split("+")
            if part not in Cell.__dataclass_fields__:
                raise SettingError(f"a cell has no {part!r}; it has {', '.join(Cell.__dataclass_fields__)}")
            known = {str(getattr(cell, part)) for cell in cells}
            if unknown := [value for value in values if value not in known]:
                raise SettingError(f"no cell has the {part} {', '.join(unknown)}; there is {', '.join(sorted(known))}")
            selected = [cell for cell in selected if str(getattr(cell, part)) in values]
        return [cell for cell in selected if seeds is None or cell.seed < seeds]

    @property
    def attacks(self) -> tuple[str, ...]:
        """The threat models that the columns name.

        >>> Plan.read("table2").attacks
        ('injection-20x20', 'injection-20x40', 'ensemble')
        """
        return tuple(dict.fromkeys(column.attack for column in self.columns if column.attack != "none"))

    def lines(self) -> list[tuple[str, str, str]]:
        """The lines of the table: dataset, backbone and method."""
        return [line for line in product(self.seeds, self.backbones, self.methods) if self._has(*line)]

    def _has(self, dataset: str, backbone: str, method: str) -> bool:
        """Return whether `where` has the dataset among those that it lists for the method, if any, and the backbone."""
        listed = {*self.where.get(method, ())}
        parts = ((dataset, self.seeds), (backbone, self.backbones))
        return all(name in listed or listed.isdisjoint(names) for name, names in parts)

    def cells_of(self, dataset: str, backbone: str, method: str) -> list[Cell]:
        """The cells of one line of the table, one per seed; `method` may be `name:preset`."""
        name, _, preset = method.partition(":")
        seeds = range(self.seeds[dataset])
        return [Cell(dataset, backbone, name, seed, preset or "default", self.inductive) for seed in seeds]


def attack_parts(attack: str) -> tuple[str, str]:
    """The threat model and the explanation that an attack names; the second is empty if it names none.

    >>> attack_parts("explanation:tree"), attack_parts("strongest")
    (('explanation', 'tree'), ('strongest', ''))
    """
    threat, _, explanation = attack.partition(":")
    return threat, explanation


def is_name(name: str) -> bool:
    """Whether a text can be part of a file name: no folder, not hidden, not too long.

    >>> is_name("label-smoothing"), is_name("../mine")
    (True, False)
    """
    return 0 < len(name) <= 60 and name.isprintable() and "/" not in name and not name.startswith(".")


def plans() -> list[str]:
    """The names of the built-in plans."""
    folder = files("fgai.bench").joinpath("plans")
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
