"""Trials of FGAI's settings, measured on validation nodes: results/trials.json.

Each trial re-trains the same vanilla models. A trial with a row in the file is not run again. Rows with the key
`f1 strongest, sign` were attacked by a `strongest` that stepped along the sign of the slope alone.

python benchmarks/trials.py --models DIR --only cora-gat
python benchmarks/trials.py --models DIR --only cora-gat --quick   # F1 clean, under strongest and under realistic
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
from fgai.adversaries import THREATS, NodeInjection
from fgai.bench.models import ModelStore
from fgai.bench.plan import Cell
from fgai.faithfulness import measure_faithfulness
from fgai.files import jsonable, write_json
from fgai.methods import FGAI, AdversarialTraining
from fgai.methods.adversarial import BY_DEGREE
from fgai.metrics import measure
from fgai.progress import progress
from fgai.reading import open_reader
from fgai.trial import attacked_trial, clean_trial
from resumable import rows_in

RESULTS = Path("results/trials.json")
SUPPORT = FGAI.presets["support"]
TERMS = {"similarity": 1.0, "explanation": 5.0}  # of the default, which the preset `bounded` leaves out
SIGN = NodeInjection(nodes=20, edges=40, steps=3, step=0.1, links="random-by-degree")
LONG = replace(SIGN, steps=10, step=0.05)
QUICK = ("strongest", "realistic")
TRIALS: dict[str, Any] = {
    "default": FGAI(),
    "degree": FGAI(adversary=SIGN),
    "degree, aimed": FGAI(adversary=SIGN, aimed=True),
    "degree, aimed, support": FGAI(adversary=SIGN, aimed=True, **SUPPORT),
    "degree, aimed, support, explanation 1": FGAI(adversary=SIGN, aimed=True, explanation=1.0, **SUPPORT),
    "aimed, support, explanation 1": FGAI(aimed=True, explanation=1.0, **SUPPORT),
    "degree, aimed, explanation 1": FGAI(adversary=SIGN, aimed=True, explanation=1.0),
    "degree, aimed, support, explanation 0.2": FGAI(adversary=SIGN, aimed=True, explanation=0.2, **SUPPORT),
    "degree, aimed, support, explanation 1, prediction 50": FGAI(
        adversary=SIGN, aimed=True, explanation=1.0, prediction=50.0, **SUPPORT
    ),
    "degree, aimed, support 5, explanation 1": FGAI(
        adversary=SIGN, aimed=True, explanation=1.0, **{**SUPPORT, "similarity": 5.0}
    ),
    "degree, aimed, support, explanation 1, 5 steps": FGAI(
        adversary=replace(SIGN, steps=5), aimed=True, explanation=1.0, **SUPPORT
    ),
    "degree, aimed, support, explanation 1, 10 steps": FGAI(
        adversary=LONG, aimed=True, explanation=1.0, restart_every=LONG.steps, **SUPPORT
    ),
    "degree, aimed, support, explanation 1, 10 steps of Adam": FGAI(
        adversary=replace(LONG, adam=True), aimed=True, explanation=1.0, restart_every=LONG.steps, **SUPPORT
    ),
    "degree by Adam, aimed": FGAI.preset("chosen-links"),
    "degree by Adam, aimed, dropout, labels": FGAI.preset("chosen-links-labels"),
    "degree by Adam, aimed, weight decay 0.01": FGAI(adversary=BY_DEGREE, aimed=True, weight_decay=0.01),
    "degree by Adam, aimed, prediction 100": FGAI(adversary=BY_DEGREE, aimed=True, prediction=100.0),
    "degree by Adam, aimed, 12 rounds": FGAI(adversary=BY_DEGREE, aimed=True, restart_every=12),
    "degree by Adam, aimed, 5 steps": FGAI(adversary=replace(BY_DEGREE, steps=5), aimed=True),
    "degree by Adam, aimed, steps of 1": FGAI(adversary=replace(BY_DEGREE, step=1.0), aimed=True),
    "degree by Adam, aimed, explanation 20": FGAI(adversary=BY_DEGREE, aimed=True, explanation=20.0),
    "degree by Adam, aimed, explanation 50": FGAI(adversary=BY_DEGREE, aimed=True, explanation=50.0),
    "degree by Adam, aimed, 40 nodes": FGAI(adversary=replace(BY_DEGREE, nodes=40), aimed=True),
    "degree by Adam, aimed, support": FGAI(adversary=BY_DEGREE, aimed=True, **SUPPORT),
    "degree by Adam, aimed, support, explanation 1": FGAI(adversary=BY_DEGREE, aimed=True, explanation=1.0, **SUPPORT),
    "bounded": FGAI.preset("bounded"),
    "bounded, dropout": FGAI.preset("bounded", dropout=True),
    "bounded, dropout, labels": FGAI.preset("bounded-labels"),
    "bounded, explanation 5": FGAI.preset("bounded", **TERMS),
    "bounded, explanation 5, closeness 1, rate .01": FGAI.preset("bounded", closeness=1.0, lr=0.01, **TERMS),
    "bounded, explanation 20": FGAI.preset("bounded", **{**TERMS, "explanation": 20.0}),
    "without explanation": FGAI.preset("without-explanation"),
    "only prediction": FGAI.preset("only-prediction"),
    "without similarity": FGAI.preset("without-similarity"),
    "at": AdversarialTraining(),
    "at, degree": AdversarialTraining(adversary=SIGN),
    "at, degree by Adam": AdversarialTraining(adversary=BY_DEGREE),
    "at, bounded": AdversarialTraining.preset("bounded"),
}
MODELS = (("cora", "gat"), ("amazon-photo", "gat"), ("cora", "gatv2"), ("pubmed", "gat"), ("amazon-photo", "gatv2"))
CELLS = [Cell(dataset, backbone, "vanilla", seed) for seed in range(3) for dataset, backbone in MODELS]


def row(cell: Cell, model: nn.Module, data: Data, *, quick: bool) -> dict[str, Any]:
    """The figures of one trained model on the validation nodes, with `quick` F1 alone."""
    values: dict[str, Any] = {}
    with open_reader(model) as read:
        clean = clean_trial(read, data)
        values["f1"] = measure(clean)["f1"]
        for threat in QUICK if quick else ("injection-20x20", *QUICK):
            attack = THREATS[threat]
            values[f"f1 {threat}"] = measure(attacked_trial(attack.adversary, attack.gain, clean, cell.seed))["f1"]
        if quick:
            return values
        for explanation in ("tree", "last"):
            tested = measure_faithfulness(model, data, explanation)
            values |= {
                f"{explanation}_faithful": tested.grade.value,
                f"{explanation}_necessity": tested.necessity.mean,
                f"{explanation}_necessity_low": tested.necessity.outer_low,
                f"{explanation}_against_least": tested.against_least.mean,
                f"{explanation}_against_least_low": tested.against_least.outer_low,
            }
        attack = THREATS["explanation"]
        for explanation in ("last", "tree"):
            trial = replace(clean, explanation=explanation)
            changed = measure(attacked_trial(attack.adversary, f"attention-divergence:{explanation}", trial, cell.seed))
            values |= {f"{explanation}_g_jsd": changed["g_jsd"], f"{explanation}_overlap": changed["overlap"]}
    return values


def main(
    models: Annotated[Path, typer.Option(help="A folder of saved models.")] = Path("models"),
    only: Annotated[str, typer.Option(help="Cells whose names begin with this.")] = "",
    names: Annotated[str, typer.Option(help="Trials, separated by semicolons; all by default.")] = "",
    seeds: Annotated[int, typer.Option(help="Seeds of each cell.")] = 3,
    quick: Annotated[bool, typer.Option(help="F1 alone, clean, under strongest and under realistic.")] = False,
) -> None:
    """Run the trials that have no row yet."""
    torch.set_num_threads(1)
    chosen = [name.strip() for name in names.split(";")] if names else ["vanilla", *TRIALS]
    asked = [cell for cell in CELLS if cell.name.startswith(only) and cell.seed < seeds]
    with progress("trials", len(asked) * len(chosen)) as advance:
        for cell in asked:
            for name in chosen:
                rows = rows_in(RESULTS)
                about = {"dataset": cell.dataset, "backbone": cell.backbone, "trial": name, "seed": cell.seed}
                old = next((one for one in rows if one.items() >= about.items()), {})
                if "f1 strongest" not in old or not (quick or "tree_overlap" in old):
                    data = datasets.compact(datasets.load(cell.dataset, seed=cell.seed))
                    data = backbones.BACKBONES[cell.backbone].prepare(data)
                    model = ModelStore(models).trained(cell, data).model
                    method = TRIALS.get(name)
                    if method is not None:
                        start = (
                            model if method.needs_pretrained else backbones.build(cell.backbone, data, seed=cell.seed)
                        )
                        model = replace(method, seed=cell.seed).fit(start, data).model
                    scored = copy.copy(data)
                    scored.test_mask = data.val_mask
                    new = row(cell, model, scored, quick=quick)
                    new = {key: round(value, 6) if isinstance(value, float) else value for key, value in new.items()}
                    settings = {"settings": jsonable(asdict(method) if method else {})}
                    write_json(RESULTS, [*(one for one in rows if one is not old), {**old, **about, **new, **settings}])
                    print({**about, **new}, flush=True)
                advance(f"{cell.name} {name}")


if __name__ == "__main__":
    typer.run(main)
