"""`fgai certify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fgai.cli.options import (
    Against,
    AsJson,
    DataName,
    Device,
    EngineName,
    Fixed,
    Folder,
    Groups,
    NeighbourhoodBatch,
    Ranks,
    Split,
    UserModel,
    Weights,
    parse_against,
)
from fgai.errors import SettingError
from fgai.files import try_output
from fgai.settings import check_choice, check_numbers, check_whole

if TYPE_CHECKING:
    from torch import nn

    from fgai.certificates.perturbation_sets import PerturbationSet

NORMS = ("l1", "l2", "linf")


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
    split: Split = None,
    batch: NeighbourhoodBatch = 0,
    ranks: Ranks = 1,
    engine: EngineName = "local",
    out: Annotated[Path | None, typer.Option(help="Also save the certificate: .json or .txt.")] = None,
    device: Device = "",
    as_json: AsJson = False,
) -> None:
    """Prove what can be proved about explanations and predictions.

    Without --against, the four conditions are proved for each node, in attention space. With it, the command prints
    the share of the items whose class the attacker cannot change, by budget, with the baselines. A graph on disk, and
    several ranks, are certified in batches; the certificate is the same.
    """
    from fgai import saved
    from fgai.certificates import certify as run_certify
    from fgai.certificates.proof import file_kind
    from fgai.cli.batches import BatchJob, certify_rank, in_batches
    from fgai.cli.loading import load_model
    from fgai.devices import placed, resolve_device

    check_ball(norm, radius)
    attacker = attacker_of(against, settings, groups, fixed)
    place = resolve_device(device)
    if out is not None:
        file_kind(out)  # refuse before the proof
        try_output(out)
    loaded = load_model(folder, model, weights)
    asked: dict[str, Any] = {"k": k, "against": attacker, "radius": radius, "norm": norm}
    if in_batches(data, batch, ranks, engine):
        job = BatchJob(folder, model, weights, data, split, batch, device, out, as_json)
        job.run(certify_rank, vanilla, groups, fixed, asked, ranks=ranks, engine=engine)
        return
    graph = placed(loaded.graph(data, split), place)
    before = None if vanilla is None else saved.load(vanilla).model.to(place)
    net = voted(loaded.model.to(place), groups, fixed)
    certificate = run_certify(net, graph, vanilla=before, call=loaded.call, **asked)
    if out is not None:
        certificate.save(out)
    typer.echo(certificate.json() if as_json else certificate.text())


def attacker_of(
    against: str, settings: list[str] | None, groups: int, fixed: list[str] | None
) -> PerturbationSet | None:
    """The attacker that the options describe; None without `--against`."""
    check_whole(0, groups=groups)
    if fixed and not groups:
        raise SettingError("--fixed belongs to votes; give --groups, such as 11")
    if not against and (settings or groups):
        raise SettingError("--set and --groups belong to an attacker; give --against, such as links:5")
    return parse_against(against, settings) if against else None


def voted(model: nn.Module, groups: int, fixed: list[str] | None) -> nn.Module:
    """The votes of a model, or the model itself for 0 groups."""
    from fgai.certificates import Voted

    return Voted(model, groups, fixed=tuple(fixed or ())) if groups else model


def check_ball(norm: str, radius: float) -> None:
    """Refuse a norm or a radius that no certificate has."""
    check_choice(NORMS, norm=norm)
    check_numbers(0, radius=radius)
