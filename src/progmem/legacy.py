"""What version 0.1.0 wrote, read as the artifacts of today, and words that have changed since.

That version kept tensors and notes in files beside each other. The checksums it has are compared;
since they leave out some of the notes, a warning says that what is read is not verified. Each
function gives None for what is not of that version.
"""

import hashlib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from progmem import guard
from progmem.artifact import Artifact, begins, in_one_line
from progmem.errors import ArtifactError
from progmem.files import to_json

MANIFEST = "manifest.json"  # of a model folder
ENCODER_NOTE = "estimator.json"
HEAD_NOTE = "head.json"
_WEIGHT_NAMES = {  # then and now
    "feed_forward.widen.": "feed_forward.fc1.",
    "feed_forward.narrow.": "feed_forward.fc2.",
}
_MODEL_FILES = {"weights": ("model-", ".safetensors"), "config": ("config-", ".json")}


def is_model_file(name: str) -> bool:
    """Whether a model folder of 0.1.0 has files of this name."""
    parts = _MODEL_FILES.values()
    return name == MANIFEST or any(name.startswith(a) and name.endswith(b) for a, b in parts)


def read_model(folder: Path) -> Artifact | None:
    """A model folder; its sha256 is that of the manifest, which has those of the other files."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    manifest = _note(path)
    _check_format(folder, manifest, "progmem model 1")
    contents = {}
    for role in _MODEL_FILES:
        try:
            name, digest = manifest["files"][role]["name"], manifest["files"][role]["sha256"]
            known = is_model_file(name) and "/" not in name and name != MANIFEST
        except (KeyError, TypeError, AttributeError) as error:
            raise ArtifactError(f"{path} is damaged: {error!r}") from error
        if not known:
            raise ArtifactError(f"{path} is damaged: it names other files")
        contents[role] = _checked(folder / name, digest, path.name)
    _warn(folder)
    config = _parsed(contents["config"], folder)
    weights = _renamed(_tensors(contents["weights"], folder))
    return Artifact(weights, {"config": config}, _sha256(_read(path)))


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run by the names they have today.

    0.1.0 wrote 0 for a data.hop that was not given, called finetune.label_share "labels" and
    encoder.name "finetune.encoder", and hid nothing of a view.
    """
    current = dict(settings)
    data, finetune, views = (settings.get(name) for name in ("data", "finetune", "views"))
    if isinstance(views, Mapping) and "channel_dropout" in views and "hide" not in views:
        strengths = {"scale", "jitter_weak", "jitter_strong", "time_warp", "magnitude_warp", "crop"}
        if strengths <= views.keys():  # only a run writes all of them
            current["views"] = {**views, "hide": 0.0}
    if isinstance(data, Mapping) and data.get("hop") == 0:
        current["data"] = {**data, "hop": None}
    if isinstance(finetune, Mapping) and "labels" in finetune:
        finetune = {
            "label_share" if name == "labels" else name: value for name, value in finetune.items()
        }
        current["finetune"] = finetune
    if isinstance(finetune, Mapping) and "encoder" in finetune and "encoder" not in settings:
        current["encoder"] = {"name": finetune["encoder"]}
        current["finetune"] = {k: v for k, v in finetune.items() if k != "encoder"}
    return current


def read_checkpoint(path: Path) -> Artifact | None:
    """A checkpoint: tensors in ``path`` and a note of the same name that ends in .json."""
    note_path = path.with_suffix(".json")
    if begins(path) or not note_path.is_file():
        return None
    note = _note(note_path)
    data = _checked(path, note.get("sha256"), note_path.name)
    _warn(path, "the run's next checkpoint will be verified")
    return Artifact(_renamed(_tensors(data, path)), note, "")


def read_head(folder: Path) -> Artifact | None:
    """A finetuned run's head: head.safetensors and head.json."""
    path, note_path = folder / "head.safetensors", folder / HEAD_NOTE
    if begins(path) or not note_path.is_file():
        return None
    note = _note(note_path)
    _check_format(note_path, note, "progmem head 1")
    data = _checked(path, note.get("sha256"), note_path.name)
    _warn(folder)
    return Artifact(_tensors(data, path), note, "")


def read_forecaster(path: Path) -> Artifact | None:
    """A forecaster: its note and its checksum are among its tensors."""
    tensors = _plain_tensors(path, {"note"})
    if tensors is None:
        return None
    note = _parsed(bytes(tensors["note"].flatten().tolist()), path)
    if note.get("format") != "progmem forecaster 3":
        return None
    digest = bytes(tensors.pop("sha256", torch.empty(0)).flatten().tolist())
    if digest != hashlib.sha256(save_tensors(tensors)).digest():
        raise ArtifactError(f"{path} is damaged: its sha256 is not that of what it holds")
    _warn(path)
    del tensors["note"]
    return Artifact(tensors, note, "")


def read_encoder(folder: Path) -> Artifact | None:
    """The note of a saved PMTEncoder, beside its model folder."""
    path = folder / ENCODER_NOTE
    if not path.is_file():
        return None
    note = _note(path)
    _check_format(path, note, "progmem estimator 1")
    facts = note.get("facts")
    if not isinstance(facts, dict) or _sha256(to_json(facts)) != note.get("sha256"):
        raise ArtifactError(f"{path} is damaged: its sha256 is not the one in it")
    _warn(folder)
    return Artifact({}, facts, "")


def encoder_params(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a saved PMTEncoder, whose level "tokens" was "token" in 0.1.0."""
    return {**params, "level": "tokens"} if params.get("level") == "token" else params


def forecaster_note(note: dict[str, Any]) -> dict[str, Any]:
    """The note of a kept forecaster, whose context was called padding in 0.1.0."""
    return {"context" if name == "padding" else name: value for name, value in note.items()}


def read_stream(path: Path) -> Artifact | None:
    """The state of a stream that its user stored by safetensors."""
    tensors = _plain_tensors(path, {"model", "x", "horizon"})
    if tensors is None:
        return None
    _warn(path)
    return Artifact(tensors, {}, "")


def old_weight_name(name: str) -> str:
    """The name that 0.1.0 gave the weight that is called ``name`` today."""
    for old, new in _WEIGHT_NAMES.items():
        name = name.replace(new, old)
    return name


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights, and the optimiser's moments of weights, under the names of today."""
    for old, new in _WEIGHT_NAMES.items():
        tensors = {name.replace(old, new): tensor for name, tensor in tensors.items()}
    return tensors


def _warn(what: Path, verified: str = "save it again to have it verified") -> None:
    warnings.warn(
        f"{what} is in the older format of progmem 0.1.0, whose checksums do not cover all of it, "
        f"and is read unverified; {verified}",
        UserWarning,
        stacklevel=3,
    )


def _plain_tensors(path: Path, needed: set[str]) -> dict[str, Tensor] | None:
    """The tensors of a safetensors file without our metadata; None if it is none, or lacks some.

    A damaged artifact is no such file: a flipped bit leaves it ``kind`` or ``note``.
    """
    try:
        with safe_open(path, "pt") as file:
            ours = {"kind", "note"} & (file.metadata() or {}).keys()
            if ours or not needed <= {*file.keys()}:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        return None


def _tensors(data: bytes, where: Path) -> dict[str, Tensor]:
    try:
        return load_tensors(data)
    except SafetensorError as error:
        raise ArtifactError(f"{where} cannot be read: {in_one_line(error)}") from error


def _note(path: Path) -> dict[str, Any]:
    return _parsed(_read(path), path)


def _parsed(data: bytes, where: Path) -> dict[str, Any]:
    try:
        note = guard.load_json(data)
    except ValueError as error:
        raise ArtifactError(f"{where} is damaged: {in_one_line(error)}") from error
    if not isinstance(note, dict):
        raise ArtifactError(f"{where} is damaged: it is not a mapping")
    return note


def _check_format(where: Path, note: dict[str, Any], expected: str) -> None:
    found = note.get("format")
    if found != expected:
        raise ArtifactError(f"{where} has format {found!r}; this version reads {expected!r}")


def _checked(path: Path, digest: Any, note: str) -> bytes:
    data = _read(path)
    if _sha256(data) != digest:
        raise ArtifactError(f"{path} is damaged, or {note} is: the sha256 there is not the file's")
    return data


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from error


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
