"""What `fgai audit` prints before and after `fgai fit`: results/printed/DATASET.txt, shown in docs/grades.md.

python benchmarks/printed.py cora amazon-photo
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from fgai.files import atomic_write

PRINTED = Path("results/printed")
COMMANDS = (
    "fgai train --data {dataset} --backbone gat --out plain",
    "fgai audit plain --seeds 2",
    "fgai fit plain --out re-trained",
    "fgai audit re-trained --seeds 2",
)


def session(dataset: str) -> str:
    """Run the commands in an empty folder, and return each with what it printed."""
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for command in (line.format(dataset=dataset) for line in COMMANDS):
            print(command, file=sys.stderr, flush=True)
            ran = subprocess.run(shlex.split(command), cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
            parts.append(f"$ {command}\n{ran.stdout.strip()}\n")
    return "\n".join(parts)


def main(dataset: Annotated[list[str], typer.Argument(help="Datasets by name.")]) -> None:
    """Write the session of each dataset."""
    for name in dataset:
        with atomic_write(PRINTED / f"{name}.txt") as path:
            path.write_text(session(name))


if __name__ == "__main__":
    typer.run(main)
