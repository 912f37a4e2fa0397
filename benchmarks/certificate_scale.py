"""What the exact certificate costs, from 10^5 to 10^7 edges, k = 10, one thread: results/scale.json.

python benchmarks/certificate_scale.py
"""

from __future__ import annotations

import math
import subprocess
import sys
import time

import torch

from fgai.attention import Attention
from fgai.bench.results import Cost, peak_mb, write_costs
from fgai.certificates import certified_radius

COMMAND = "python benchmarks/certificate_scale.py"


def measure(edges: int) -> tuple[float, float]:
    """CPU seconds and megabytes beyond the input."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    ends = torch.randint(edges // 10, (2, edges), generator=generator)
    attention = Attention(torch.rand(edges, 1, generator=generator), ends, edges // 10)
    start = time.process_time()
    certified_radius(attention, k=10)
    return time.process_time() - start, peak_mb()


def main() -> None:
    costs = []
    for edges in (10**5, 10**6, 10**7):  # each in a process of its own, so that the peak is its own
        answer = subprocess.run([sys.executable, __file__, str(edges)], check=True, capture_output=True, text=True)
        seconds, megabytes = map(float, answer.stdout.split())
        per = 1e9 * seconds / (edges * math.log2(edges))
        print(
            f"{edges:>10,} edges: {seconds:6.2f} CPU s, peak {megabytes:6.0f} MB, {per:.1f} ns per edge and log2(edges)"
        )
        about = {"dataset": f"generated, {edges:.0e} edges", "backbone": "top 10, l1", "command": COMMAND}
        costs += [
            Cost("certificate-cpu-seconds", value=round(seconds, 2), **about),
            Cost("certificate-peak-mb", value=round(megabytes), **about),
            Cost("certificate-ns-per-edge-log2-edges", value=round(per, 2), **about),
        ]
    write_costs("results/scale.json", costs)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(*measure(int(sys.argv[1])))
    else:
        main()
