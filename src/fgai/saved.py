"""A trained model on disk: `weights.safetensors` and `manifest.json`, data and no code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from fgai.backbones import BACKBONES
from fgai.errors import DataError
from fgai.files import atomic_write, jsonable, write_json
from fgai.versions import versions

FORMAT = 1


@dataclass(frozen=True)
class Saved:
    """A model read back, and how it was made."""

    model: nn.Module
    manifest: Mapping[str, Any]


def save(folder: str | Path, model: nn.Module, *, backbone: str, features: int, classes: int, **about: Any) -> None:
    """Write a model of one of our backbones; `about` goes into the manifest (method, seed, data, metrics)."""
    folder = Path(folder)
    with atomic_write(folder / "weights.safetensors") as half:
        save_model(model, str(half))
        digest = hashlib.sha256(half.read_bytes()).hexdigest()
    shape = {"backbone": backbone, "features": features, "classes": classes}
    write_json(
        folder / "manifest.json",
        {"format": FORMAT, **shape, **jsonable(about), "versions": versions(), "weights_sha256": digest},
    )


def load(folder: str | Path) -> Saved:
    """Read back what `save` wrote; refuses weights that are not the manifest's."""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        version, digest = manifest["format"], manifest["weights_sha256"]
        name, features, classes = manifest["backbone"], int(manifest["features"]), int(manifest["classes"])
        content = (folder / "weights.safetensors").read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder} holds no saved model ({error!r}); `fgai train --out {folder}` writes one") from error
    if version != FORMAT:
        raise DataError(f"{folder} has format {version!r}, this fgai reads {FORMAT}; use the version that wrote it")
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"the weights in {folder} are not the ones its manifest describes; train or copy it again")
    return Saved(load_weights(BACKBONES[name](features, classes), folder / "weights.safetensors").eval(), manifest)


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Fill any model with the weights of a safetensors file, and return it."""
    try:
        load_model(model, str(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise DataError(
            f"{path} does not fit {type(model).__name__} ({error}); build the model it was saved from"
        ) from error
    return model
