"""`fgai audit`, `fgai certify` and `fgai report`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fgai.cli.options import (
    AdversaryName,
    AdversarySettings,
    Against,
    AsJson,
    AttackSeeds,
    DataName,
    Device,
    ExplanationName,
    Fixed,
    Folder,
    Gain,
    Groups,
    Import,
    Require,
    Sample,
    Split,
    ThreatName,
    UserModel,
    Weights,
    import_modules,
    parse_against,
    parse_settings,
)
from fgai.errors import DataError, SettingError
from fgai.files import checked_suffix, try_output
from fgai.settings import check_choice, check_numbers, check_whole

if TYPE_CHECKING:
    from torch import nn
    from torch_geometric.data import Data

    from fgai.certificates.perturbation_sets import PerturbationSet
    from fgai.cli.loading import LoadedModel

NORMS = ("l1", "l2", "linf")


def audit(
    folder: Folder = None,
    model: UserModel = "",
    weights: Weights = None,
    data: DataName = "",
    adversary: AdversaryName = "",
    settings: AdversarySettings = None,
    threat: ThreatName = "",
    explanation: ExplanationName = "tree",
    gain: Gain = "",
    seeds: AttackSeeds = 5,
    sample: Sample = 500,
    split: Split = 0,
    out: Annotated[Path | None, typer.Option(help="Also save the report: .html, .json, .md or .txt.")] = None,
    modules: Import = None,
    device: Device = "",
    as_json: AsJson = False,
    require: Require = "",
) -> None:
    """Attack a model, and report whether its attention can be trusted."""
    from fgai import report
    from fgai.auditing import audit as run_audit
    from fgai.auditing.formats import writer_for
    from fgai.cli.loading import load_model
    from fgai.devices import placed, resolve_device
    from fgai.grades import check_required, failures

    required = [name.strip() for name in require.split(",")] if require else []
    if required:
        check_required(required)  # refuse before the attack
    if out is not None:
        writer_for(out)
        try_output(out)
    import_modules(modules)
    place = resolve_device(device)
    if adversary or threat:
        _attack(adversary, settings, threat, gain)  # refuse before the graph is read
    loaded = load_model(folder, model, weights)
    graph = placed(loaded.graph(data, split), place)
    attack = _attack(adversary, settings, threat, gain, graph)
    result = run_audit(
        loaded.model.to(place),
        graph,
        attack,
        explanation=explanation,
        gain=gain or None,
        seeds=seeds,
        sample=sample,
        call=loaded.call,
        name=loaded.name,
    )
    if out is not None and out.suffix == ".html":
        report.save(out, result, about=_provenance(loaded.data_name(data), graph))
    elif out is not None:
        result.save(out)
    typer.echo(result.json() if as_json else result.text())
    if missing := failures(result.grades, required) if required else []:
        typer.echo("\n".join(["fgai: the audit does not pass:", *(f"- {line}" for line in missing)]), err=True)
        raise typer.Exit(1)


def certify(
    folder: Folder = None,
    vanilla: Annotated[Path | None, typer.Option(help="The folder of the model before `fgai fit`.")] = None,
    model: UserModel = "",
    weights: Weights = None,
    data: DataName = "",
    k: Annotated[int, typer.Option(help="Number of neighbours in an explanation.")] = 10,
    radius: Annotated[float, typer.Option(help="Size of the attention perturbation, per node.")] = 0.05,
    norm: Annotated[str, typer.Option(help="l1, l2 or linf.")] = "l1",
    against: Against = "",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the attacker, such as box=0,1; repeat for more.")
    ] = None,
    groups: Groups = 0,
    fixed: Fixed = None,
    split: Split = 0,
    out: Annotated[Path | None, typer.Option(help="Also save the certificate: .json or .txt.")] = None,
    device: Device = "",
    as_json: AsJson = False,
) -> None:
    """Prove what can be proved about explanations and predictions.

    Without --against, the four conditions are proved for each node, in attention space. With it, the command prints
    the share of the items whose class the attacker cannot change, by budget, with the baselines.
    """
    from fgai import saved
    from fgai.certificates import certify as run_certify
    from fgai.certificates.proof import file_kind
    from fgai.cli.loading import load_model
    from fgai.devices import placed, resolve_device

    _check_ball(norm, radius)
    attacker = _attacker(against, settings, groups)
    place = resolve_device(device)
    if out is not None:
        file_kind(out)  # refuse before the proof
        try_output(out)
    loaded = load_model(folder, model, weights)
    graph = placed(loaded.graph(data, split), place)
    before = None if vanilla is None else saved.load(vanilla).model.to(place)
    net, ball = _voted(loaded.model.to(place), groups, fixed), {"radius": radius, "norm": norm}
    asked: dict[str, Any] = {"vanilla": before, "k": k, "call": loaded.call, "against": attacker, **ball}
    certificate = run_certify(net, graph, **asked)
    if out is not None:
        certificate.save(out)
    typer.echo(certificate.json() if as_json else certificate.text())


def write_report(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Folders of models of one graph, the vanilla model first.")
    ] = None,
    model: UserModel = "",
    weights: Weights = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    adversary: AdversaryName = "",
    settings: AdversarySettings = None,
    threat: ThreatName = "",
    explanation: ExplanationName = "tree",
    gain: Gain = "",
    seeds: AttackSeeds = 5,
    sample: Sample = 500,
    radius: Annotated[float, typer.Option(help="Radius of the certificate, in the l1 norm of attention.")] = 0.001,
    against: Against = "",
    groups: Groups = 0,
    fixed: Fixed = None,
    node: Annotated[list[int] | None, typer.Option(help="A node whose neighbourhood or graph must be shown.")] = None,
    data: DataName = "",
    split: Split = 0,
    modules: Import = None,
    device: Device = "",
    as_json: AsJson = False,
) -> None:
    """Audit models side by side, and write an HTML page."""
    from torch_geometric.data import HeteroData

    from fgai import report
    from fgai.auditing import compare
    from fgai.certificates import certify as run_certify
    from fgai.devices import placed, resolve_device
    from fgai.metrics.explanation import TOP

    _check_ball("l1", radius)
    attacker = _attacker(against, None, groups)
    place = resolve_device(device)
    checked_suffix(out, (".html",), "a report of models side by side")
    try_output(out)
    import_modules(modules)
    if adversary or threat:
        _attack(adversary, settings, threat, gain)  # refuse before the graph is read
    models = {one.title: one for one in _load_models(folders or [], model, weights)}
    graph, about = _common_graph(models, data, split)
    attack = _attack(adversary, settings, threat, gain, graph)
    graph, nets = placed(graph, place), {name: one.model.to(place) for name, one in models.items()}
    calls = {name: one.call for name, one in models.items()}
    comparison = compare(
        nets,
        graph,
        attack,
        explanation=explanation,
        gain=gain or None,
        seeds=seeds,
        sample=sample,
        call=calls,
        show_nodes=node or (),
    )
    certificates = {
        name: run_certify(net, graph, k=TOP, radius=radius, call=calls[name])
        for name, net in nets.items()
        if not isinstance(graph, HeteroData)  # `certify` without `against` refuses typed graphs
    }
    proofs = {
        name: run_certify(_voted(net, groups, fixed), graph, against=attacker, call=calls[name])
        for name, net in nets.items()
        if attacker is not None
    }
    report.save(
        out,
        comparison,
        certificates=certificates,
        proofs=proofs,
        histories={name: one.history for name, one in models.items()},
        about={**about, **_weight_digests(models)},
    )
    typer.echo(comparison.json() if as_json else comparison.markdown())
    typer.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB", err=as_json)


def _attack(adversary: str, settings: list[str] | None, threat: str, gain: str, graph: Data | None = None) -> Any:
    """The adversary or the threat model that the options describe; without either, the adversary for the graph."""
    from fgai.adversaries import ADVERSARIES, THREATS, default_injection

    if threat:
        if adversary or settings or gain:
            raise SettingError(
                f"--threat {threat} has its own adversary, settings and gain; give --threat alone, or omit it"
            )
        return THREATS[threat]
    name = adversary or default_injection(graph)
    return ADVERSARIES[name](**parse_settings(ADVERSARIES[name], name, settings))


def _attacker(against: str, settings: list[str] | None, groups: int) -> PerturbationSet | None:
    """The attacker that the options describe; None without `--against`."""
    check_whole(0, groups=groups)
    if not against and (settings or groups):
        raise SettingError("--set and --groups belong to an attacker; give --against, such as links:5")
    return parse_against(against, settings) if against else None


def _voted(model: nn.Module, groups: int, fixed: list[str] | None) -> nn.Module:
    """The votes of a model, or the model itself for 0 groups."""
    from fgai.certificates import Voted

    return Voted(model, groups, fixed=tuple(fixed or ())) if groups else model


def _load_models(folders: list[Path], model: str, weights: Path | None) -> list[LoadedModel]:
    """The models of a report, which must have different titles."""
    from fgai.cli.loading import load_saved_model, load_user_model

    loaded = [load_saved_model(folder) for folder in folders]
    loaded += [load_user_model(model, weights)] if model else []
    if not loaded:
        raise DataError("which models? Give folders written by `fgai train`, or --model module:function")
    titles = [one.title for one in loaded]
    if len({*titles}) < len(titles):
        raise DataError(f"these models are {', '.join(titles)}; a report compares models that differ")
    return loaded


def _common_graph(models: dict[str, LoadedModel], data: str, split: int) -> tuple[Data, dict[str, str]]:
    """The one graph of the models of a report, with the inputs of all backbones, and its provenance.

    A user's own model takes the graph and the split of the saved ones.
    """
    from fgai.backbones import BACKBONES
    from fgai.cli.loading import load_graph
    from fgai.datasets import compact

    trained = [one for one in models.values() if one.saved is not None] or list(models.values())
    origins = {(one.data_name(data), one.split(split)) for one in trained}
    if len(origins) > 1:
        raise DataError(
            f"{', '.join(models)} were trained on {sorted(origins)}; a report compares models of one dataset and split"
        )
    name, seed = origins.pop()
    graph = load_graph(name, seed)
    for backbone in dict.fromkeys(one.saved.backbone for one in trained if one.saved is not None):
        graph = BACKBONES[backbone].prepare(compact(graph))
    return graph, {"split seed": str(seed), **_provenance(name, graph)}


def _weight_digests(models: dict[str, LoadedModel]) -> dict[str, str]:
    digests = {name: one.saved.manifest["weights_sha256"] for name, one in models.items() if one.saved is not None}
    return {f"weights of {name}": str(digest) for name, digest in digests.items()}


def _provenance(name: str, graph: Data) -> dict[str, str]:
    """The data and the command of a report."""
    from fgai.datasets import fingerprint

    command = shlex.join(["fgai", *sys.argv[1:]])
    return {"data": name, "data sha256": fingerprint(graph), "command": command}


def _check_ball(norm: str, radius: float) -> None:
    check_choice(NORMS, norm=norm)
    check_numbers(0, radius=radius)
