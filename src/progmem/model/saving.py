"""A model as a folder: weights, config and a manifest of checksums. Nothing in it can run code."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

from progmem.config import ModelConfig
from progmem.errors import ConfigError, ModelFolderError
from progmem.files import UNFINISHED, to_json, write_file

if TYPE_CHECKING:
    from progmem.model.pmt import PMT

MANIFEST = "manifest.json"
FORMAT = "progmem model 1"
ROLES = {"weights": ("model-", ".safetensors"), "config": ("config-", ".json")}


def save(model: "PMT", folder: Path) -> None:
    """Write ``model`` into ``folder``; one that was there before counts until this one is whole.

    Files are named by their content and the manifest, written last, says which ones count.
    """
    if folder.is_file():
        raise ModelFolderError(f"{folder} is a file; save a model into a folder of its own")
    if folder.exists() and not all(_is_ours(path.name) for path in folder.iterdir()):
        raise ModelFolderError(f"{folder} holds other files; save a model into a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"weights": _weights(model), "config": to_json(model.cfg.to_dict())}
    files = {}
    for role, data in contents.items():
        digest = hashlib.sha256(data).hexdigest()
        files[role] = {"name": digest[:12].join(ROLES[role]), "sha256": digest}
        write_file(folder / files[role]["name"], data)
    write_file(folder / MANIFEST, to_json({"format": FORMAT, "files": files}))
    for path in folder.iterdir():
        if path.name not in {MANIFEST, *(file["name"] for file in files.values())}:
            path.unlink()


def weights_sha256(model: Any) -> str:
    """Checksum of a module's weights, the one its manifest would hold."""
    return hashlib.sha256(_weights(model)).hexdigest()


def _weights(model: Any) -> bytes:
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    return save_tensors(tensors)


def _is_ours(name: str) -> bool:
    named = any(name.startswith(start) and name.endswith(end) for start, end in ROLES.values())
    return named or name == MANIFEST or name.startswith(UNFINISHED)


def gpu_or_cpu() -> str:
    """The kind of device where a model is fast."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load(folder: str | Path, *, device: str | torch.device = "cpu") -> "PMT":
    """The model that ``PMT.save`` wrote, its files checked against the manifest.

    On ``device``; "auto" is a GPU if there is one.
    """
    from progmem.model.pmt import PMT

    folder = Path(folder)
    contents = {}
    for role, file in _read_manifest(folder).items():
        contents[role] = _read(folder, file["name"])
        if hashlib.sha256(contents[role]).hexdigest() != file["sha256"]:
            raise ModelFolderError(
                f"{folder / file['name']} is damaged, or {MANIFEST} is: the sha256 there is not "
                "the file's"
            )
    try:
        cfg = ModelConfig.from_dict(json.loads(contents["config"]))
        tensors = load_tensors(contents["weights"])
        with torch.random.fork_rng(devices=[]):  # loading draws nothing from the caller's numbers
            model = PMT(cfg)
        dtypes = {tensors[name].dtype for name, _ in model.named_parameters()}
        if len(dtypes) == 1:
            model.to(dtypes.pop())
        model.load_state_dict(tensors)
    except (ConfigError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())[:300]
        raise ModelFolderError(f"{folder} is not a model this version can read: {why}") from error
    return model.to(gpu_or_cpu() if device == "auto" else device)


def _read_manifest(folder: Path) -> dict[str, dict[str, str]]:
    if folder.is_file():
        raise ModelFolderError(f"{folder} is a file; give the folder it lies in")
    if not folder.is_dir():
        raise ModelFolderError(f"there is no model folder {folder}")
    if not (folder / MANIFEST).is_file():
        inside = (folder / "model" / MANIFEST).is_file()
        hint = f"; did you mean {folder / 'model'}?" if inside else ""
        raise ModelFolderError(
            f"{folder} is not a progmem model folder: it has no {MANIFEST}{hint}"
        )
    try:
        manifest = json.loads(_read(folder, MANIFEST))
        if manifest["format"] != FORMAT:
            raise ModelFolderError(
                f"{folder} has format {manifest['format']!r}; this version reads {FORMAT!r}"
            )
        files = {role: dict(manifest["files"][role]) for role in ROLES}
        good = all(_is_ours(file["name"]) and file["sha256"] for file in files.values())
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ModelFolderError(f"{folder / MANIFEST} is damaged: {error!r}") from error
    if not good or any("/" in file["name"] for file in files.values()):
        raise ModelFolderError(f"{folder / MANIFEST} is damaged: it names other files")
    return files


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise ModelFolderError(f"{folder / name} cannot be read: {error.strerror}") from error
