"""Vanilla GAT on Amazon-Photo under every attack, 3 seeds: results/audit-vanilla.json.

python benchmarks/audit_vanilla.py
python benchmarks/audit_vanilla.py --models DIR    # where benchmarks/vanilla.py --models DIR saved them
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from fgai import backbones, datasets, saved
from fgai.bench.cells import row_per_attack
from fgai.bench.rows import read_rows, write_rows
from fgai.methods import Vanilla
from fgai.progress import progress

DATASET, BACKBONE, SEEDS = "amazon-photo", "gat", 3
OUT = Path("results/audit-vanilla.json")


def main(models: Annotated[Path | None, typer.Option(help="Saved models to use; trained otherwise.")] = None) -> None:
    torch.set_num_threads(1)
    done = {row.key for row in read_rows(OUT)}
    with progress("audit", SEEDS) as advance:
        for seed in range(SEEDS):
            if (DATASET, BACKBONE, "vanilla", "default", seed, "explanation") not in done:
                data = datasets.load(DATASET, seed=seed)
                about = {"dataset": DATASET, "backbone": BACKBONE, "method": "vanilla", "seed": seed}
                if models:
                    model = saved.load(models / f"{DATASET}-{BACKBONE}-vanilla-{seed}").model
                else:
                    model = Vanilla(seed=seed).fit(backbones.build(BACKBONE, data, seed=seed), data).model
                for row in row_per_attack(model, data, sha=datasets.fingerprint(data), **about):
                    write_rows(OUT, [row])
                    print(f"seed {seed} {row.attack}: F1 {row.metrics['f1']:.3f} in {row.seconds:.0f} s", flush=True)
            advance(f"seed {seed}")


if __name__ == "__main__":
    typer.run(main)
