"""`fgai audit` and `fgai report`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fgai.cli.certify import attacker_of, check_ball, voted
from fgai.cli.options import (
    SAMPLE,
    AdversaryName,
    AdversarySettings,
    Against,
    AsJson,
    AttackSeeds,
    DataName,
    Device,
    EngineName,
    ExplanationName,
    Fixed,
    Folder,
    Gain,
    Groups,
    Import,
    NeighbourhoodBatch,
    Ranks,
    Require,
    Sample,
    Split,
    ThreatName,
    UserModel,
    Weights,
    import_modules,
    parse_attack,
)
from fgai.errors import DataError, SettingError
from fgai.files import checked_suffix, try_output

if TYPE_CHECKING:
    from torch_geometric.data import Data

    from fgai.cli.loading import LoadedModel


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
    sample: Sample = SAMPLE,
    split: Split = None,
    batch: NeighbourhoodBatch = 0,
    ranks: Ranks = 1,
    engine: EngineName = "local",
    out: Annotated[Path | None, typer.Option(help="Also save the report: .html, .json, .md or .txt.")] = None,
    modules: Import = None,
    device: Device = "",
    as_json: AsJson = False,
    require: Require = None,
) -> None:
    """Attack a model, and report whether its attention can be trusted.

    A graph on disk, and several ranks, are audited in batches: metrics of the last layer's attention, without grades.
    """
    from fgai import report
    from fgai.auditing import audit as run_audit
    from fgai.auditing.formats import writer_for
    from fgai.cli.batches import BatchJob, audit_rank, in_batches
    from fgai.cli.loading import load_model
    from fgai.devices import placed, resolve_device
    from fgai.grades import check_required, failures

    required = [] if require is None else [name.strip() for name in require.split(",")]
    if required:
        check_required(required)  # refuse before the attack
    if out is not None:
        writer_for(out)
        try_output(out)
    import_modules(modules)
    place = resolve_device(device)
    if adversary or threat:
        parse_attack(adversary, settings, threat, gain)  # refuse before the graph is read
    loaded = load_model(folder, model, weights)
    if in_batches(data, batch, ranks, engine):
        _check_batches(require, out, explanation, sample)
        job = BatchJob(folder, model, weights, data, split, batch, device, out, as_json, tuple(modules or ()))
        job.run(audit_rank, adversary, settings, threat, gain, seeds, ranks=ranks, engine=engine)
        return
    graph = placed(loaded.graph(data, split), place)
    attack = parse_attack(adversary, settings, threat, gain, graph)
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
    sample: Sample = SAMPLE,
    radius: Annotated[float, typer.Option(help="Radius of the certificate, in the l1 norm of attention.")] = 0.001,
    against: Against = "",
    groups: Groups = 0,
    fixed: Fixed = None,
    node: Annotated[list[int] | None, typer.Option(help="A node whose neighbourhood or graph must be shown.")] = None,
    data: DataName = "",
    split: Split = None,
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

    check_ball("l1", radius)
    attacker = attacker_of(against, None, groups, fixed)
    place = resolve_device(device)
    checked_suffix(out, (".html",), "a report of models side by side")
    try_output(out)
    import_modules(modules)
    if adversary or threat:
        parse_attack(adversary, settings, threat, gain)  # refuse before the graph is read
    models = {one.title: one for one in _load_models(folders or [], model, weights)}
    graph, about = _common_graph(models, data, split)
    attack = parse_attack(adversary, settings, threat, gain, graph)
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
        name: run_certify(voted(net, groups, fixed), graph, against=attacker, call=calls[name])
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


def _check_batches(require: str | None, out: Path | None, explanation: str, sample: int) -> None:
    """Refuse what an audit in batches does not have."""
    if require:
        raise SettingError(f"--require {require}: an audit in batches has no grades; omit it, or audit a whole graph")
    if explanation not in ("tree", "last"):  # the default of the command, and what batches have
        raise SettingError(f"--explanation {explanation}: an audit in batches has the attention of the last layer only")
    if sample != SAMPLE:
        raise SettingError(f"--sample {sample}: an audit in batches has no test of faithfulness; omit it")
    if out is not None:
        checked_suffix(out, (".json", ".txt"), "an audit in batches")


def _load_models(folders: list[Path], model: str, weights: Path | None) -> list[LoadedModel]:
    """The models of a report, which must have different titles."""
    from fgai.cli.loading import load_saved_model, load_user_model

    if weights is not None and not model:
        raise SettingError(f"--weights {weights} are those of --model module:function; a folder has its own")
    loaded = [load_saved_model(folder) for folder in folders]
    loaded += [load_user_model(model, weights)] if model else []
    if not loaded:
        raise DataError("which models? Give folders written by `fgai train`, or --model module:function")
    titles = [one.title for one in loaded]
    if len({*titles}) < len(titles):
        raise DataError(f"these models are {', '.join(titles)}; a report compares models that differ")
    return loaded


def _common_graph(models: dict[str, LoadedModel], data: str, split: int | None) -> tuple[Data, dict[str, str]]:
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
    for one in trained:
        one.note_other_graph(name, graph)
    return graph, {"split seed": str(seed), **_provenance(name, graph)}


def _weight_digests(models: dict[str, LoadedModel]) -> dict[str, str]:
    digests = {name: one.saved.manifest["weights_sha256"] for name, one in models.items() if one.saved is not None}
    return {f"weights of {name}": str(digest) for name, digest in digests.items()}


def _provenance(name: str, graph: Data) -> dict[str, str]:
    """The data and the command of a report."""
    from fgai.datasets import fingerprint

    command = shlex.join(["fgai", *sys.argv[1:]])
    return {"data": name, "data sha256": fingerprint(graph), "command": command}
