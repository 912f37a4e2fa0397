"""Which attention layers and models of PyG can be read, audited, fitted and certified. Writes `results/coverage.json`.

    python benchmarks/coverage.py                # every case, a few minutes
    python benchmarks/coverage.py GPSConv        # the cases whose name contains this; the file stays as it is

The cases are in `benchmarks/covered.py`. `python benchmarks/pages.py` writes the table into docs/coverage.md.
"""

from __future__ import annotations

import importlib
import inspect
import io
import pkgutil
import sys
import textwrap
import tokenize
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch_geometric
from torch import nn
from torch_geometric import nn as pyg

import fgai
from covered import CASES, OTHERS, Case
from fgai.calling import call_by_signature
from fgai.errors import FGAIError
from fgai.files import write_json
from fgai.seeding import seeded

RESULTS = Path(__file__).parent.parent / "results" / "coverage.json"
WORDS = ("softmax", "attention", "attn", "transformer")  # a class whose code has one of them may attend
COLUMNS = ("read", "audit", "fit", "certify")
FINE, REFUSES, RAW, PARTIAL = "works", "refuses", "raw error", "silently partial"


@cache
def attending() -> dict[str, bool]:
    """The classes of PyG that may attend over nodes, and whether `torch_geometric.nn` exports them.

    These are the modules whose code, without strings and comments, names a softmax, attention or a transformer, and
    those whose code names one of these.
    """
    names = {cls.__name__: _names(cls) for cls in _modules()}
    chosen = {name for name, words in names.items() if _has_words(words)}
    while more := {name for name, words in names.items() if words & chosen} - chosen:
        chosen |= more
    return {name: name in vars(pyg) for name in sorted(chosen)}


def _has_words(names: set[str]) -> bool:
    return any(part in name.lower() for name in names for part in WORDS)


def _modules() -> list[type]:
    each = []
    for entry in pkgutil.walk_packages(pyg.__path__, "torch_geometric.nn."):
        try:
            module = importlib.import_module(entry.name)
        except ImportError:
            continue
        classes = (cls for cls in vars(module).values() if inspect.isclass(cls) and issubclass(cls, nn.Module))
        each += [cls for cls in classes if cls.__module__ == module.__name__]
    return each


@cache
def _names(cls: type) -> set[str]:
    source = io.StringIO(textwrap.dedent(inspect.getsource(cls)))
    return {token.string for token in tokenize.generate_tokens(source.readline) if token.type == tokenize.NAME}


def cover(case: Case) -> dict[str, Any]:
    """The row of one case: what each column came to, and the sentence of a refusal."""
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    data = case.data()
    attack = fgai.GraphInjection(1, 2, steps=1) if "ptr" in data else fgai.NodeInjection(1, 3, steps=1)
    calls: dict[str, Callable[[nn.Module], Any]] = {
        "read": lambda model: fgai.read(model, data, case.call),
        "audit": lambda model: fgai.audit(model, data, attack, seeds=1, call=case.call),
        "fit": lambda model: fgai.FGAI(adversary=attack, epochs=1).fit(model, data, call=case.call),
        "certify": lambda model: fgai.certify(model, data, k=2, steps=1, call=case.call),
    }
    row: dict[str, Any] = {"name": case.name, "class": case.covers}
    for column, run in calls.items():
        with seeded(0):
            model = case.build()
        row[column], row[f"{column}_note"] = _outcome(case, model, run)
    row["own"] = row["read"] == FINE and _reads_all(case, data)
    return row


def _reads_all(case: Case, data: Any) -> bool:
    """Whether the reading has the attention of the class itself, and nothing inside it is left unread."""
    model = case.build()
    reading = fgai.read(model, data, case.call)
    own = [name for name, module in model.named_modules() if type(module).__name__ == case.covers] or [""]
    prefixes = [f"{name}." if name else "" for name in own]

    def is_inside(name: str) -> bool:
        return name in own or any(name.startswith(prefix) for prefix in prefixes)

    read = any(is_inside(site.partition("@")[0]) for site in reading.attention)
    return read and not any(is_inside(name) or any(o.startswith(f"{name}.") for o in own) for name in reading.unread)


def _outcome(case: Case, model: nn.Module, run: Callable[[nn.Module], Any]) -> tuple[str, str]:
    try:
        result = run(model)
    except FGAIError as error:
        return REFUSES, str(error)
    except Exception as error:
        return RAW, f"{type(error).__name__}: {error}"
    if isinstance(result, fgai.Reading):
        missing = unnamed(case, model, result)
        unread = f"not read: {', '.join(result.unread)}" if result.unread else ""
        return (PARTIAL, f"neither read nor named: {', '.join(missing)}") if missing else (FINE, unread)
    text = result.text() if hasattr(result, "text") else ""
    unsaid = [name for name in getattr(result, "unread", ()) if name not in text]
    return (PARTIAL, f"not named: {', '.join(unsaid)}") if unsaid else (FINE, "")


def unnamed(case: Case, model: nn.Module, reading: fgai.Reading) -> list[str]:
    """The modules whose own code names attention or a softmax, and that the reading neither has nor says it has not."""
    sites = [site.partition("@")[0] for site in reading.attention]
    missing = []
    for name, module in _ran(case, model).items():
        prefix, kind = f"{name}." if name else "", type(module)
        ours = (
            kind.__module__.startswith("torch_geometric.") and _has_words(_names(kind)) and kind.__name__ not in OTHERS
        )
        if not (ours or isinstance(module, nn.MultiheadAttention)) or _is_idle(module):
            continue
        inside = any(part == name or part.startswith(prefix) for part in (*sites, *reading.unread))
        of_relations = any(
            isinstance(model.get_submodule(site), pyg.HeteroConv) and name.startswith(f"{site}.") for site in sites
        )
        if not inside and not of_relations and not any(name.startswith(f"{outer}.") for outer in reading.unread):
            missing.append(name)
    return missing


def _ran(case: Case, model: nn.Module) -> dict[str, nn.Module]:
    """The modules whose `forward` runs when the model is called, by name."""
    names = {module: name for name, module in model.named_modules()}
    ran: dict[str, nn.Module] = {}
    hooks = [m.register_forward_pre_hook(lambda module, _: ran.update({names[module]: module})) for m in names]
    (case.call or call_by_signature)(model, case.data())
    for hook in hooks:
        hook.remove()
    return ran


def _is_idle(module: Any) -> bool:
    """Whether a module does not call its softmax in its present setting."""
    return getattr(module, "min_score", 0) is None or (isinstance(module, pyg.JumpingKnowledge) and module.att is None)


def complete(rows: list[dict[str, Any]]) -> set[str]:
    """The classes whose own attention is read, and that work in all columns in at least one setting."""
    return {row["class"] for row in rows if row["own"] and all(row[column] == FINE for column in COLUMNS)}


def main(asked: str) -> int:
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        if asked in case.name:
            rows.append(cover(case))
            print(f"{case.name:50}", *(f"{rows[-1][column]:8}" for column in COLUMNS), flush=True)
            for column in COLUMNS if asked else ():
                print(f"    {column}: {rows[-1][f'{column}_note']}")
    if not asked:
        table = {"rows": rows, "complete": sorted(complete(rows)), "others": OTHERS}
        write_json(RESULTS, {"pyg": torch_geometric.__version__, **table})
    bad = sum(row[column] in (RAW, PARTIAL) for row in rows for column in COLUMNS)
    print(f"{len(rows)} cases, {len(complete(rows))} classes work in all columns, {bad} raw errors or silently partial")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
