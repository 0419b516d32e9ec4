"""A fitted encoder as a folder: its model and a note of its parameters. Nothing in it can run code.

The note is written last and holds the checksum of the model's manifest: both are of one save.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from progmem.errors import ModelFolderError
from progmem.files import UNFINISHED, to_json, write_file
from progmem.model import saving
from progmem.model.saving import MANIFEST

if TYPE_CHECKING:
    from progmem.estimator import PMTEncoder

NOTE = "estimator.json"
FORMAT = "progmem estimator 1"


def save(encoder: "PMTEncoder", folder: Path) -> None:
    """Write ``encoder`` into ``folder``, over one that was there before."""
    if folder.is_file():
        raise ModelFolderError(f"{folder} is a file; save an encoder into a folder of its own")
    there = [path.name for path in folder.iterdir()] if folder.exists() else []
    if any(name not in ("model", NOTE) and not name.startswith(UNFINISHED) for name in there):
        raise ModelFolderError(
            f"{folder} holds other files; save an encoder into a folder of its own"
        )
    encoder.model_.save(folder / "model")
    facts = {
        "params": {name: _plain(value) for name, value in encoder.get_params().items()},
        "n_features_in": encoder.n_features_in_,
        "feature_names_in": list(getattr(encoder, "feature_names_in_", [])),
        "channel_names": list(getattr(encoder, "channel_names_", [])),
        "model": _digest((folder / "model" / MANIFEST).read_bytes()),
    }
    note = {"format": FORMAT, "sha256": _digest(to_json(facts)), "facts": facts}
    write_file(folder / NOTE, to_json(note))


def load(folder: Path, kind: type["PMTEncoder"]) -> "PMTEncoder":
    """The encoder of class ``kind`` that ``save`` wrote."""
    if not (folder / NOTE).is_file():
        raise ModelFolderError(f"{folder} is not the folder of a saved encoder: it has no {NOTE}")
    try:
        note = json.loads((folder / NOTE).read_bytes())
        found, facts = note["format"], note["facts"]
        whole = _digest(to_json(facts)) == note["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelFolderError(f"{folder / NOTE} is damaged: {error!r}") from error
    if found != FORMAT:
        raise ModelFolderError(f"{folder} has format {found!r}; this version reads {FORMAT!r}")
    if not whole:
        raise ModelFolderError(f"{folder / NOTE} is damaged: its sha256 is not the one in it")
    model = saving.load(folder / "model")
    if _digest((folder / "model" / MANIFEST).read_bytes()) != facts["model"]:
        raise ModelFolderError(f"{folder}: model/ and {NOTE} are not of one save; save again")
    params = facts["params"]
    if params["settings"] is not None:
        params["settings"] = tuple(params["settings"])
    encoder = kind(**params)
    encoder.model_, encoder.channels_ = model, model.cfg.channels
    encoder.n_features_in_ = facts["n_features_in"]
    if facts["feature_names_in"]:
        encoder.feature_names_in_ = np.array(facts["feature_names_in"], dtype=object)
    if facts["channel_names"]:
        encoder.channel_names_ = facts["channel_names"]
    return encoder


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value  # a search gives numpy's
