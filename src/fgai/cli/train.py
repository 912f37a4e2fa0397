"""`fgai train` and `fgai fit`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fgai.cli.options import (
    BatchSize,
    DataName,
    Device,
    EngineName,
    Epochs,
    Folder,
    Import,
    MethodSettings,
    Ranks,
    Seed,
    Split,
    UserModel,
    Weights,
    import_modules,
    parse_settings,
)
from fgai.errors import DataError, SettingError
from fgai.files import try_output

if TYPE_CHECKING:
    from fgai.cli.loading import LoadedModel


def train(
    data: DataName,
    out: Annotated[Path, typer.Option(help="The folder to write the model to.")],
    backbone: Annotated[str, typer.Option(help="A backbone of `fgai ls backbones`.")] = "gat",
    method: Annotated[str, typer.Option(help="A method of `fgai ls methods` that trains from scratch.")] = "vanilla",
    settings: MethodSettings = None,
    seed: Seed = 0,
    epochs: Epochs = None,
    batch: BatchSize = 0,
    modules: Import = None,
    device: Device = "",
) -> None:
    """Train a backbone on a dataset, and save it.

    The folder gets weights.safetensors and manifest.json.
    """
    from fgai import saved
    from fgai.backbones import build, shape_for
    from fgai.cli.loading import prepare_graph
    from fgai.datasets import fingerprint
    from fgai.devices import placed, resolve_device
    from fgai.large.fitting import f1_on_test, fit_graph

    try_output(out, folder=True)  # refuse before the training
    import_modules(modules)
    place = resolve_device(device)
    elsewhere = {"seed": "give --seed, which is also that of the split and of the first weights"}
    trainer = _method(method, "default", settings, epochs, seed, elsewhere)
    if getattr(trainer, "needs_pretrained", False):
        raise SettingError(f"{method} starts from a trained model; run `fgai train`, then `fgai fit --method {method}`")
    graph = prepare_graph(backbone, data, seed)
    trainer = _method(method, trainer.preset_for(graph), settings, epochs, seed)
    model = build(backbone, graph, seed=seed).to(place)
    run = fit_graph(trainer, model, placed(graph, place) if batch == 0 else graph, batch=batch)
    f1 = f1_on_test(run.model, graph, call=saved.call_of(trainer))
    saved.save(
        out,
        run.model,
        backbone=backbone,
        **shape_for(graph),
        data=data,
        data_sha256=fingerprint(graph),
        method={"name": method, **asdict(trainer)},
        seed=seed,
        **saved.fit_entries(run, f1),
    )
    typer.echo(f"{backbone} on {data}, seed {seed}: test micro-F1 {f1:.3f}, saved in {out}")


@dataclass(frozen=True)
class _FitJob:
    """The options of `fgai fit`, as each rank gets them."""

    folder: Path | None
    model: str
    weights: Path | None
    data: str
    split: int | None
    out: Path
    method: str
    preset: str
    settings: tuple[str, ...]
    epochs: int | None
    checkpoint: Path | None
    batch: int
    fanout: tuple[int, ...]
    modules: tuple[str, ...]
    device: str


def fit(
    out: Annotated[Path, typer.Option(help="The folder to write the new model to.")],
    folder: Folder = None,
    model: UserModel = "",
    weights: Weights = None,
    data: Annotated[str, typer.Option("--data", help="Another graph: a dataset, or a folder of `fgai convert`.")] = "",
    method: Annotated[str, typer.Option(help="A method of `fgai ls methods`.")] = "fgai",
    preset: Annotated[
        str,
        typer.Option(
            help="A preset of the method; fgai has default, bounded, certified, chosen-links, graphs, links, paper, "
            "released and support."
        ),
    ] = "",
    settings: MethodSettings = None,
    epochs: Epochs = None,
    checkpoint: Annotated[Path | None, typer.Option(help="A file from which a killed run continues.")] = None,
    batch: BatchSize = 0,
    fanout: Annotated[str, typer.Option(help="Neighbours that a batch samples at each hop.")] = "10,10",
    ranks: Ranks = 1,
    engine: EngineName = "local",
    split: Split = None,
    modules: Import = None,
    device: Device = "",
) -> None:
    """Re-train a model with FGAI or another method.

    The training starts from the weights of the model. The saved model is of the same kind.
    """
    from fgai.devices import resolve_device
    from fgai.large.fitting import BATCH
    from fgai.launchers import LAUNCHERS, launch, local

    try_output(out, folder=True)
    if checkpoint is not None:
        try_output(checkpoint)
    import_modules(modules)
    resolve_device(device)
    if LAUNCHERS[engine] is not local or ranks > 1:
        checkpoint, batch = checkpoint or out.with_name(f"{out.name}.run"), batch or BATCH
    job = _FitJob(
        folder=folder,
        model=model,
        weights=weights,
        data=data,
        split=split,
        out=out,
        method=method,
        preset=preset,
        settings=tuple(settings or ()),
        epochs=epochs,
        checkpoint=checkpoint,
        batch=batch,
        fanout=_parse_fanout(fanout),
        modules=tuple(modules or ()),
        device=device,
    )
    loaded, _ = _load_for_fit(job)  # raises here once, and not in each rank
    if ranks > 1:
        loaded.refuse_ranks(data, split)
    if summary := launch(_run_fit, job, ranks=ranks, engine=engine, folder=out.parent):
        typer.echo(summary)


def _load_for_fit(job: _FitJob) -> tuple[LoadedModel, Any]:
    """The model and the method of a job, if the result can be saved."""
    from fgai import saved
    from fgai.cli.loading import load_model

    loaded = load_model(job.folder, job.model, job.weights)
    method = _method(job.method, job.preset or "default", job.settings, job.epochs, loaded.split(job.split))
    if loaded.saved is not None and loaded.saved.has_preprocessing:
        raise DataError(f"{loaded.name} was trained with {loaded.title}, which preprocesses its input; give another")
    if loaded.saved is None and saved.has_preprocessing(method):
        raise SettingError(
            f"{job.method} preprocesses the input of a model, which your own weights file does not record; "
            "use it from Python, or take another method"
        )
    return loaded, method


def _run_fit(job: _FitJob) -> Callable[[], str]:
    """Fit on each rank; the returned function runs after the process group has ended, and saves on the first rank.

    It returns a line about the result, which is empty on other ranks.
    """
    from torch_geometric.data import Data

    from fgai import saved
    from fgai.datasets import fingerprint
    from fgai.devices import device_of_rank, resolve_device
    from fgai.distributed import rank
    from fgai.large.fitting import dataset_name, f1_on_test, fit_graph

    import_modules(job.modules)
    loaded, method = _load_for_fit(job)
    seed, place = loaded.split(job.split), device_of_rank(resolve_device(job.device))
    data, graph = loaded.data_name(job.data), loaded.graph_or_store(job.data, job.split)
    preset = job.preset or method.preset_for(graph)
    method = _method(job.method, preset, job.settings, job.epochs, seed)
    run = fit_graph(
        method, loaded.model.to(place), graph, batch=job.batch, fanout=job.fanout, checkpoint=job.checkpoint
    )
    is_first = rank() == 0

    def save() -> str:
        if not is_first:
            return ""
        f1 = f1_on_test(run.model, graph, call=saved.call_of(method))
        entries = {
            "data": dataset_name(graph, data, seed),
            "data_sha256": fingerprint(graph) if isinstance(graph, Data) else "",
            "method": {"name": job.method, "preset": preset, **asdict(method)},
            "seed": seed,
            **saved.fit_entries(run, f1),
        }
        if loaded.saved is None:
            saved.save_user_model(job.out, run.model, source=loaded.name, **entries)
        else:
            saved.save(job.out, run.model, **loaded.saved.shape, **entries)
        return _summary(loaded, job, data, f1)

    return save


def _summary(loaded: LoadedModel, job: _FitJob, data: str, f1: float) -> str:
    """One line about a finished fit."""
    name = loaded.name if loaded.saved is None else loaded.saved.backbone
    before = None if loaded.saved is None else loaded.saved.manifest.get("metrics", {}).get("f1")
    score = "" if math.isnan(f1) else f"test micro-F1 {f1:.3f}{'' if before is None else f' ({before:.3f} before)'}, "
    return f"{name} on {data}, {job.method}: {score}saved in {job.out}"


def _method(
    name: str,
    preset: str,
    settings: Any,
    epochs: int | None,
    seed: int,
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """The method that the options describe; `elsewhere` as in `parse_settings`."""
    from fgai.methods import METHODS

    given = {} if epochs is None else {"epochs": epochs}
    elsewhere = {**elsewhere, **{field: f"--{field} {value} is given, too; omit one" for field, value in given.items()}}
    changed = parse_settings(METHODS[name], name, settings, elsewhere) | given
    return METHODS[name].preset(preset, **{"seed": seed, **changed})


def _parse_fanout(fanout: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in fanout.split(","))
    except ValueError as error:
        raise SettingError(f"--fanout {fanout} is not a list of numbers; give one per hop, such as 10,10") from error
