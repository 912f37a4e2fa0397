"""What things cost: one row per figure, each with the command that measured it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from fgai.files import write_json
from fgai.readers import read_json
from fgai.records import records

REMEDY = "take it away, and measure again"


@dataclass(frozen=True)
class Cost:
    """One measured figure; timings are ratios within one run wherever they are claims."""

    what: str
    dataset: str
    backbone: str
    value: float
    command: str


def read_costs(path: str | Path) -> list[Cost]:
    """The rows of a file; none if it is not there."""
    return records(Cost, read_json(path, REMEDY), path, REMEDY) if Path(path).exists() else []


def write_costs(path: str | Path, costs: Iterable[Cost]) -> None:
    """Add rows to a file, sorted; a later measurement of the same thing takes the place of an older one."""
    kept = {(cost.what, cost.dataset, cost.backbone): cost for cost in (*read_costs(path), *costs)}
    write_json(Path(path), [asdict(kept[key]) for key in sorted(kept)])
