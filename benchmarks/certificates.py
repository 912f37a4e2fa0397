"""Certificates of the vanilla models, and the strongest attack on them: results/certificates.json, docs/certified.png.

python benchmarks/certificates.py                    # trains what is missing
python benchmarks/certificates.py --models DIR       # where they are: results/cells/models, after `fgai bench`
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch_geometric.data import Data

from fgai import backbones, datasets
from fgai.adversaries import GAINS, AttentionBall
from fgai.adversaries.gains import soft_topk
from fgai.auditing.audit import CERTIFIED
from fgai.bench.models import ModelStore
from fgai.bench.plan import Cell
from fgai.bench.results import Row, peak_mb, read_rows, write_rows
from fgai.bench.run import K, certified
from fgai.certificates import guaranteed_overlap, interval_bounds, prediction_bound
from fgai.divergence import tvd
from fgai.kernels.pyg import accelerated
from fgai.metrics import top_overlap
from fgai.modes import eval_mode
from fgai.plots import certified_curves
from fgai.progress import progress
from fgai.reading import Reader, Reading

OUT, FIGURE, STEPS, RADIUS = Path("results/certificates.json"), Path("docs/certified.png"), 200, 0.05
FIRST = (0.0001, 0.001, 0.01, 0.05)
CURVES = list(product(("amazon-photo", "amazon-computers", "coauthor-cs", "coauthor-physics"), ("gat", "gatv2", "gt")))
PLANETOID = ("cora", "citeseer", "pubmed")
ATTACKED = [(name, "gat") for name in (*PLANETOID, *dict(CURVES))]


def cell(dataset: str, backbone: str, models: Path, attacked: bool) -> Row:
    """One trained model: the shares of nodes certified, and, if it is attacked, how often a certificate was broken."""
    data = datasets.load(dataset, seed=0)
    sha = datasets.fingerprint(data)
    data = backbones.BACKBONES[backbone].prepare(datasets.compact(data))
    model = ModelStore(models).trained(Cell(dataset, backbone, "vanilla", 0), data).model
    read = Reader(model)
    with eval_mode(model), accelerated(model):
        with torch.no_grad():
            clean = read(data).detach()
        metrics = certified(attention := clean.explanation)
        metrics["contested"] = float((attention.degree > K).double().mean())
        if attacked:
            metrics |= under_attack(read, data, clean)
    if not attacked:
        metrics |= sure(read, data)
    settings = {"k": K, "norm": "l1", "steps": STEPS if attacked else 0, "radius": RADIUS}
    about = {"attack": "attention-ball" if attacked else "none", "settings": settings, "data_sha256": sha}
    return Row(dataset, backbone, "vanilla", 0, metrics, peak_mb=peak_mb(), **about)


def sure(read: Reader, data: Data) -> dict[str, float | None]:
    """The share of nodes whose class no push of the first layer changes, where there is a bound at all."""
    shares: dict[str, float | None] = {}
    with eval_mode(read.model):
        for radius in FIRST:
            for bound in interval_bounds(read, data, radius).values():
                if bound is not None:
                    shares[f"class_sure_{radius:g}"] = float(bound.class_kept.double().mean())
    return shares


def under_attack(read: Reader, data: Data, clean: Reading) -> dict[str, float | None]:
    """What 200 steps inside the ball reach, and at how many nodes that is beyond the certificate."""
    attack, far = AttentionBall(RADIUS, "l1", steps=STEPS), prediction_bound(read, data)
    assert far is not None
    explained = attack(read, data, soft_topk(clean, K)).detach()
    answered = attack(read, data, GAINS["kl"](clean)).detach()
    overlap, promised = (
        top_overlap(clean.explanation, explained.explanation, K),
        guaranteed_overlap(clean.explanation, K, RADIUS),
    )
    moved, bound = tvd(clean.probs, answered.probs).double(), far.tvd(RADIUS)
    flipped = answered.logits.argmax(1) != clean.logits.argmax(1)
    broken = (overlap < promised - 1e-9) | (moved > bound + 1e-6) | (flipped & (far.class_radius > RADIUS))
    return {
        "attack_overlap": float(overlap.nanmean()),
        "promised_overlap": float(promised.nanmean()),
        "attack_tvd": float(moved.mean()),
        "bound_tvd": float(bound.mean()),
        "violations": float(broken.sum()),
    }


def draw() -> None:
    panels: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(dict)
    for row in read_rows(OUT):
        if row.attack == "none":
            panels[row.dataset][row.backbone] = [(r, float(row.metrics[f"share_{r:g}"] or 0)) for r in CERTIFIED]
    certified_curves(panels).savefig(FIGURE, dpi=110)


def main(
    models: Annotated[Path, typer.Option(help="A folder of saved models.")] = Path("models"),
    attack: Annotated[bool, typer.Option(help="Also attack, 200 steps on the seven datasets.")] = True,
) -> None:
    torch.set_num_threads(1)
    done = {(row.dataset, row.backbone, row.attack) for row in read_rows(OUT)}
    wanted = [(*names, False) for names in CURVES] + [(*names, True) for names in ATTACKED if attack]
    with progress("certificates", len(wanted)) as advance:
        for dataset, backbone, attacked in wanted:
            if (dataset, backbone, "attention-ball" if attacked else "none") not in done:
                row = cell(dataset, backbone, models, attacked)
                write_rows(OUT, [row])
                print(dataset, backbone, row.attack, row.metrics, flush=True)
            advance(f"{dataset} {backbone}")
    draw()


if __name__ == "__main__":
    typer.run(main)
