"""A trained model on disk: `weights.safetensors` and `manifest.json`, data and no code."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from fgai.backbones import BACKBONES
from fgai.errors import DataError
from fgai.files import atomic_write, jsonable, locked_folder, try_output, write_json
from fgai.methods import Epoch
from fgai.readers import read_header, read_json, read_tensors
from fgai.records import record
from fgai.training.loop import check_history
from fgai.versions import versions

FORMAT = 1
MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"
SEEDS = 2**63  # torch takes seeds below
LARGEST = 1e8  # no training leads to larger weights, and answers would overflow


@dataclass(frozen=True)
class _Manifest:
    """The entries of a manifest that are read; there may be others."""

    format: int
    backbone: str
    features: int
    classes: int
    weights_sha256: str
    data: str = ""
    data_sha256: str = ""
    seed: int = 0
    seconds: float = 0.0
    method: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    history: tuple[Epoch, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """A model read back, how it was made, and the history of its training, if it was kept."""

    model: nn.Module
    manifest: Mapping[str, Any]
    history: tuple[Epoch, ...] = ()


def save(folder: str | Path, model: nn.Module, *, backbone: str, features: int, classes: int, **about: Any) -> None:
    """Write a model of one of our backbones; `about` goes into the manifest (method, seed, data, metrics).

    The new weights lie beside the old ones until the manifest names them: whenever this is killed, the folder holds the
    old model or the new one.
    """
    folder = Path(folder)
    try_output(folder, folder=True)
    folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder):
        with atomic_write(folder / "weights-new.safetensors") as half:
            save_model(model, str(half))
            digest = _digest(half)
        beside = (folder / "weights-new.safetensors").replace(folder / _beside(digest))
        shape = {"backbone": backbone, "features": features, "classes": classes}
        told = {**shape, **jsonable(about), "versions": versions(), "weights_sha256": digest}
        write_json(folder / MANIFEST, {"format": FORMAT, **told})
        beside.replace(folder / WEIGHTS)
        for left in folder.glob(_beside("*")):  # by a writer that was killed
            left.unlink()


def load(folder: str | Path) -> Saved:
    """Read back what `save` wrote; refuses weights that are not the manifest's."""
    folder = Path(folder)
    remedy = f"`fgai train --out {folder}` writes a model"
    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder} holds no saved model (no {MANIFEST}); {remedy}")
    with locked_folder(folder, reading=True):
        return _loaded(folder, remedy)


def _loaded(folder: Path, remedy: str) -> Saved:
    raw = read_json(folder / MANIFEST, f"{folder} holds no saved model; {remedy}")
    if isinstance(raw, dict) and raw.get("format") != FORMAT:
        found = str(raw.get("format"))[:20]
        raise DataError(f"{folder} has format {found}, this fgai reads {FORMAT}; use the version that wrote it")
    manifest = record(_Manifest, raw, folder / MANIFEST, remedy, more=True)
    _check(manifest, folder, remedy)
    path = _weights(folder, manifest.weights_sha256)
    outline = _outline(manifest, folder, remedy)
    if _fits(outline, path, remedy) != {*outline.state_dict()}:  # before memory is taken for what the manifest claims
        raise DataError(f"{path} does not hold all weights of {manifest.backbone}; {remedy}")
    model = BACKBONES[manifest.backbone](manifest.features, manifest.classes)
    load_weights(model, path)
    if any(float(weight.detach().abs().max()) > LARGEST for weight in model.parameters() if weight.numel()):
        raise DataError(f"{path} holds weights above {LARGEST:g}, which no training leads to; {remedy}")
    return Saved(model.eval(), raw, manifest.history)


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Fill any model with the weights of a safetensors file, and return it; NaN and infinite weights are refused."""
    remedy = f"build the {type(model).__name__} it was saved from, or save its weights with safetensors again"
    _fits(model, Path(path), remedy)
    read_tensors(path, remedy)
    try:
        load_model(model, str(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise DataError(f"{path} does not fit {type(model).__name__} ({error}); {remedy}") from error
    return model


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _beside(digest: str) -> str:
    """What weights are called until they take the place of others."""
    return f"weights-{digest[:16]}.safetensors"


def _weights(folder: Path, digest: str) -> Path:
    """The weights that a manifest names; those beside the old ones if their writer was killed."""
    there = [path for path in (folder / WEIGHTS, folder / _beside(digest)) if path.is_file()]
    if not there:
        raise DataError(f"{folder} holds no saved model (no {WEIGHTS}); `fgai train --out {folder}` writes one")
    for path in there:
        if _digest(path) == digest:
            return path
    raise DataError(f"the weights in {folder} are not the ones its manifest describes; train or copy it again")


def _check(manifest: _Manifest, folder: Path, remedy: str) -> None:
    """What the types do not say: names, ranges, and a history that can be drawn."""
    sha, method = manifest.weights_sha256, manifest.method
    if manifest.backbone not in BACKBONES or len(sha) != 64 or not {*sha} <= {*"0123456789abcdef"}:
        raise DataError(f"{folder} names the backbone {manifest.backbone!r:.60} and weights {sha!r:.70}; {remedy}")
    if not 0 <= manifest.seed < SEEDS or not all(isinstance(method.get(name, ""), str) for name in ("name", "preset")):
        raise DataError(f"{folder} names the seed {manifest.seed} and a method {method!s:.60}; {remedy}")
    check_history(manifest.history, folder, remedy)


def _outline(manifest: _Manifest, folder: Path, remedy: str) -> nn.Module:
    """The model that a manifest describes, without memory for its parameters."""
    features, classes = manifest.features, manifest.classes
    try:
        if min(features, classes) < 1:
            raise ValueError("at least one of each is needed")
        with torch.device("meta"):
            return BACKBONES[manifest.backbone](features, classes)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{folder} names {features} features and {classes} classes ({error}); {remedy}") from error


def _fits(model: nn.Module, path: Path, remedy: str) -> set[str]:
    """The names of weights, if the model has such names, shapes and kinds; only the header is read."""
    state: dict[str, Tensor] = model.state_dict()
    there = read_header(path, remedy).tensors
    for name, (dtype, shape) in there.items():
        ours = state.get(name)
        if ours is None or tuple(ours.shape) != shape or ours.dtype.is_floating_point != dtype.is_floating_point:
            needed = "nothing" if ours is None else f"{ours.dtype} of {list(ours.shape)}"
            raise DataError(
                f"{path} does not fit {type(model).__name__}: `{name[:100]}` is {dtype} of {list(shape)}, and the "
                f"model has {needed} there; {remedy}"
            )
    return {*there}
