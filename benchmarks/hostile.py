"""The hostile campaign: mutated files and calls, kills and full disks. Writes `results/hostile.json`.

    python benchmarks/hostile.py                         # everything, under an hour
    python benchmarks/hostile.py --what files            # or calls, commands, pages, kill, disk
    python benchmarks/hostile.py --what costs --seed 7   # one case again, with what it raised

What is tried, and what counts as what, is in `tests/hostile/`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from fgai.files import write_json

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "hostile.json"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "hostile")]
UNITS = {"files": 8_000, "calls": 2_000, "commands": 1_000}


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--what", default="", help="a group, or the name of one target")
    asked.add_argument("--seed", type=int, default=None, help="run this one case again, here, with its traceback")
    asked.add_argument("--scale", type=float, default=1.0, help="of the number of cases")
    given = asked.parse_args()
    torch.set_num_threads(1)
    if given.seed is not None:
        return again(given.what, given.seed)
    from browser import look
    from interruptions import DISK, KILL
    from targets import GROUPS

    wrong = 0
    for group, targets in GROUPS.items():
        for target in targets:
            if given.what in ("", group, target.name):
                wrong += tried(target, UNITS[group] * given.scale, group)
    for group, trials in (("kill", KILL), ("disk", DISK)):
        for trial in trials:
            if given.what in ("", group, trial.name):
                wrong += interrupted(trial, given.scale, group)
    if given.what in ("", "pages"):
        counts, findings = look(max(3, round(36 * given.scale)))
        wrong += summarise("report pages in Chromium", counts, findings, command("pages"))
    print(f"{wrong} cases ended badly")
    return int(wrong > 0)


def command(what: str) -> str:
    return f"python benchmarks/hostile.py --what {what}"


def tried(target: Any, units: float, group: str) -> int:
    from campaign import run
    from targets import share

    start = time.perf_counter()
    counts, findings = run(target, share(target, units))
    print(f"{counts.total() / (time.perf_counter() - start):8.0f}/s", end="  ")
    return summarise(target.name, counts, findings, command(group))


def interrupted(trial: Any, scale: float, group: str) -> int:
    counts, findings = trial.run(max(2, round(30 * scale)))
    return summarise(trial.name, counts, findings, command(group))


def summarise(what: str, counts: Counter[str], findings: list[Any], how: str) -> int:
    """Print and keep the counts of one thing; how many cases ended badly."""
    from campaign import BAD, row

    print(f"{what}: {', '.join(f'{number} {name}' for name, number in counts.items())}", flush=True)
    alike = {(finding.outcome, finding.said.partition(":")[0]): finding for finding in reversed(findings)}
    for finding in alike.values():  # one of each kind
        print(f"    {finding.outcome}, seed {finding.seed}: {finding.said}")
    rows = {old["what"]: old for old in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    rows[what] = row(what, counts, how)
    write_json(RESULTS, [rows[name] for name in sorted(rows)])
    return sum(counts[name] for name in BAD)


def again(what: str, seed: int) -> int:
    """One case in this process: its outcome, and where it failed."""
    from campaign import run_case
    from targets import TARGETS

    outcome, message = run_case(TARGETS[what], seed, loudly=True)
    print(f"{what}, seed {seed}: {outcome} {message}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
