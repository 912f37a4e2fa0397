"""Options that several commands share, and the parsing of `key=value` settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from fgai.errors import DataError, SettingError
from fgai.records import checked_value
from fgai.registry import import_from_cwd

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fgai.certificates.perturbation_sets import PerturbationSet

DataName = Annotated[
    str,
    typer.Option(
        "--data", help="A dataset of `fgai ls datasets`, or your own: module:function. Default: the graph of the model."
    ),
]
Folder = Annotated[Path | None, typer.Argument(help="A folder written by `fgai train` or `fgai fit`.")]
UserModel = Annotated[str, typer.Option("--model", help="Your own model: module:function that returns it.")]
Weights = Annotated[Path | None, typer.Option(help="The weights of your own model, a safetensors file.")]
Seed = Annotated[int, typer.Option(help="Seed of the split, the initial weights and the dropout.")]
Split = Annotated[
    int | None, typer.Option(help="Seed of the split, for a model without a manifest; 0 if it is not given.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, ...; the GPU if there is one, else cpu.")]
BatchSize = Annotated[
    int,
    typer.Option(help="Seed nodes per batch, or graphs of a batch of graphs, per process; 0 trains on all at once."),
]
NeighbourhoodBatch = Annotated[
    int,
    typer.Option(
        "--batch", help="Nodes per batch of full neighbourhoods; 0 takes the graph as a whole, or 256 on disk or ranks."
    ),
]
Ranks = Annotated[int, typer.Option(help="Number of processes; crashed ones restart.")]
EngineName = Annotated[str, typer.Option("--engine", help="What starts the ranks: local, torchrun or ray.")]
Epochs = Annotated[int | None, typer.Option(help="Maximum number of epochs; the method's default if not given.")]
AdversaryName = Annotated[
    str,
    typer.Option(
        "--adversary",
        help="An adversary of `fgai ls adversaries`. Default: node-injection; for graphs, graph-injection; for a "
        "HeteroData, typed-injection.",
    ),
]
ThreatName = Annotated[
    str,
    typer.Option("--threat", help="A threat model of `fgai ls threats`, in place of --adversary, --set and --gain."),
]
ExplanationName = Annotated[
    str, typer.Option("--explanation", help="tree, last, first, layer:NAME or leave-one-out, see `fgai ls`.")
]
Gain = Annotated[
    str, typer.Option(help="What the attack maximises: a gain of `fgai ls gains`; cross-entropy by default.")
]
AttackSeeds = Annotated[int, typer.Option("--seeds", help="Number of attacks, with the seeds 0, 1, ...")]
Sample = Annotated[int, typer.Option(help="Number of nodes or graphs in the test of faithfulness.")]
SAMPLE = 500
AdversarySettings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the adversary, such as nodes=20; repeat for more.")
]
MethodSettings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the method, such as lr=0.005; repeat for more.")
]
Require = Annotated[
    str | None, typer.Option(help="End with exit code 1 unless these grades hold: used, faithful, stable, with commas.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print JSON to the standard output, and everything else to the standard error.")
]
Import = Annotated[list[str] | None, typer.Option("--import", help="A module that registers your own entries.")]

Against = Annotated[
    str,
    typer.Option(
        help="An attacker and its budget: links:5, deletions:2, injection:2, features:0.01 or attention:0.001."
    ),
]
Groups = Annotated[int, typer.Option(help="Number of graphs that vote, for --against links; 0 for no votes.")]
Fixed = Annotated[
    list[str] | None, typer.Option(help="An input that does not change with the links, for votes, such as pe.")
]


def import_modules(modules: Sequence[str] | None) -> None:
    """Import modules, installed or in the current folder, so that the entries they register are known."""
    for module in modules or ():
        import_from_cwd(module)


def parse_pairs(option: str, pairs: Sequence[str] | None, example: str) -> dict[str, str]:
    """Split `field=value` strings.

    >>> parse_pairs("--only", ["dataset=cora", "seed=0+1"], "dataset=cora")
    {'dataset': 'cora', 'seed': '0+1'}
    """
    pairs = pairs or ()
    if wrong := [pair for pair in pairs if "=" not in pair]:
        raise SettingError(f"{option} {wrong[0]} has no value; give field=value, such as {example}")
    values = dict(pair.split("=", 1) for pair in pairs)
    if len(values) < len(pairs):
        raise SettingError(f"{option} names a field twice in {' '.join(pairs)}; give each once, such as {example}")
    return values


def parse_settings(
    kind: type[Any], name: str, pairs: Sequence[str] | None, elsewhere: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Parse `--set field=value` strings into arguments of a dataclass, and check them against its annotations.

    Values are JSON or plain words; `20,40` is a list. Fields in `elsewhere` are refused with what to do instead.

    >>> from fgai.adversaries import AttackEnsemble, NodeInjection
    >>> parse_settings(NodeInjection, "node-injection", ["nodes=5", "step=0.2", "box=-1,1"])
    {'nodes': 5, 'step': 0.2, 'box': (-1.0, 1.0)}
    >>> parse_settings(AttackEnsemble, "attack-ensemble", ["edges=20,40"])
    {'edges': (20, 40)}
    >>> parse_settings(NodeInjection, "node-injection", ["nodes=many"])
    Traceback (most recent call last):
    fgai.errors.SettingError: --set nodes=many: it is 'many', but int is required; `nodes` of node-injection is int
    """
    annotations, known = get_type_hints(kind), [field.name for field in fields(kind) if field.init]
    settings = {}
    for field, text in parse_pairs("--set", pairs, "nodes=20").items():
        if field not in known:
            raise SettingError(f"--set {field}={text}: {name} has no setting {field!r}; it has {', '.join(known)}")
        written = f"--set {field}={text}"[:200]
        if field in elsewhere:
            raise SettingError(f"{written}: {elsewhere[field]}")
        remedy = f"`{field}` of {name} is {_type_name(annotations[field])}"
        try:
            settings[field] = checked_value(annotations[field], _parse_value(text), written, remedy)
        except DataError as error:
            raise SettingError(str(error)) from error
        except OverflowError as error:
            raise SettingError(f"{written}: the number is too large; {remedy}") from error
    return settings


def parse_against(text: str, pairs: Sequence[str] | None = None) -> PerturbationSet:
    """Parse `name:budget` and `--set field=value` strings into a perturbation set.

    >>> parse_against("injection:2", ["box=0,1"])
    Injection(nodes=2, box=(0.0, 1.0), neighbours=0, ones=None)
    >>> parse_against("links")
    Traceback (most recent call last):
    fgai.errors.SettingError: --against links; give an attacker and its budget, such as links:5; there is links, ...
    """
    from fgai.certificates.perturbation_sets import PERTURBATION_SETS

    name, _, budget = text.partition(":")
    if name not in PERTURBATION_SETS or not budget:
        known = ", ".join(PERTURBATION_SETS)
        raise SettingError(f"--against {text[:50]}; give an attacker and its budget, such as links:5; there is {known}")
    kind = PERTURBATION_SETS[name]
    return kind(**parse_settings(kind, name, [f"{fields(kind)[0].name}={budget}", *(pairs or ())]))


def parse_attack(
    adversary: str, settings: Sequence[str] | None, threat: str, gain: str, graph: Data | None = None
) -> Any:
    """The adversary or the threat model that the options describe; without either, the adversary for the graph."""
    from fgai.adversaries import ADVERSARIES, THREATS, default_injection

    if threat:
        if adversary or settings or gain:
            raise SettingError(
                f"--threat {threat} has its own adversary, settings and gain; give --threat alone, or omit it"
            )
        return THREATS[threat]
    name = adversary or default_injection(graph)
    elsewhere = {"seed": "an audit attacks with the seeds 0, 1, ...; give their number, --seeds"}
    return ADVERSARIES[name](**parse_settings(ADVERSARIES[name], name, settings, elsewhere))


def _parse_value(text: str) -> Any:
    """The value of a JSON literal or a comma-separated list of them, otherwise the text itself."""
    for candidate in (text, f"[{text}]" if "," in text else text):
        try:
            return json.loads(candidate)
        except (ValueError, RecursionError):
            continue
    return text


def _type_name(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation).replace("typing.", "")
