"""A trained model on disk: `weights.safetensors` and `manifest.json`. Both are data; no code is stored or run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from fgai.backbones import BACKBONES
from fgai.errors import DataError, SettingError
from fgai.files import atomic_write, jsonable, locked_folder, try_output, write_json
from fgai.methods import METHODS, Epoch, Fit, LayerNorm, Method
from fgai.methods.layernorm import Normalised
from fgai.printing import short_repr
from fgai.readers import read_header, read_json, read_tensors
from fgai.reading import Call
from fgai.records import record
from fgai.training.history import check_history
from fgai.versions import versions

FORMAT = 1
MANIFEST, WEIGHTS = "manifest.json", "weights.safetensors"
SEEDS = 2**63  # torch accepts seeds below this
LARGEST = 1e8  # larger weights do not come from training, and logits would overflow


@dataclass(frozen=True)
class _Manifest:
    """The entries of a manifest that are checked; there may be more."""

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
    """A model read from a folder.

    Attributes:
        model: The model, in evaluation mode.
        manifest: The content of `manifest.json`: backbone, method, seed, data, metrics.
        history: The epochs of its training, if they were saved.
        call: How to call the model, for a method that cleans the graph first; None calls it by its signature.
    """

    model: nn.Module
    manifest: Mapping[str, Any]
    history: tuple[Epoch, ...] = ()
    call: Call | None = None

    __repr__ = short_repr

    @property
    def backbone(self) -> str:
        """The name of its backbone."""
        return str(self.manifest["backbone"])

    @property
    def shape(self) -> dict[str, Any]:
        """The arguments of `save` that describe the model: backbone, features and classes."""
        return {name: self.manifest[name] for name in ("backbone", "features", "classes")}

    @property
    def title(self) -> str:
        """Its name in a comparison: backbone, method and preset."""
        method = self.manifest.get("method", {})
        preset = method.get("preset", "default")
        return f"{self.backbone} {method.get('name', 'vanilla')}" + ("" if preset == "default" else f" {preset}")

    @property
    def has_preprocessing(self) -> bool:
        """Whether the model normalises its features or cleans its graph before the backbone runs."""
        return isinstance(self.model, Normalised) or self.call is not None


def save(folder: str | Path, model: nn.Module, *, backbone: str, features: int, classes: int, **about: Any) -> None:
    """Save a model of a registered backbone.

    The new weights are written beside the old ones until the manifest names them. If the process is killed, the folder
    holds the old model or the new one.

    Args:
        folder: The folder to write, or to replace.
        model: The model.
        backbone: Its name in `fgai.backbones.BACKBONES`.
        features: The number of input features.
        classes: The number of classes.
        about: More entries of the manifest, such as method, seed, data, metrics and history.

    >>> import tempfile
    >>> from fgai.backbones import BACKBONES
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(folder, BACKBONES["gat"](16, 4), backbone="gat", features=16, classes=4, seed=1)
    ...     load(folder).manifest["seed"]
    1
    """
    _write(Path(folder), model, {"backbone": backbone, "features": features, "classes": classes, **about})


def save_user_model(folder: str | Path, model: nn.Module, *, source: str, **about: Any) -> None:
    """Save the weights of a user's own model, with a manifest that says where its code is.

    `load` refuses such a folder: a file must not name code to run. Build the model, and fill it with `load_weights`.

    Args:
        folder: The folder to write, or to replace.
        model: The model.
        source: The `module:function` that builds it.
        about: More entries of the manifest.
    """
    _write(Path(folder), model, {"model": source, **about})


def _write(folder: Path, model: nn.Module, entries: Mapping[str, Any]) -> None:
    """Write weights and manifest, one after the other, so that the folder is valid at any time."""
    try_output(folder, folder=True)
    folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(folder):
        with atomic_write(folder / "weights-new.safetensors") as half:
            save_model(model, str(half))
            digest = _digest(half)
        pending = (folder / "weights-new.safetensors").replace(folder / _pending_name(digest))
        manifest = {**jsonable(entries), "versions": versions(), "weights_sha256": digest}
        write_json(folder / MANIFEST, {"format": FORMAT, **manifest})
        pending.replace(folder / WEIGHTS)
        for leftover in folder.glob(_pending_name("*")):  # of a process that was killed
            leftover.unlink()


def fit_entries(fit: Fit, f1: float) -> dict[str, Any]:
    """The manifest entries of a training run: test and validation F1, and the history."""
    history = [asdict(epoch) for epoch in fit.history]
    return {"metrics": {"f1": f1, "val_f1": fit.best.val_f1}, "history": history}


def has_preprocessing(method: Any) -> bool:
    """Whether models of a method normalise their features or clean their graph before the backbone runs."""
    return isinstance(method, LayerNorm) or _cleans(type(method))


def _cleans(kind: Any) -> bool:
    """Whether a kind of method changes the graph before the model reads it."""
    return getattr(kind, "cleaned_call", Method.cleaned_call) is not Method.cleaned_call


def call_of(method: Any) -> Call | None:
    """How to call the models of a method: with the cleaned graph for a defence, otherwise None."""
    return None if method is None else method.cleaned_call()


def load(folder: str | Path) -> Saved:
    """Load a model that `save` wrote.

    Args:
        folder: The folder.

    Returns:
        The model in evaluation mode, with its manifest and history.

    Raises:
        DataError: If the folder holds no model, or weights that do not match the manifest.
    """
    folder = Path(folder)
    remedy = f"`fgai train --out {folder}` writes a model"
    if not (folder / MANIFEST).is_file():
        raise DataError(f"{folder} holds no saved model (no {MANIFEST}); {remedy}")
    with locked_folder(folder, reading=True):
        return _load(folder, remedy)


def _load(folder: Path, remedy: str) -> Saved:
    raw = read_json(folder / MANIFEST, f"{folder} holds no saved model; {remedy}")
    if isinstance(raw, dict) and raw.get("format") != FORMAT:
        version = str(raw.get("format"))[:20]
        raise DataError(f"{folder} has format {version}, and this fgai reads {FORMAT}; use the version that wrote it")
    if isinstance(raw, dict) and "model" in raw and "backbone" not in raw:
        raise DataError(
            f"{folder} holds the weights of your own model {raw['model']!s:.100}; "
            f"give --model module:function --weights {folder / WEIGHTS}"
        )
    manifest = record(_Manifest, raw, folder / MANIFEST, remedy, more=True)
    _check(manifest, folder, remedy)
    path, method = _weights_path(folder, manifest.weights_sha256), _preprocessing(manifest, folder, remedy)
    outline = _wrap(_outline(manifest, folder, remedy), method)
    # Only the header is read first: the sizes in the manifest may be false, and must not decide how much is allocated.
    if _check_header(outline, path, remedy) != {*outline.state_dict()}:
        raise DataError(f"{path} does not hold all weights of {manifest.backbone}; {remedy}")
    model = load_weights(_wrap(BACKBONES[manifest.backbone](manifest.features, manifest.classes), method), path)
    if any(float(weight.detach().abs().max()) > LARGEST for weight in model.parameters() if weight.numel()):
        raise DataError(f"{path} holds weights above {LARGEST:g}, which no training leads to; {remedy}")
    return Saved(model.eval(), raw, manifest.history, call_of(method))


def _preprocessing(manifest: _Manifest, folder: Path, remedy: str) -> Any:
    """The method of a manifest if its models need it to run, else None."""
    name = manifest.method.get("name", "")
    kind: Any = METHODS.get(name)
    if kind is None or (kind is not LayerNorm and not _cleans(kind)):
        return None
    settings = {key: value for key, value in manifest.method.items() if key not in ("name", "preset")}
    try:
        return record(kind, settings, folder / MANIFEST, remedy)
    except SettingError as error:
        raise DataError(f"{folder / MANIFEST}: {error}; {remedy}") from error


def _wrap(model: nn.Module, method: Any) -> nn.Module:
    """The model as the method returns it."""
    return Normalised(model, method.kind) if isinstance(method, LayerNorm) else model


def load_weights(model: nn.Module, path: str | Path) -> nn.Module:
    """Fill any model with the weights of a safetensors file.

    Args:
        model: A model with the names and shapes of the file. It is changed.
        path: The file.

    Returns:
        The same model.

    Raises:
        DataError: If the file does not fit the model, or holds NaN or infinite weights.
    """
    remedy = f"build the {type(model).__name__} it was saved from, or save its weights with safetensors again"
    _check_header(model, Path(path), remedy)
    read_tensors(path, remedy)
    try:
        load_model(model, str(path))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise DataError(f"{path} does not fit {type(model).__name__} ({error}); {remedy}") from error
    return model


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _pending_name(digest: str) -> str:
    """The file name of new weights until they replace the old ones."""
    return f"weights-{digest[:16]}.safetensors"


def _weights_path(folder: Path, digest: str) -> Path:
    """The weights that a manifest names; the pending ones if their writer was killed."""
    paths = [path for path in (folder / WEIGHTS, folder / _pending_name(digest)) if path.is_file()]
    if not paths:
        raise DataError(f"{folder} holds no saved model (no {WEIGHTS}); `fgai train --out {folder}` writes one")
    for path in paths:
        if _digest(path) == digest:
            return path
    raise DataError(f"the weights in {folder} are not the ones its manifest describes; train or copy it again")


def _check(manifest: _Manifest, folder: Path, remedy: str) -> None:
    """Check what types do not cover: names, ranges, and a history that can be plotted."""
    sha, method = manifest.weights_sha256, manifest.method
    if manifest.backbone not in BACKBONES or len(sha) != 64 or not {*sha} <= {*"0123456789abcdef"}:
        raise DataError(f"{folder} names the backbone {manifest.backbone!r:.60} and weights {sha!r:.70}; {remedy}")
    if not 0 <= manifest.seed < SEEDS or not all(isinstance(method.get(name, ""), str) for name in ("name", "preset")):
        raise DataError(f"{folder} names the seed {manifest.seed} and a method {method!s:.60}; {remedy}")
    check_history(manifest.history, folder, remedy)


def _outline(manifest: _Manifest, folder: Path, remedy: str) -> nn.Module:
    """The model that a manifest describes, on the meta device: no memory for its parameters."""
    features, classes = manifest.features, manifest.classes
    try:
        if min(features, classes) < 1:
            raise ValueError("at least one of each is needed")
        with torch.device("meta"):
            return BACKBONES[manifest.backbone](features, classes)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{folder} names {features} features and {classes} classes ({error}); {remedy}") from error


def _check_header(model: nn.Module, path: Path, remedy: str) -> set[str]:
    """Compare the header of a weights file with a model, and return the names in the file."""
    state: dict[str, Tensor] = model.state_dict()
    tensors = read_header(path, remedy).tensors
    for name, (dtype, shape) in tensors.items():
        weight = state.get(name)
        if weight is None or (*weight.shape,) != shape or weight.dtype.is_floating_point != dtype.is_floating_point:
            expected = "no such weight" if weight is None else f"{weight.dtype} of {list(weight.shape)}"
            raise DataError(
                f"{path} does not fit {type(model).__name__}: `{name[:100]}` is {dtype} of {list(shape)}, and the "
                f"model has {expected}; {remedy}"
            )
    return {*tensors}
