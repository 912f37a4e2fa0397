"""Models and graphs by the names that a command gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader

from fgai import datasets, saved
from fgai.backbones import BACKBONES
from fgai.checks import describe_tensor
from fgai.datasets import DATASETS
from fgai.errors import DataError, SettingError
from fgai.items import refuse_typed
from fgai.large.store import MANIFEST, DiskGraph
from fgai.methods import Epoch
from fgai.reading import Call
from fgai.registry import describe_error, import_from_cwd


@dataclass(frozen=True)
class LoadedModel:
    """A model from a folder or from the user's own code; `saved` is None for the latter."""

    model: nn.Module
    name: str
    saved: saved.Saved | None = None

    @property
    def call(self) -> Call | None:
        """How to call the model, if not by its signature."""
        return None if self.saved is None else self.saved.call

    @property
    def title(self) -> str:
        """Its name in a comparison."""
        return self.name if self.saved is None else self.saved.title

    @property
    def history(self) -> tuple[Epoch, ...]:
        """The epochs of its training, as far as they are known."""
        return () if self.saved is None else self.saved.history

    def split(self, given: int | None) -> int:
        """The seed of the split it was trained on, or else the given one."""
        trained = None if self.saved is None else self.saved.manifest.get("seed")
        if trained is None:
            return given or 0
        if given not in (None, int(trained)):
            raise SettingError(
                f"--split {given}: {self.name} was trained on the split of seed {trained}, and with another one it "
                "would be tested on nodes that it was trained on; omit --split"
            )
        return int(trained)

    def data_name(self, data: str) -> str:
        """The name of its graph: `data`, the function `data` beside a user's model, or the dataset in its manifest.

        A manifest may come from a stranger, so it may only name a dataset, never code to run.
        """
        if data:
            return data
        if self.saved is None:
            return _graph_beside(self.name)
        name = str(self.saved.manifest.get("data", ""))
        if name not in DATASETS:
            raise DataError(
                f"this model was trained on {name or 'a graph without a name'}, which is not a dataset of `fgai ls`; "
                "give --data, a dataset of `fgai ls` or a module:function that you trust"
            )
        return name

    def graph(self, data: str, split: int | None) -> Data:
        """Its graph, with all inputs of its backbone."""
        name, seed = self.data_name(data), self.split(split)
        if self.saved is None:
            return load_graph(name, seed)
        graph = prepare_graph(self.saved.backbone, name, seed)
        self.note_other_graph(name, graph)
        return graph

    def note_other_graph(self, name: str, graph: Data) -> None:
        """Print a note if the graph `name` is not the one that the model was trained on."""
        trained_on = None if self.saved is None else self.saved.manifest.get("data_sha256")
        if trained_on and trained_on != datasets.fingerprint(graph):
            typer.echo(
                f"note: {name} is not the graph that {self.name} was trained on (their fingerprints differ); nodes "
                "that it is tested on may have been in its training",
                err=True,
            )

    def graph_or_store(self, data: str, split: int | None) -> Data | DiskGraph:
        """Its graph; a folder of `fgai convert` stays on disk."""
        return DiskGraph(data) if is_stored(data) else self.graph(data, split)

    def refuse_ranks(self, data: str, split: int | None) -> None:
        """Raise if its graph is typed, which one process trains on; graphs on disk and of reference models are not."""
        if self.saved is None and not is_stored(data):
            remedy = "train in one process: omit --ranks and --batch"
            refuse_typed(self.graph(data, split), "Training on several ranks", remedy)


def load_model(folder: Path | None, model: str, weights: Path | None) -> LoadedModel:
    """Load the model that a command names: a folder, or `--model` with `--weights`."""
    if folder is not None and ":" in str(folder) and not folder.exists():
        raise SettingError(f"{folder} is no folder; for a model of your own give --model {folder}")
    if folder is not None and (model or weights):
        raise SettingError(f"{folder} and --model or --weights name two models; give one of them")
    if model:
        return load_user_model(model, weights)
    if folder is None:
        raise DataError("which model? Give a folder written by `fgai train`, or --model module:function")
    return load_saved_model(folder)


def load_saved_model(folder: Path) -> LoadedModel:
    """Load a model that `fgai train` or `fgai fit` wrote."""
    loaded = saved.load(folder)
    return LoadedModel(loaded.model, str(folder), loaded)


def load_user_model(source: str, weights: Path | None) -> LoadedModel:
    """Build a user's own model with `module:function`, and load its weights from a safetensors file."""
    model = _call_function(source, nn.Module)
    if weights is None:
        typer.echo(f"no --weights: the parameters of the model are those that {source} returns", err=True)
    return LoadedModel(model if weights is None else saved.load_weights(model, weights), source)


def is_stored(data: str) -> bool:
    """Whether this is a folder that `fgai convert` wrote."""
    return bool(data) and (Path(data) / MANIFEST).exists()


def load_graph(name: str, seed: int) -> Data:
    """Load a dataset with the split of `seed`, or build a graph with `module:function`."""
    return _call_function(name, Data, HeteroData, list, DataLoader) if ":" in name else datasets.load(name, seed=seed)


def prepare_graph(backbone: str, name: str, seed: int) -> Data:
    """Load a graph and add the inputs that a backbone needs."""
    prepare = BACKBONES[backbone].prepare
    return prepare(datasets.compact(load_graph(name, seed)))


def _graph_beside(source: str) -> str:
    """The function `data` in the module of a user's model."""
    module = source.partition(":")[0]
    if not callable(getattr(import_from_cwd(module), "data", None)):
        raise DataError(
            f"which graph? {module} has no function `data`; write one that returns it, or give --data, a dataset of "
            "`fgai ls datasets` or your own module:function"
        )
    return f"{module}:data"


def _call_function(source: str, *kinds: type) -> Any:
    """The result of `module:function`, of one of these kinds; the module may be in the current folder."""
    module, _, name = source.partition(":")
    try:
        function = getattr(import_from_cwd(module), name)
    except AttributeError as error:
        raise DataError(f"{source}: {error}; give module:function") from error
    try:
        made = function()
    except (Exception, SystemExit) as error:
        raise DataError(describe_error(source, error)) from error
    if not isinstance(made, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise DataError(f"{source} returned {describe_tensor(made)}; let it return a {names}")
    return made
