"""A trained model on disk: `weights.safetensors` and `manifest.json`, data and no code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_model, save_model
from torch import nn

from fgai.backbones import BACKBONES
from fgai.bench.rows import versions
from fgai.errors import DataError
from fgai.files import whole, write_json

FORMAT = 1


@dataclass(frozen=True)
class Saved:
    """A model read back, and how it was made."""

    model: nn.Module
    manifest: Mapping[str, Any]


def save(folder: str | Path, model: nn.Module, *, backbone: str, features: int, classes: int, **about: Any) -> None:
    """Write a model of one of our backbones; `about` goes into the manifest (method, seed, data, metrics)."""
    folder = Path(folder)
    with whole(folder / "weights.safetensors") as half:
        save_model(model, str(half))
        digest = hashlib.sha256(half.read_bytes()).hexdigest()
    shape = {"backbone": backbone, "features": features, "classes": classes}
    write_json(
        folder / "manifest.json",
        {"format": FORMAT, **shape, **about, "versions": versions(), "weights_sha256": digest},
    )


def load(folder: str | Path) -> Saved:
    """Read back what `save` wrote; refuses weights that are not the manifest's."""
    folder = Path(folder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        content = (folder / "weights.safetensors").read_bytes()
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError) as error:
        raise DataError(f"{folder} holds no saved model ({error}); `fgai train --out {folder}` writes one") from error
    if manifest.get("format") != FORMAT:
        raise DataError(
            f"{folder} has format {manifest.get('format')!r}, this fgai reads {FORMAT}; use the version that wrote it"
        )
    if hashlib.sha256(content).hexdigest() != manifest["weights_sha256"]:
        raise DataError(f"the weights in {folder} are not the ones its manifest describes; train or copy it again")
    model = BACKBONES[manifest["backbone"]](manifest["features"], manifest["classes"])
    load_model(model, str(folder / "weights.safetensors"))
    return Saved(model.eval(), manifest)
