"""Trials of FGAI's settings, measured on validation nodes: results/trials.json.

Each trial re-trains the same vanilla models. A trial with a row in the file is not run again. Rows with the key
`f1 strongest, sign` were attacked by a `strongest` that stepped along the sign of the slope alone.

python benchmarks/trials.py --models DIR --only cora-gat
"""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn
from torch_geometric.data import Data

from fgai import backbones, datasets
from fgai.adversaries import THREATS
from fgai.bench.plan import Cell
from fgai.faithfulness import measure_faithfulness
from fgai.files import jsonable, write_json
from fgai.methods import FGAI, AdversarialTraining
from fgai.methods.adversarial import BY_DEGREE
from fgai.metrics import measure
from fgai.progress import progress
from fgai.reading import open_reader
from fgai.trial import attacked_trial, clean_trial
from figures import trained
from resumable import rows_in

RESULTS = Path("results/trials.json")
KEY = ("dataset", "backbone", "trial", "seed")
SUPPORT = FGAI.presets["support"]
LONG = replace(BY_DEGREE, steps=10, step=0.05)
TRIALS: dict[str, Any] = {
    "default": FGAI(),
    "degree": FGAI(adversary=BY_DEGREE),
    "degree, aimed": FGAI(adversary=BY_DEGREE, aimed=True),
    "degree, aimed, support": FGAI(adversary=BY_DEGREE, aimed=True, **SUPPORT),
    "degree, aimed, support, explanation 1": FGAI.preset("chosen-links"),
    "aimed, support, explanation 1": FGAI(aimed=True, explanation=1.0, **SUPPORT),
    "degree, aimed, explanation 1": FGAI(adversary=BY_DEGREE, aimed=True, explanation=1.0),
    "degree, aimed, support, explanation 0.2": FGAI(adversary=BY_DEGREE, aimed=True, explanation=0.2, **SUPPORT),
    "degree, aimed, support, explanation 1, prediction 50": FGAI(
        adversary=BY_DEGREE, aimed=True, explanation=1.0, prediction=50.0, **SUPPORT
    ),
    "degree, aimed, support 5, explanation 1": FGAI(
        adversary=BY_DEGREE, aimed=True, explanation=1.0, **{**SUPPORT, "similarity": 5.0}
    ),
    "degree, aimed, support, explanation 1, 5 steps": FGAI(
        adversary=replace(BY_DEGREE, steps=5), aimed=True, explanation=1.0, **SUPPORT
    ),
    "degree, aimed, support, explanation 1, 10 steps": FGAI.preset(
        "chosen-links", adversary=LONG, restart_every=LONG.steps
    ),
    "degree, aimed, support, explanation 1, 10 steps of Adam": FGAI.preset(
        "chosen-links", adversary=replace(LONG, adam=True), restart_every=LONG.steps
    ),
    "at": AdversarialTraining(),
    "at, degree": AdversarialTraining.preset("chosen-links"),
}
CELLS = [
    Cell(dataset, backbone, "vanilla", seed)
    for seed in range(3)
    for dataset, backbone in (("cora", "gat"), ("amazon-photo", "gat"), ("cora", "gatv2"))
]


def row(cell: Cell, name: str, model: nn.Module, data: Data) -> dict[str, Any]:
    """The figures of one trained model on the validation nodes."""
    values: dict[str, Any] = {"dataset": cell.dataset, "backbone": cell.backbone, "trial": name, "seed": cell.seed}
    with open_reader(model) as read:
        clean = clean_trial(read, data)
        for explanation in ("tree", "last"):
            tested = measure_faithfulness(model, data, explanation)
            values |= {
                f"{explanation}_faithful": tested.grade.value,
                f"{explanation}_necessity": tested.necessity.mean,
                f"{explanation}_necessity_low": tested.necessity.outer_low,
                f"{explanation}_against_least": tested.against_least.mean,
                f"{explanation}_against_least_low": tested.against_least.outer_low,
            }
        values["f1"] = measure(clean)["f1"]
        for threat in ("injection-20x20", "strongest", "realistic"):
            attack = THREATS[threat]
            values[f"f1 {threat}"] = measure(attacked_trial(attack.adversary, attack.gain, clean, cell.seed))["f1"]
        attack = THREATS["explanation"]
        for explanation in ("last", "tree"):
            trial = replace(clean, explanation=explanation)
            changed = measure(attacked_trial(attack.adversary, f"attention-divergence:{explanation}", trial, cell.seed))
            values |= {f"{explanation}_g_jsd": changed["g_jsd"], f"{explanation}_overlap": changed["overlap"]}
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in values.items()}


def main(
    models: Annotated[Path, typer.Option(help="A folder of saved models.")] = Path("models"),
    only: Annotated[str, typer.Option(help="Cells whose names begin with this.")] = "",
    names: Annotated[str, typer.Option(help="Trials, separated by semicolons; all by default.")] = "",
    seeds: Annotated[int, typer.Option(help="Seeds of each cell.")] = 3,
) -> None:
    """Run the trials that have no row yet."""
    torch.set_num_threads(1)
    chosen = [name.strip() for name in names.split(";")] if names else ["vanilla", *TRIALS]
    asked = [cell for cell in CELLS if cell.name.startswith(only) and cell.seed < seeds]
    with progress("trials", len(asked) * len(chosen)) as advance:
        for cell in asked:
            for name in chosen:
                rows = rows_in(RESULTS)
                about = [cell.dataset, cell.backbone, name, cell.seed]
                same = [one for one in rows if [one[key] for key in KEY] == about]
                if not any("f1 strongest" in one for one in same):
                    data = datasets.compact(datasets.load(cell.dataset, seed=cell.seed))
                    data = backbones.BACKBONES[cell.backbone].prepare(data)
                    model, _ = trained(cell, data, models)
                    method = TRIALS.get(name)
                    if method is not None:
                        start = (
                            model if method.needs_pretrained else backbones.build(cell.backbone, data, seed=cell.seed)
                        )
                        model = replace(method, seed=cell.seed).fit(start, data).model
                    scored = copy.copy(data)
                    scored.test_mask = data.val_mask
                    result = row(cell, name, model, scored) | {"settings": jsonable(asdict(method) if method else {})}
                    write_json(RESULTS, [*(one for one in rows if one not in same), result])
                    print({key: value for key, value in result.items() if key != "settings"}, flush=True)
                advance(f"{cell.name} {name}")


if __name__ == "__main__":
    typer.run(main)
