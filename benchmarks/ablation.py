"""The paper's ablation, and the three presets, on Photo: results/ablation.json.

python benchmarks/ablation.py [--models DIR]
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Annotated

import torch
import typer

from fgai import FGAI, Vanilla, backbones, datasets, saved
from fgai.bench.attacks import ATTACKS
from fgai.bench.cells import rows_of
from fgai.bench.rows import read_rows, write_rows
from fgai.progress import progress

OUT = Path("results/ablation.json")
TERMS = ("similarity", "prediction", "explanation")  # the paper's L1, L2, L3
SETTINGS = {
    " ".join(name for name, on in zip(TERMS, kept, strict=True) if on): FGAI(
        **{name: getattr(FGAI, name) * on for name, on in zip(TERMS, kept, strict=True)}
    )
    for kept in ((1, 1, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0))
} | {f"preset {name}": FGAI.preset(name) for name in ("paper", "released")}
UNDER = {name: ATTACKS[name] for name in ("injection-20x40", "explanation")}


def main(models: Annotated[Path | None, typer.Option(help="A shelf of vanilla models.")] = None) -> None:
    torch.set_num_threads(1)
    done = {(row.backbone, row.preset) for row in read_rows(OUT)}
    wanted = [cell for cell in product(backbones.BACKBONES, SETTINGS) if cell not in done]
    data = datasets.load("amazon-photo", seed=0)
    sha = datasets.fingerprint(data)
    with progress("ablation", len(wanted)) as advance:
        for backbone, name in wanted:
            graph = backbones.BACKBONES[backbone].prepare(datasets.compact(data))
            shelf = Path(models or "nowhere") / f"amazon-photo-{backbone}-vanilla-0"
            model = saved.load(shelf).model if shelf.exists() else None
            vanilla = model or Vanilla().fit(backbones.build(backbone, graph), graph).model
            fit = SETTINGS[name].fit(vanilla, graph)
            about = {"dataset": "amazon-photo", "backbone": backbone, "method": "fgai", "seed": 0, "sha": sha}
            rows = [replace(row, preset=name) for row in rows_of(fit.model, graph, attacks=UNDER, **about)]
            write_rows(OUT, [replace(rows[0], settings=asdict(SETTINGS[name])), *rows[1:]])
            print(backbone, name, *(f"{row.attack} {row.metrics['f1']:.3f}" for row in rows), flush=True)
            advance(f"{backbone} {name}")


if __name__ == "__main__":
    typer.run(main)
