"""Prints how long `fgai --help`, `fgai --version` and `import fgai` take.

    python benchmarks/startup.py

Each is the best of several processes, in seconds. The time of an import is that of `python -X importtime`, without the
time of torch, of torch_geometric and of what these import.
"""

import json
import re
import subprocess
import sys
import time

RUNS = 7
OTHERS = ("torch", "torch_geometric")
EVERYTHING = "import fgai; [getattr(fgai, name) for name in fgai.__all__]"
COMMAND = "from fgai.cli import app; app()"
LINE = re.compile(r"import time:\s*(\d+) \|\s*(\d+) \|( +)(\S+)")


def wall(*words: str) -> float:
    """Seconds of `fgai` with these arguments, from the start of the process to its end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", COMMAND, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def own_import_time(code: str) -> float:
    """Seconds that the imports of `code` take in modules that neither torch nor torch_geometric imports."""
    output = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], check=True, capture_output=True, text=True
    )
    matches = [LINE.fullmatch(line) for line in output.stderr.splitlines()]
    rows = [(int(own), len(depth), name) for own, _, depth, name in (match.groups() for match in matches if match)]
    total, other_depth = 0, 0
    for own, depth, name in reversed(rows):  # a module is printed after what it imports
        if other_depth and depth > other_depth:
            continue
        other_depth = depth if name.split(".")[0] in OTHERS else 0
        total += 0 if other_depth else own
    return total / 1e6


def main() -> None:
    figures = {
        "fgai --help": min(wall("--help") for _ in range(RUNS)),
        "fgai --version": min(wall("--version") for _ in range(RUNS)),
        "import fgai": min(own_import_time("import fgai") for _ in range(RUNS)),
        "every public name": min(own_import_time(EVERYTHING) for _ in range(2)),
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=1))


if __name__ == "__main__":
    main()
