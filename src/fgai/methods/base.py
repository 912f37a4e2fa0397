"""The interface of a training method, and the registry of methods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from torch import nn
from torch_geometric.data import Data

from fgai.calling import Call, call_by_signature
from fgai.errors import SettingError
from fgai.items import items_of
from fgai.registry import Registry
from fgai.training.data import Batches
from fgai.training.loop import Fit

Graphs = Data | Iterable[Data] | Batches  # a graph or a batch of graphs, a PyG loader, or `Batches`


class Method(Protocol):
    """A way to train a model: a frozen dataclass of settings with a `fit`.

    A method of your own inherits from this class and defines `fit`; the other members have defaults.

    >>> from fgai.methods import FGAI, METHODS, Vanilla
    >>> sorted(METHODS)[:3], FGAI.needs_pretrained, Vanilla.needs_pretrained
    (['at', 'fgai', 'gnn-svd'], True, False)
    """

    needs_pretrained: ClassVar[bool] = False  # whether `fit` takes a trained model
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}  # settings by name

    @classmethod
    def preset(cls, name: str = "default", **settings: Any) -> Self:
        """Return the method with the settings of a preset.

        Args:
            name: One of `presets`.
            **settings: Settings that replace those of the preset.

        Raises:
            SettingError: If there is no such preset.
        """
        if name not in cls.presets:
            raise SettingError(f"{cls.__name__} has no preset {name!r}; there is {', '.join(cls.presets)}")
        return cls(**{**cls.presets[name], **settings})

    @classmethod
    def preset_for(cls, data: Any) -> str:
        """Return the preset for a graph: `graphs` for a batch of graphs, if the method has one, else `default`."""
        graphs = isinstance(data, Data) and items_of(data).kind == "graphs"
        return "graphs" if graphs and "graphs" in cls.presets else "default"

    def cleaned_call(self, call: Call | None = None) -> Call:
        """Return the call with which to read, audit and attack a model that this method trained.

        It is `call` unless the method cleans the graph before the model reads it.
        """
        return call or call_by_signature

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Train a copy of `model`; the given model is not changed.

        Args:
            model: The model to start from.
            data: A graph or a `Batch` of graphs, a PyG loader, or `Batches` with loaders for training and validation.
            call: How the model is called on a graph; by its signature by default.
            checkpoint: A file to which the run is saved. If it exists, the run resumes.

        Returns:
            The trained model, and the losses and validation scores of its epochs.
        """
        ...


METHODS: Registry[Any] = Registry("method")
