"""Every command of `fgai` as a target: its options, found by introspection, get values that a shell lets through."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import inputs
from campaign import Target
from readers import mutated_copy, shelf
from typer.models import ArgumentInfo
from typer.testing import CliRunner

from fgai.adversaries import ADVERSARIES, GAINS
from fgai.backbones import BACKBONES
from fgai.cli import app, bench_app
from fgai.errors import FGAIError

TINY = f"{inputs.__name__}:graph"  # module:function, as `--data` takes it
LARGER = f"{inputs.__name__}:community"
INTEGERS = ("-3", "-1", "0", "1", "2", "nan", "1.5", "x", "", "9223372036854775808", "1e3", "0x10", "٣")
FLOATS = ("nan", "inf", "-inf", "-1", "0", "0.01", "1e309", "x", "", "1e-320")
WORDS = (
    "",
    "zzz",
    "../x",
    "a b",
    "é‮",
    "x" * 5_000,
    "-",
    "--",
    "a:b",
    "os:getcwd",
    "inputs:",
    ":graph",
    "inputs:nope",
    "=",
    "a=b",
)
WORK = ("epochs", "nodes", "seeds", "ranks", "workers")
VALID = {
    "data": (TINY, TINY, TINY, "synthetics", "tiny"),
    "backbone": (*BACKBONES, "gta"),
    "gain": (*GAINS,),
    "norm": ("l1", "l2", "linf"),
    "against": ("links:1", "deletions:1", "injection:1", "features:0.1", "attention:nan", "links:-1", "links:1e9"),
    "groups": ("3", "0", "99999999"),
    "fixed": ("pe", "x"),
    "preset": ("default", "paper", "links"),
    "engine": ("serial", "local", "ray", "zzz"),
    "model": ("inputs:model", "inputs:Plain", "inputs:graph"),
    "plan": ("table1", "table9"),
    "row": ("tiny-gat-vanilla-0", "../cells/tiny-gat-vanilla-0", "nope"),
    "threat": ("strongest", "structure", "zzz"),
    "max_loss": ("0", "0.1"),
    "as_": ("markdown", "latex", "csv", "zzz"),
    "beside": ("paper", "x"),
    "only": ("dataset=none", "seed=0+9", "zzz=1"),
    "array": ("x=x.npy", "start=x.npy", "../x=x.npy"),
    "fanout": ("2,2", "0", "-1,-1", "2,x"),
    "dataset": ("tiny", "amazon-photo"),
    "name": ("stars", "loss-terms", "certified", "zzz"),
    "track": ("mlflow:x", "tensorboard:", "zzz:x"),
    "modules": ("inputs", "nope"),
    "adversary": (*ADVERSARIES, "zzz"),
    "method": ("vanilla", "at", "ln", "fgai", "zzz"),
    "settings": ("nodes=2", "edges=x", "zzz=1", "box=0,1", "steps=1e999", "seed=-1", "box=" + "[" * 5_000, "lr=nan"),
}
LITTLE = {"epochs": "1", "nodes": "1", "seeds": "1", "fanout": "2,2", "k": "2"}
SMALL_ATTACK = ["nodes=1", "--set", "edges=1", "--set", "steps=1"]  # the words after the first --set
SKIPPED = {"ls"}


@dataclass(frozen=True)
class Parameter:
    """Of a command: its name, the kind of its value, and how it is spelled; an argument is not spelled."""

    name: str
    kind: type
    spelled: str


def _parameters(function):
    found = []
    for name, hint in get_type_hints(function, include_extras=True).items():
        if name != "return":
            kind, info = get_args(hint)[:2]
            kinds = [
                k
                for k in (*get_args(kind), *(get_args(k)[0] for k in get_args(kind) if get_args(k)), kind)
                if k in KINDS
            ]
            spelled = (*(getattr(info, "param_decls", None) or ()), f"--{name.replace('_', '-')}")[0]
            found.append(Parameter(name, kinds[0], "" if isinstance(info, ArgumentInfo) else spelled))
    return found


KINDS = (str, int, float, bool, Path)
PARAMETERS = {
    f"{group}{found.name}": _parameters(found.callback)
    for group, part in (("", app), ("bench ", bench_app))
    for found in part.registered_commands
    if found.callback is not None and found.name not in SKIPPED
}


def _path(rng, folder, name):
    """A path that is there, is not, is of the other kind, or holds a mutated file."""
    kind = rng.randrange(9)
    if kind <= 2:
        return folder / rng.choice(("new", "deep/new", "new.json", "new.html", "new.txt", "new.svg", "new.toml"))
    if kind == 3:
        return mutated_copy(rng, shelf() / "model", folder / f"mutated-{name}-{rng.randrange(10**6)}")
    if kind == 4:
        (folder / "file.html").write_text("")
        return rng.choice((folder / "file.html" / "new.html", folder, folder / "file.html"))
    if kind == 5:
        return rng.choice((Path("/proc/1/x.html"), Path("/proc/nope/x"), Path("a\udcff"), Path("x" * 300), Path()))
    there = ("model", "graph", "cells", "results", "edges.txt", "edges.npy", "plan.toml", "model/weights.safetensors")
    place = folder / f"there-{name}-{rng.randrange(10**6)}"  # a copy: a command may write to it
    source = shelf() / rng.choice(there)
    place.mkdir()
    return Path((shutil.copytree if source.is_dir() else shutil.copy)(source, place / source.name))


def _value(rng, parameter, folder):
    name, kind = parameter.name, parameter.kind
    if kind is Path or name in ("folders", "graph"):
        return str(_path(rng, folder, name))
    if rng.random() < 0.5 and name in VALID:
        return rng.choice(VALID[name])
    if name in WORK and rng.random() < 0.5:
        return rng.choice(("-1", "0", "1", "x"))
    return rng.choice({int: INTEGERS[:9] if name in WORK else INTEGERS, float: FLOATS}.get(kind, WORDS))


def _well(command, parameter, folder):
    """A value that works."""
    name = parameter.name
    if name == "out":
        return str(
            folder
            / f"new{ {'report': '.html', 'audit': '.html', 'certify': '.json', 'figure': '.svg'}.get(command, '') }"
        )
    if name in LITTLE:
        return LITTLE[name]
    if name in ("folder", "folders", "results"):
        there = {"table": "cells", "figure": "results"}.get(command, "model")
        return str(shelf() / there)
    return {
        "data": LARGER if command == "fit" else TINY,
        "file": str(shelf() / "model"),
        "as_": "mine" if command == "bench submit" else "",
        "row": "tiny-gat-vanilla-0",
        "cells": str(shelf() / "cells"),
        "perturbations": str(shelf() / "perturbations") if command == "bench unit-test" else "",
        "graph": str(shelf() / "edges.txt"),
        "plan": str(shelf() / ("plan.toml" if command == "bench submit" else "none.toml")),
        "name": "stars",
        "dataset": "tiny",
    }.get(name, "")


def words(rng, command, folder):
    """The words of a command line: most options as they should be, some as they should not."""
    said, parts = [], PARAMETERS[command]
    wrong = {p.name for p in rng.sample(parts, min(len(parts), rng.choice((0, 1, 1, 2, 3))))}
    for parameter in parts:
        given = _value(rng, parameter, folder) if parameter.name in wrong else _well(command, parameter, folder)
        if not parameter.spelled:
            said += [given] if given else []
        elif parameter.kind is bool:
            said += [parameter.spelled] if parameter.name in wrong else []
        elif parameter.name == "settings" and parameter.name not in wrong:
            said += [parameter.spelled, *SMALL_ATTACK] if command in ("audit", "report") else []
        elif parameter.name in wrong or given:
            said += [parameter.spelled, given]
    return [*command.split(), *said]


class RawAtShellError(Exception):
    """A command ended with a stack trace, or said nothing."""


def obeyed(asked, folder):
    """Run a command; a refusal is an `FGAIError` here, anything else that fails is raised as it is."""
    keep, here = {name: os.environ.pop(name, None) for name in ("FGAI_RAW", "FGAI_DATA")}, os.getcwd()
    os.environ["FGAI_DATA"] = str(folder / "data")
    try:
        os.chdir(folder)
        result = CliRunner().invoke(app, asked, catch_exceptions=True)
    finally:
        os.chdir(here)
        os.environ.update({name: value for name, value in keep.items() if value is not None})
    if result.exit_code == 0:
        return result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if "Traceback" in result.output or not result.output.strip():
        raise RawAtShellError(f"exit code {result.exit_code}: {result.output[-200:]!r}")
    raise FGAIError(result.output)


def _target(command, cost):
    def prepare(rng, folder):
        asked = words(rng, command, folder)
        return lambda: obeyed(asked, folder)

    return Target(f"fgai {command}", prepare, cost=cost)


COSTS = {"train": 30, "fit": 60, "audit": 100, "certify": 40, "report": 150, "figure": 60}
COSTS |= {"bench run": 10, "bench submit": 60, "bench verify": 20, "bench unit-test": 20}
COMMANDS = [_target(name, COSTS.get(name, 5)) for name in PARAMETERS]
