"""A fitted encoder as a folder: its model and, in a file beside it, a note of its parameters.

The note is written last and holds the sha256 of the model's file: both are of one save.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from progmem import artifact, legacy
from progmem.artifact import noted
from progmem.errors import ArtifactError, ModelFolderError
from progmem.files import UNFINISHED
from progmem.model import saving

if TYPE_CHECKING:
    from progmem.estimator import PMTEncoder

FILE = "encoder.safetensors"
_OURS = ("model", FILE, legacy.ENCODER_NOTE)


def save(encoder: "PMTEncoder", folder: Path) -> None:
    """Write ``encoder`` into ``folder``, over one that was there before."""
    if folder.is_file():
        raise ModelFolderError(f"{folder} is a file; save an encoder into a folder of its own")
    there = [path.name for path in folder.iterdir()] if folder.exists() else []
    if any(name not in _OURS and not name.startswith(UNFINISHED) for name in there):
        raise ModelFolderError(
            f"{folder} holds other files; save an encoder into a folder of its own"
        )
    sha256 = saving.save(encoder.model_, folder / "model")
    note = {
        "params": {name: _plain(value) for name, value in encoder.get_params().items()},
        "n_features_in": encoder.n_features_in_,
        "feature_names_in": list(getattr(encoder, "feature_names_in_", [])),
        "channel_names": list(getattr(encoder, "channel_names_", [])),
        "model": sha256,
    }
    artifact.write(folder / FILE, "encoder", {}, note)
    (folder / legacy.ENCODER_NOTE).unlink(missing_ok=True)  # it no longer counts


def load(folder: Path, kind: type["PMTEncoder"]) -> "PMTEncoder":
    """The encoder of class ``kind`` that ``save`` wrote."""
    path, where = folder / FILE, f"{folder} is not an encoder this version can read"
    try:
        found = artifact.read(path, "encoder") if path.exists() else legacy.read_encoder(folder)
        if found is None:
            raise ModelFolderError(
                f"{folder} is not the folder of a saved encoder: it has no {FILE}"
            )
        model = saving.read(folder / "model")
        if found.note.get("model") != model.sha256:
            raise ModelFolderError(f"{folder}: model/ and {FILE} are not of one save; save again")
        params = noted(found.note, "params", dict, where)
        columns = noted(found.note, "n_features_in", int, where)
        names = noted(found.note, "feature_names_in", list, where, of=str)
        channels = noted(found.note, "channel_names", list, where, of=(str, int, float))
    except ArtifactError as error:
        raise ModelFolderError(str(error)) from error
    try:
        if params.get("settings") is not None:
            params["settings"] = tuple(params["settings"])
        encoder = kind(**params)
    except TypeError as error:
        raise ModelFolderError(f"{where}: {artifact.in_one_line(error)}") from error
    encoder.model_ = saving.build(model, folder / "model")
    encoder.channels_, encoder.n_features_in_ = encoder.model_.cfg.channels, columns
    if names:
        encoder.feature_names_in_ = np.array(names, dtype=object)
    if channels:
        encoder.channel_names_ = channels
    return encoder


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value  # a search gives numpy's
