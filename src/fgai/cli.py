"""The command line: `fgai ls`, `fgai train`, `fgai audit`, `fgai certify`, `fgai report`, ..."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, get_args

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai import datasets, plots, report, saved
from fgai.adversaries import ADVERSARIES, GAINS, AttackEnsemble, NodeInjection
from fgai.auditing import audit as run_audit
from fgai.auditing import compare
from fgai.auditing.record import writer_for
from fgai.backbones import BACKBONES, build, shape_for
from fgai.bench.figures import FIGURES, figure
from fgai.bench.plan import Plan, plans
from fgai.bench.results import CellStore as Cells
from fgai.bench.run import run as run_plan
from fgai.bench.tables import FORMATS, table_of
from fgai.bench.tracking import tracker
from fgai.certificates import certify as run_certify
from fgai.certificates.explanation import Norm
from fgai.certificates.record import kind_of
from fgai.datasets import DATASETS
from fgai.distributed import launch, rank
from fgai.errors import DataError, FGAIError, SettingError
from fgai.explanations import EXPLANATIONS
from fgai.files import checked_suffix
from fgai.graph import require
from fgai.large import DiskGraph, Loader, convert_edge_list, full_neighbour_loader, layerwise
from fgai.large import convert as convert_graph
from fgai.large.store import MANIFEST
from fgai.methods import FGAI, METHODS, Batches, Epoch, Fit, Vanilla
from fgai.metrics import METRICS, micro_f1
from fgai.metrics.explanation import TOP
from fgai.reading import call_by_signature
from fgai.registry import import_from_cwd

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Faithful, stable attention explanations for graph neural networks.",
)
REGISTRIES = (DATASETS, BACKBONES, METHODS, ADVERSARIES, GAINS, METRICS, EXPLANATIONS)
DataName = Annotated[str, typer.Option("--data", help="A dataset (`fgai ls`), or your own: module:function.")]
Seed = Annotated[int, typer.Option(help="Decides the split, the initial weights and the dropout.")]
Folder = Annotated[Path | None, typer.Argument(help="A folder that `fgai train` wrote.")]
OwnModel = Annotated[str, typer.Option(help="Your own model instead: module:function, which returns it.")]
Weights = Annotated[Path | None, typer.Option(help="Its weights, a safetensors file.")]
Split = Annotated[int, typer.Option(help="The seed of the split that the model was trained on, if it does not say.")]
NORMS = get_args(Norm)
SHAPE = ("backbone", "features", "classes")  # what a saved model is built from


@contextmanager
def _errors_in_words() -> Iterator[None]:
    """What goes wrong on purpose is said in a sentence, without a stack trace."""
    try:
        yield
    except FGAIError as error:
        Console(stderr=True).print(f"[red]fgai:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error


@app.command("ls")
def ls() -> None:
    """List every registered dataset, backbone, method, adversary, gain and metric."""
    table = Table("kind", "name", "what it is", box=None)
    for registry in REGISTRIES:
        for name in registry:
            table.add_row(registry.kind, name, escape(registry.about(name)))
    Console().print(table)


@app.command()
def train(
    data: DataName,
    out: Annotated[Path, typer.Option(help="The folder to write the model to.")],
    backbone: Annotated[str, typer.Option(help=f"{', '.join(BACKBONES)}.")] = "gat",
    seed: Seed = 0,
    epochs: Annotated[int, typer.Option(help="The most epochs to train.")] = Vanilla.epochs,
) -> None:
    """Train a backbone on a dataset and save it: weights.safetensors and manifest.json."""
    with _errors_in_words():
        graph = _prepared(backbone, data, seed)
        method = Vanilla(epochs=epochs, seed=seed)
        fit = method.fit(build(backbone, graph, seed=seed), graph)
        shape = {"backbone": backbone, **shape_for(graph)}
        f1 = _save(out, fit, graph, shape, data, {"name": "vanilla", **asdict(method)}, seed)
    typer.echo(f"{backbone} on {data}, seed {seed}: test micro-F1 {f1:.3f}, saved in {out}")


@app.command()
def fit(
    folder: Annotated[Path, typer.Argument(help="A folder that `fgai train` wrote.")],
    out: Annotated[Path, typer.Option(help="The folder to write the faithful model to.")],
    preset: Annotated[str, typer.Option(help="default, links, paper or released.")] = "default",
    epochs: Annotated[int, typer.Option(help="Epochs of re-training.")] = FGAI.epochs,
    checkpoint: Annotated[Path | None, typer.Option(help="A file from which a run that was killed goes on.")] = None,
    batch: Annotated[int, typer.Option(help="Seeds per batch and rank; 0 is the whole graph at once.")] = 0,
    fanout: Annotated[str, typer.Option(help="Neighbours that a batch keeps at each hop.")] = "10,10",
    ranks: Annotated[int, typer.Option(help="Processes that learn together; a dead one starts again.")] = 1,
    data: Annotated[str, typer.Option("--data", help="Another graph: a dataset, or a folder of `fgai convert`.")] = "",
) -> None:
    """Make a trained model faithful: FGAI, from its weights, saved as a model of the same kind."""
    with _errors_in_words():
        saved.load(folder)  # what is wrong with it is said once, not by every rank
        if ranks > 1:
            file = checkpoint or out.with_name(f"{out.name}.run")
            launch(_fit, folder, out, preset, epochs, file, batch or 1_024, fanout, data, ranks=ranks)
        else:
            _fit(folder, out, preset, epochs, checkpoint, batch, fanout, data)()


def _fit(
    folder: Path, out: Path, preset: str, epochs: int, checkpoint: Path | None, batch: int, fanout: str, other: str
) -> Callable[[], None]:
    """What each rank does; what is returned is left to do when the ranks have parted: the first one saves."""
    found = saved.load(folder)
    backbone, seed = found.manifest["backbone"], int(found.manifest.get("seed", 0))
    data = other or _named(found)
    graph = DiskGraph(data) if (Path(data) / MANIFEST).exists() else _prepared(backbone, data, seed)
    method, hops = FGAI.preset(preset, epochs=epochs, seed=seed), _numbers(fanout)
    if batch or isinstance(graph, DiskGraph):
        check = full_neighbour_loader(graph, len(hops), seed_nodes=_attribute(graph, "val_mask"))
        done = method.fit(
            found.model, Batches(Loader(graph, hops, batch=batch or 1_024, seed=seed), check), checkpoint=checkpoint
        )
    else:
        done = method.fit(found.model, graph, checkpoint=checkpoint)
    first = rank() == 0

    def save() -> None:
        if first:
            shape = {name: found.manifest[name] for name in SHAPE}
            made = {"name": "fgai", "preset": preset, **asdict(method)}
            f1 = _save(out, done, graph, shape, _origin(graph, data, seed), made, seed)
            was = found.manifest.get("metrics", {}).get("f1")
            before = "" if was is None else f" ({was:.3f} before)"
            typer.echo(f"{backbone} on {data}, faithful: test micro-F1 {f1:.3f}{before}, saved in {out}")

    return save


def _origin(graph: Data | DiskGraph, data: str, seed: int) -> str:
    """What a graph is called: a store by the dataset it was made of, if with the same split."""
    origin = graph.origin if isinstance(graph, DiskGraph) else {}
    return str(origin["data"]) if origin.get("seed") == seed else data


def _numbers(fanout: str) -> list[int]:
    try:
        return [int(part) for part in fanout.split(",")]
    except ValueError as error:
        raise SettingError(f"--fanout {fanout} is no list of numbers; give one for each hop, such as 10,10") from error


def _save(
    out: Path,
    fit: Fit,
    graph: Data | DiskGraph,
    shape: Mapping[str, Any],
    data: str,
    method: dict[str, Any],
    seed: int,
) -> float:
    """Save a fit with its provenance; its test F1 is returned."""
    y, test = (_attribute(graph, name) for name in ("y", "test_mask"))
    metrics = {"f1": _test_f1(fit.model, graph, y, test), "val_f1": fit.best.val_f1}
    saved.save(
        out,
        fit.model,
        **shape,
        data=data,
        data_sha256="" if isinstance(graph, DiskGraph) else datasets.fingerprint(graph),
        method=method,
        seed=seed,
        metrics=metrics,
        history=[asdict(epoch) for epoch in fit.history],
    )
    return metrics["f1"]


def _attribute(graph: Data | DiskGraph, name: str) -> Tensor:
    return graph.whole(name) if isinstance(graph, DiskGraph) else require(graph, name)


def _test_f1(model: nn.Module, graph: Data | DiskGraph, y: Tensor, test: Tensor) -> float:
    if not isinstance(graph, DiskGraph):
        return micro_f1(call_by_signature(model, graph)[test], y[test])
    right = sum(
        int(((seen.reading.logits.argmax(-1) == y[seen.nodes]) & test[seen.nodes]).sum())
        for seen in layerwise(model, graph)
    )
    return right / max(int(test.sum()), 1)


@app.command()
def convert(
    graph: Annotated[
        str, typer.Argument(help="A dataset, module:function, or a file of edges: lines of two ids, .npy.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    array: Annotated[list[str] | None, typer.Option(help="name=file.npy, with a row per node, beside a file.")] = None,
    split: Annotated[int, typer.Option(help="The seed of a dataset's split.")] = 0,
    backbone: Annotated[str, typer.Option(help="Also write what this one needs of a dataset, as gt does.")] = "",
) -> None:
    """Write a graph to disk, so that features and edges need not fit into memory."""
    with _errors_in_words():
        if Path(graph).is_file():
            store = convert_edge_list(graph, out, _asked("--array", array or (), "x=features.npy"))
        else:
            whole = _graph(graph, split)
            whole = BACKBONES[backbone].prepare(whole) if backbone else whole
            store = convert_graph(whole, out, origin={"data": graph, "seed": split})
    has = f" with {', '.join(store.names)}" if store.names else ""
    typer.echo(f"{store.num_nodes:,} nodes and {store.num_edges:,} edges{has} in {out}")


@app.command()
def audit(
    folder: Folder = None,
    model: OwnModel = "",
    weights: Weights = None,
    data: DataName = "",
    nodes: Annotated[int, typer.Option(help="Injected nodes.")] = 20,
    edges: Annotated[int, typer.Option(help="Links of each.")] = 20,
    steps: Annotated[int, typer.Option(help="Steps of gradient ascent.")] = 10,
    strongest: Annotated[
        bool, typer.Option(help="The adaptive ensemble instead of one attack; it chooses links and steps itself.")
    ] = False,
    gain: Annotated[str, typer.Option(help="What the attack makes large; `fgai ls` lists them.")] = "cross-entropy",
    seeds: Annotated[int, typer.Option(help="How many times to attack.")] = 5,
    split: Split = 0,
    out: Annotated[Path | None, typer.Option(help="Also save the report: .html, .json, .md or .txt.")] = None,
) -> None:
    """Can I trust this attention? Attack a saved model, or your own, and report."""
    with _errors_in_words():
        if out is not None:
            writer_for(out)  # what cannot be written is said before the attack
        net, graph, name = _own(model, weights, data, split) if model else _ours(folder, data, split)
        attack = AttackEnsemble(nodes=nodes) if strongest else NodeInjection(nodes=nodes, edges=edges, steps=steps)
        found = run_audit(net, graph, attack, gain=gain, seeds=seeds, name=name)
        if out is not None and out.suffix == ".html":
            report.save(out, found, about=_about(data or f"that of {folder}", graph))
        elif out is not None:
            found.save(out)
    typer.echo(found.text())


@app.command()
def certify(
    folder: Folder = None,
    vanilla: Annotated[Path | None, typer.Option(help="The folder of the model before it was made faithful.")] = None,
    model: OwnModel = "",
    weights: Weights = None,
    data: DataName = "",
    k: Annotated[int, typer.Option(help="How many neighbours an explanation names.")] = 10,
    radius: Annotated[float, typer.Option(help="How far attention may be pushed, per node.")] = 0.05,
    norm: Annotated[str, typer.Option(help="l1, l2 or linf.")] = "l1",
    split: Split = 0,
    out: Annotated[Path | None, typer.Option(help="Also save the certificate: .json or .txt.")] = None,
) -> None:
    """What can be proved about this explanation? The four conditions, for every node, in attention space."""
    with _errors_in_words():
        _check_push(norm, radius)
        if out is not None:
            kind_of(out)  # what cannot be written is said before anything is proved
        net, graph, _ = _own(model, weights, data, split) if model else _ours(folder, data, split)
        before = None if vanilla is None else saved.load(vanilla).model
        measure: Any = norm
        certificate = run_certify(net, graph, before, k, radius, norm=measure)
        if out is not None:
            certificate.save(out)
    typer.echo(certificate.text())


@app.command()
def bench(
    plan: Annotated[str, typer.Argument(help=f"{', '.join(plans())}, or a .toml file of your own.")],
    out: Annotated[Path, typer.Option(help="The folder of finished cells.")] = Path("results/cells"),
    only: Annotated[list[str] | None, typer.Option(help="field=value, such as dataset=cora or seed=0+1.")] = None,
    seeds: Annotated[int | None, typer.Option(help="At most so many seeds.")] = None,
    engine: Annotated[str, typer.Option(help="serial, pool or ray.")] = "serial",
    workers: Annotated[int | None, typer.Option(help="Processes of one thread; one per core by default.")] = None,
    using: Annotated[list[str] | None, typer.Option(help="Modules that register what the plan names.")] = None,
    track: Annotated[str, typer.Option(help="Also send figures to mlflow:FILE or tensorboard:FOLDER.")] = "",
) -> None:
    """Run the cells of a table that are not finished yet; run it again after a crash to go on."""
    with _errors_in_words():
        torch.set_num_threads(1)
        how: dict[str, Any] = {"engine": engine, "workers": workers, "using": using or (), "seeds": seeds}
        told = tracker(track) if track else None
        ran = run_plan(
            Plan.read(plan), out, only=_asked("--only", only or (), "dataset=cora or seed=0+1"), track=told, **how
        )
        failed = [cell for cell in ran if not Cells(out).finished(cell)]
    typer.echo(f"{len(ran)} cells of {plan} ran; fgai table {plan} {out} shows them")
    for cell in failed:
        typer.echo(f"{cell.name} failed: {Cells(out).rows(cell)[0].error.splitlines()[0]}", err=True)
    if failed:
        raise typer.Exit(1)


@app.command()
def table(
    plan: Annotated[str, typer.Argument(help=f"{', '.join(plans())}, or a .toml file of your own.")],
    folder: Annotated[Path, typer.Argument(help="The folder of finished cells.")] = Path("results/cells"),
    beside: Annotated[str, typer.Option(help="`paper` puts the paper's numbers beside ours.")] = "",
    as_: Annotated[str, typer.Option("--as", help="markdown, latex or csv.")] = "markdown",
) -> None:
    """Show a table from the cells that are finished."""
    with _errors_in_words():
        if beside not in ("", "paper"):
            raise SettingError(f"--beside {beside}: there is only `paper` to put beside ours")
        text = FORMATS[as_](table_of(Plan.read(plan), folder, beside_paper=beside == "paper"))
    typer.echo(text)


@app.command("report")
def write_report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of models of one graph, the vanilla one first.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    nodes: Annotated[int, typer.Option(help="Injected nodes.")] = 20,
    edges: Annotated[int, typer.Option(help="Links of each.")] = 20,
    gain: Annotated[str, typer.Option(help="What the attack makes large; `fgai ls` lists them.")] = "cross-entropy",
    seeds: Annotated[int, typer.Option(help="How many times to attack.")] = 5,
    radius: Annotated[float, typer.Option(help="How far the certificate lets attention be pushed.")] = 0.001,
    node: Annotated[list[int] | None, typer.Option(help="A node whose neighbourhood must be in the file.")] = None,
    data: DataName = "",
) -> None:
    """Audit and certify models side by side, and write one HTML file to look at."""
    with _errors_in_words():
        _check_push("l1", radius)
        checked_suffix(out, (".html",), "a report of models side by side")
        loaded = [saved.load(folder) for folder in folders]
        graph, about = _shared(loaded, data)
        found = {_title(one): one for one in loaded}
        models, attack = {name: one.model for name, one in found.items()}, NodeInjection(nodes=nodes, edges=edges)
        comparison = compare(models, graph, attack, gain=gain, seeds=seeds, show_nodes=node or ())
        proofs = {name: run_certify(model, graph, k=TOP, radius=radius) for name, model in models.items()}
        past = {name: [Epoch(**epoch) for epoch in one.manifest.get("history", ())] for name, one in found.items()}
        weights = {f"weights of {name}": str(one.manifest["weights_sha256"]) for name, one in found.items()}
        report.save(out, comparison, certificates=proofs, histories=past, about={**about, **weights})
    typer.echo(f"{comparison.markdown()}\n{out}: {out.stat().st_size / 1e6:.1f} MB")


@app.command("figure")
def draw(
    name: Annotated[str, typer.Argument(help=f"{', '.join(FIGURES)}.")],
    results: Annotated[Path, typer.Option(help="The folder of committed results.")] = Path("results"),
    dataset: Annotated[str, typer.Option(help="Of which dataset: Amazon-Photo, or all where all are shown.")] = "",
    backbone: Annotated[str, typer.Option(help="Of which backbone, where not all are shown.")] = "gat",
    out: Annotated[Path | None, typer.Option(help=".svg or .png; NAME.svg by default.")] = None,
) -> None:
    """Draw a figure of the paper from the committed results."""
    with _errors_in_words():
        path = out or Path(f"{name}.svg")
        plots.format_of(path)  # what cannot be written is said before it is drawn
        plots.save(figure(name, results, dataset, backbone), path)
    typer.echo(path)


def _title(found: saved.Saved) -> str:
    """What a model is called beside others: its backbone, its method and preset."""
    method = found.manifest.get("method", {})
    preset = method.get("preset", "default")
    named = method.get("name", "vanilla") + ("" if preset == "default" else f" {preset}")
    return f"{found.manifest['backbone']} {named}"


def _named(found: saved.Saved) -> str:
    """The dataset that a model was trained on. A file from elsewhere may not name code to run."""
    name = str(found.manifest.get("data", ""))
    if name not in DATASETS:
        raise DataError(
            f"this model was trained on {name or 'a graph that it does not name'}, which is no dataset of `fgai ls`; "
            "give --data, a dataset of `fgai ls` or a module:function that you trust"
        )
    return name


def _shared(found: list[saved.Saved], data: str) -> tuple[Data, dict[str, str]]:
    """The graph that models were trained on, which must be one, and where it comes from."""
    origins = {(data or _named(one), int(one.manifest.get("seed", 0))) for one in found}
    if len(origins) > 1 or len({_title(one) for one in found}) < len(found):
        raise DataError(
            f"these models are {', '.join(map(_title, found))} of {sorted(origins)}; a report compares models "
            "that differ, of one dataset and split"
        )
    name, seed = origins.pop()
    graph = _graph(name, seed)
    for backbone in dict.fromkeys(one.manifest["backbone"] for one in found):
        graph = BACKBONES[backbone].prepare(datasets.compact(graph))
    return graph, {"split seed": str(seed), **_about(name, graph)}


def _about(name: str, graph: Data) -> dict[str, str]:
    """Where a report comes from: its data and its command."""
    command = shlex.join(["fgai", *sys.argv[1:]])
    return {"data": name, "data sha256": datasets.fingerprint(graph), "command": command}


def _asked(option: str, parts: Sequence[str], example: str) -> dict[str, str]:
    if wrong := [part for part in parts if "=" not in part]:
        raise SettingError(f"{option} {wrong[0]} names no value; give field=value, such as {example}")
    found = dict(part.split("=", 1) for part in parts)
    if len(found) < len(parts):
        raise SettingError(f"{option} names a field twice in {' '.join(parts)}; give each once, such as {example}")
    return found


def _check_push(norm: str, radius: float) -> None:
    if norm not in NORMS or radius < 0:
        raise SettingError(f"--norm {norm} --radius {radius:g}: give one of {', '.join(NORMS)}, and no radius below 0")


def _ours(folder: Path | None, data: str, split: int) -> tuple[nn.Module, Data, str]:
    if folder is None:
        raise DataError("which model? Name a folder that `fgai train` wrote, or give --model module:function")
    found = saved.load(folder)
    name, seed = data or _named(found), int(found.manifest.get("seed", split))
    return found.model, _prepared(found.manifest["backbone"], name, seed), str(folder)


def _own(model: str, weights: Path | None, data: str, split: int) -> tuple[nn.Module, Data, str]:
    if not data:
        raise DataError("which graph? Give --data, a dataset of `fgai ls` or your own module:function")
    net = _called(model)
    return net if weights is None else saved.load_weights(net, weights), _graph(data, split), model


def _graph(name: str, seed: int) -> Data:
    return _called(name) if ":" in name else datasets.load(name, seed=seed)


def _prepared(backbone: str, name: str, seed: int) -> Data:
    prepare = BACKBONES[backbone].prepare
    return prepare(datasets.compact(_graph(name, seed)))


def _called(path: str) -> Any:
    """What `module:function` returns; the module may lie in the current folder."""
    module, _, function = path.partition(":")
    try:
        found = getattr(import_from_cwd(module), function)
    except AttributeError as error:
        raise DataError(f"{path}: {error}; give module:function") from error
    return found()
