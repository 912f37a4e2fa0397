"""`fgai fit` on two ranks by each engine: losses, and a Ray worker that is killed; results/engines.json.

ip netns add fgai && ip netns exec fgai ip link set lo up          # as root: Ray opens ports on all interfaces
ip netns exec fgai python benchmarks/ray_train.py --folder runs    # needs fgai[ray]; a finished run is not repeated
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from safetensors.torch import load_file

from fgai.bench.results import Cost, write_costs

COMMAND, RESULTS = "python benchmarks/ray_train.py", Path("results/engines.json")
CLI = "from fgai.cli import app; app()"
WORKER = "RayTrainWorker"  # in the title of the processes that train
ENGINES = {"torchrun": "torchrun", "local": "local", "ray": "ray", "ray, killed": "ray"}  # the first is compared with


def words_of(engine: str, model: Path, out: Path, epochs: int) -> list[str]:
    """The command that fits the model on two ranks."""
    job = ["fit", str(model), "--ranks", "2", "--engine", engine, "--epochs", str(epochs), "--out", str(out)]
    if engine == "torchrun":
        script = out.with_name("fgai_command.py")
        script.write_text(CLI)
        return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script), *job]
    return [sys.executable, "-c", CLI, *job]


def descendants(process: int) -> list[int]:
    """The processes that this one started, directly or not."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    children, new = [], [process]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        children += new
    return children


def workers(process: int) -> set[int]:
    """The training processes of Ray."""
    titles = {}
    for one in descendants(process):
        try:
            titles[one] = Path(f"/proc/{one}/cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return {one for one, title in titles.items() if WORKER in title}


def run(words: Sequence[str], checkpoint: Path, kill: bool) -> int:
    """Run a command, and kill one worker when the second checkpoint is there; return how many workers trained."""
    trained, versions, killed = set(), set(), not kill
    process = subprocess.Popen(words, env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    while process.poll() is None:
        time.sleep(0.05)
        if kill and checkpoint.exists():
            versions.add(checkpoint.stat().st_mtime_ns)
        if not killed and len(versions) < 2:
            continue
        trained |= workers(process.pid) if kill else set()
        if not killed:
            os.kill(max(trained), signal.SIGKILL)
            killed = True
            print("killed one of", sorted(trained), flush=True)
    if process.returncode or not killed:
        raise SystemExit(f"{' '.join(words)} ended with {process.returncode}; a worker was killed: {killed}")
    return len(trained)


def difference(one: Path, two: Path) -> tuple[float, float]:
    """The largest difference of a loss term of an epoch, and of a weight."""
    first, second = (json.loads((folder / "manifest.json").read_text())["history"] for folder in (one, two))
    assert len(first) == len(second)
    losses = max(
        abs(mine["terms"][name] - theirs["terms"][name])
        for mine, theirs in zip(first, second, strict=True)
        for name in mine["terms"]
    )
    ours, other = (load_file(next(folder.glob("*.safetensors"))) for folder in (one, two))
    return losses, max(float((ours[name] - other[name]).abs().max()) for name in ours)


def main(
    folder: Annotated[Path, typer.Option(help="Where the models are written.")],
    dataset: str = "amazon-photo",
    epochs: int = 6,
) -> None:
    """Fit by each engine, and compare with torchrun."""
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / "vanilla"
    if not model.exists():
        train = ["train", "--data", dataset, "--epochs", "30", "--out", str(model)]
        subprocess.run([sys.executable, "-c", CLI, *train], check=True)
    for name, engine in ENGINES.items():
        out = folder / name.replace(", ", "-")
        if not out.exists():
            kill = name.endswith("killed")
            trained = run(words_of(engine, model, out, epochs), out.with_name(f"{out.name}.run"), kill)
            if kill:
                record({f"2 ranks by {name}: workers that trained": trained}, dataset)
        if name != "torchrun":
            losses, weights = difference(out, folder / "torchrun")
            what = f"2 ranks by {name}: largest difference of a"
            record({f"{what} loss from torchrun's": losses, f"{what} weight from torchrun's": weights}, dataset)


def record(costs: dict[str, float], dataset: str) -> None:
    print(costs, flush=True)
    write_costs(RESULTS, [Cost(what, dataset, "gat", float(f"{v:.4g}"), COMMAND) for what, v in costs.items()])


if __name__ == "__main__":
    typer.run(main)
