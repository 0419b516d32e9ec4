"""A model as a folder: weights, config and a manifest of checksums. Nothing in it can run code."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from progmem.config import ModelConfig
from progmem.errors import ConfigError, ModelFolderError

if TYPE_CHECKING:
    from progmem.model.pmt import PMT

WEIGHTS, CONFIG, MANIFEST = "model.safetensors", "config.json", "manifest.json"
FORMAT = "progmem model 1"


def save(model: "PMT", folder: Path) -> None:
    """Write ``model`` into ``folder``, whose manifest comes last and vouches for the rest."""
    if folder.is_file():
        raise ModelFolderError(f"{folder} is a file; save a model into a folder of its own")
    if folder.exists() and not (folder / MANIFEST).is_file() and any(folder.iterdir()):
        raise ModelFolderError(f"{folder} holds other files; save a model into a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    contents = {
        WEIGHTS: save_tensors(tensors),
        CONFIG: to_json(model.cfg.to_dict()),
    }
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    contents[MANIFEST] = to_json({"format": FORMAT, "sha256": sums})
    for name, data in contents.items():
        write_file(folder / name, data)


def load(folder: str | Path, *, device: str | torch.device = "cpu") -> "PMT":
    """The model that ``PMT.save`` wrote, every byte checked against the manifest."""
    from progmem.model.pmt import PMT

    folder = Path(folder)
    sums = _read_manifest(folder)
    contents = {name: _read(folder, name) for name in (WEIGHTS, CONFIG)}
    for name, data in contents.items():
        if hashlib.sha256(data).hexdigest() != sums.get(name):
            raise ModelFolderError(
                f"{folder / name} is damaged, or {MANIFEST} is: the sha256 there is not the file's"
            )
    try:
        cfg = ModelConfig.from_dict(json.loads(contents[CONFIG]))
        tensors = load_tensors(contents[WEIGHTS])
        model = PMT(cfg)
        dtypes = {tensors[name].dtype for name, _ in model.named_parameters()}
        if len(dtypes) == 1:
            model.to(dtypes.pop())
        model.load_state_dict(tensors)
    except (ConfigError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:300]
        raise ModelFolderError(f"{folder} is not a model this version can read: {why}") from error
    return model.to(device)


def _read_manifest(folder: Path) -> dict[str, Any]:
    if folder.is_file():
        raise ModelFolderError(f"{folder} is a file; give the folder it lies in")
    if not folder.is_dir():
        raise ModelFolderError(f"there is no model folder {folder}")
    if not (folder / MANIFEST).is_file():
        raise ModelFolderError(f"{folder} is not a progmem model folder: it has no {MANIFEST}")
    try:
        manifest = json.loads(_read(folder, MANIFEST))
        form, sums = manifest["format"], dict(manifest["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(f"{folder / MANIFEST} is damaged: {error!r}") from error
    if form != FORMAT:
        raise ModelFolderError(f"{folder} has format {form!r}; this version reads {FORMAT!r}")
    return sums


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise ModelFolderError(f"{folder / name} cannot be read: {error.strerror}") from error


def write_file(path: Path, data: bytes) -> None:
    """Replace ``path`` whole or not at all, whatever happens meanwhile."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
        _sync_folder(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def to_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()
