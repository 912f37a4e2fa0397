"""What certificates cost by the number of edges, one thread: results/scale.json.

python benchmarks/certificate_scale.py                 # the exact certificate, top 10
python benchmarks/certificate_scale.py --what votes    # or deletions: proofs against an attacker, GAT, two layers
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated

import torch
import typer

from fgai import backbones, datasets
from fgai.attention import Attention
from fgai.bench.results import Cost, peak_mb, write_costs
from fgai.certificates import Deletions, Voted, certified_radius, certify

COMMAND = "python benchmarks/certificate_scale.py"
GROUPS, REPEATS = 11, 3


def exact(edges: int) -> list[tuple[str, float]]:
    """CPU seconds and the peak memory of the exact certificate of all nodes."""
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(edges // 10, (2, edges), generator=generator)
    attention = Attention(torch.rand(edges, 1, generator=generator), ends, edges // 10)
    seconds = cpu_seconds(lambda: certified_radius(attention, k=10))
    per = 1e9 * seconds / (edges * math.log2(edges))
    return [
        ("certificate-cpu-seconds", round(seconds, 2)),
        ("certificate-peak-mb", round(peak_mb())),
        ("certificate-ns-per-edge-log2-edges", round(per, 2)),
    ]


@torch.no_grad()
def votes(edges: int) -> list[tuple[str, float]]:
    """The time of the votes over that of one forward pass, the best of some repetitions each."""
    data = datasets.synthetic(edges // 10, edges)
    model = backbones.build("gat", data).eval()
    voted = Voted(model, GROUPS)
    plain = min(cpu_seconds(lambda: model(data.x, data.edge_index)) for _ in range(REPEATS))
    voting = min(cpu_seconds(lambda: voted.votes(data)) for _ in range(REPEATS))
    return [("votes-over-forward-pass", round(voting / plain, 2)), ("votes-peak-mb", round(peak_mb()))]


def deletions(edges: int) -> list[tuple[str, float]]:
    """CPU seconds and the peak memory of a proof against one deletion, baselines included."""
    data = datasets.synthetic(edges // 10, edges)
    model = backbones.build("gat", data).eval()
    seconds = cpu_seconds(lambda: certify(model, data, against=Deletions(1)))
    return [("deletions-cpu-seconds", round(seconds, 2)), ("deletions-peak-mb", round(peak_mb()))]


def cpu_seconds(work: Callable[[], object]) -> float:
    """The CPU time of a call."""
    start = time.process_time()
    work()
    return time.process_time() - start


MEASURES = {"exact": exact, "votes": votes, "deletions": deletions}
SIZES = (10**5, 10**6, 10**7)
MODELS = {"exact": "top 10, l1", "votes": f"gat, {GROUPS} groups", "deletions": "gat"}


def main(
    what: Annotated[str, typer.Option(help="exact, votes or deletions.")] = "exact",
    edges: Annotated[int, typer.Option(help="Measure this size here and print it.")] = 0,
) -> None:
    if edges:
        torch.set_num_threads(1)
        for name, value in MEASURES[what](edges):
            print(name, value)
        return
    command, costs = COMMAND if what == "exact" else f"{COMMAND} --what {what}", []
    for size in SIZES:  # each in a process of its own, so that the peak is its own
        asked = [sys.executable, __file__, "--what", what, "--edges", str(size)]
        answer = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
        about = {"dataset": f"generated, {size:.0e} edges", "backbone": MODELS[what], "command": command}
        for name, value in (line.split() for line in answer.splitlines()):
            costs.append(Cost(name, value=float(value), **about))
            print(f"{size:>10,} edges: {name} {value}", flush=True)
    write_costs("results/scale.json", costs)


if __name__ == "__main__":
    typer.run(main)
