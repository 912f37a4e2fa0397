"""Attacked graphs as data: the worst perturbation of each cell, and a test of any model against them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import nn
from torch_geometric.data import Data

from fgai.adversaries import AttackResult, Gain, Perturbation, budget_of, has_budget
from fgai.bench.plan import attack_parts
from fgai.bench.results import Row
from fgai.bench.tables import grid
from fgai.calling import Call
from fgai.errors import DataError
from fgai.grades import Grade, grade_stable
from fgai.metrics import METRICS
from fgai.readers import parse_json, read_header
from fgai.reading import Reader, open_reader
from fgai.records import record
from fgai.trial import Trial, attacked_trial, clean_trial

FOLDER = Path("results/perturbations")
REMEDY = "`fgai bench PLAN --perturbations FOLDER` writes such files"


@dataclass(frozen=True)
class Origin:
    """Where a perturbation comes from.

    Attributes:
        dataset: The name of the graph.
        data_sha256: The fingerprint of the graph (`fgai.datasets.fingerprint`); node ids mean nothing on another one.
        threat: The threat model, a name in `fgai.adversaries.THREATS`, whose budget it keeps.
        model: The cell of the model that it was made against, such as `cora-gat-fgai-0`.
        seed: The seed of the attack, and of the split.
        f1: F1 of that model on the clean graph.
        f1_attacked: F1 of that model on the attacked graph.
    """

    dataset: str
    data_sha256: str
    threat: str
    model: str
    seed: int
    f1: float
    f1_attacked: float


@dataclass(frozen=True)
class SavedPerturbation:
    """A perturbation of a graph with a name, and where it comes from."""

    perturbation: Perturbation
    origin: Origin

    def save(self, folder: str | Path) -> Path:
        """Write `MODEL.safetensors` into a folder, and return its path."""
        path = Path(folder) / f"{self.origin.model}.safetensors"
        self.perturbation.save(path, **asdict(self.origin))
        return path

    @classmethod
    def load(cls, path: str | Path) -> SavedPerturbation:
        """Load a file that `save` wrote.

        Raises:
            DataError: If the file holds no perturbation, or does not say where it comes from.
        """
        header = parse_json(read_header(path, REMEDY).metadata.get("fgai", "{}"), path, REMEDY)
        if isinstance(header, dict):
            header.pop("perturbation", None)
        return cls(Perturbation.load(path), record(Origin, header, path, REMEDY))


class Worst:
    """The perturbation of one cell under which F1 is lowest, among the threat models that inject nodes.

    Args:
        cell: The name of the cell.
        folder: The folder to write to; None writes nothing.
        keep: Start from the file that the folder has: it was made against the same model.
    """

    def __init__(self, cell: str, folder: Path | None, *, keep: bool = False) -> None:
        self.cell, self.folder = cell, folder
        path = (folder or Path()) / f"{cell}.safetensors"
        self._worst = SavedPerturbation.load(path) if keep and folder is not None and path.exists() else None

    def offer(self, row: Row, trial: Trial) -> None:
        """Take the perturbation of an attacked trial if F1 is lower, and write it."""
        clean, f1 = METRICS["f1"].compute(trial.reference or trial), float(row.metrics["f1"] or 0)
        lower = self._worst is None or f1 < self._worst.origin.f1_attacked
        threat, _ = attack_parts(row.attack)
        if lower and has_budget(threat) and isinstance(trial.now, AttackResult):
            origin = Origin(row.dataset, row.data_sha256, threat, self.cell, row.seed, clean, f1)
            self._worst = SavedPerturbation(trial.now.perturbation, origin)
            if self.folder is not None:
                self._worst.save(self.folder)


def load_all(folder: str | Path, dataset: str = "") -> list[SavedPerturbation]:
    """Load the perturbations of a dataset, or all of a folder.

    Args:
        folder: The folder.
        dataset: The name of the dataset.

    Returns:
        The perturbations, sorted by the model that they were made against.
    """
    loaded = [SavedPerturbation.load(path) for path in sorted(Path(folder).glob("*.safetensors"))]
    chosen = [one for one in loaded if not dataset or one.origin.dataset == dataset]
    if not chosen:
        known = ", ".join(sorted({one.origin.dataset for one in loaded})) or "no perturbation at all"
        raise DataError(f"{folder} has no perturbation of {dataset or 'any dataset'}, it has {known}; {REMEDY}")
    return chosen


@dataclass(frozen=True)
class Outcome:
    """What one perturbation does to a model: F1, the share of the top 5 that stays, and the grade `stable`."""

    origin: Origin
    f1: float
    f1_attacked: float
    overlap: float
    stable: Grade


def unit_test(
    model: nn.Module, data: Data, attacked: Iterable[SavedPerturbation], *, sha: str, call: Call | None = None
) -> list[Outcome]:
    """Test a model against perturbations that were made against other models, without gradients.

    This is a lower bound of what an attacker reaches who knows the model: a model that fails here is not robust, and a
    model that passes has yet to be attacked.

    Args:
        model: The model.
        data: Its graph, with all inputs of the model.
        attacked: The perturbations.
        sha: The fingerprint of the graph, which the perturbations must have.
        call: How to call the model, if not by its signature.

    Returns:
        One outcome per perturbation.

    Raises:
        DataError: If a perturbation was made for another graph.
        BudgetError: If a perturbation exceeds the budget of its threat model.
    """
    outcomes = []
    with open_reader(model, call) as read:
        clean = clean_trial(read, data)
        before = METRICS["f1"].compute(clean)
        for one in attacked:
            origin = one.origin
            if origin.data_sha256 != sha:
                raise DataError(
                    f"the perturbation of {origin.model} was made for another graph called {origin.dataset}; "
                    "use the graph with the fingerprint that its file names"
                )
            budget_of(origin.threat).check(one.perturbation, data)
            now = attacked_trial(_Replay(one.perturbation), "cross-entropy", clean, 0)
            f1, overlap, shift = (METRICS[name].compute(now) for name in ("f1", "overlap", "g_tvd"))
            grade = grade_stable(origin.threat, overlap, before - f1, shift)
            outcomes.append(Outcome(origin, before, f1, overlap, grade))
    return outcomes


def outcome_table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as a Markdown table.

    >>> origin = Origin("cora", "", "strongest", "cora-gat-vanilla-0", 0, 0.8, 0.1)
    >>> print(outcome_table([Outcome(origin, 0.8, 0.79, 0.95, Grade("yes", "It is stable."))]))
    | made against | threat | F1 of that model | F1 | V_5 | stable |
    | --- | --- | --- | --- | --- | --- |
    | cora-gat-vanilla-0 | strongest | 0.800 -> 0.100 | 0.800 -> 0.790 | 0.950 | yes |
    <BLANKLINE>
    """
    body = [
        [
            one.origin.model,
            one.origin.threat,
            f"{one.origin.f1:.3f} -> {one.origin.f1_attacked:.3f}",
            f"{one.f1:.3f} -> {one.f1_attacked:.3f}",
            f"{one.overlap:.3f}",
            one.stable.value,
        ]
        for one in outcomes
    ]
    return grid(["made against", "threat", "F1 of that model", "F1", "V_5", "stable"], body)


@dataclass(frozen=True)
class _Replay:
    """The adversary that applies a given perturbation."""

    perturbation: Perturbation
    seed: int = 0

    def __call__(self, read: Reader, graph: Data, gain: Gain) -> AttackResult:
        return self.perturbation.read(read, graph)
