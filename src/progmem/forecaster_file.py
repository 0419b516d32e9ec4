"""A fitted Forecaster as one file: safetensors, with a note and a checksum among its tensors."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from progmem.encoding import Encoder
from progmem.errors import InputError
from progmem.files import write_file
from progmem.forecaster_ridges import Column
from progmem.probes.own_data import fingerprint
from progmem.probes.ridge import Errors, Ridge
from progmem.probes.sliding import device_of

if TYPE_CHECKING:
    from progmem.forecaster import Forecaster

FORMAT = "progmem forecaster 3"
ARGUMENTS = ("padding", "validation", "quantiles")


def save(forecaster: "Forecaster", path: Path) -> None:
    """Write the horizons fitted so far."""
    if not forecaster.fitted:
        raise InputError("there is nothing to keep yet; predict or estimate a horizon first")
    tensors = {name: torch.as_tensor(getattr(forecaster, name)) for name in ("mean", "scale")}
    for horizon, (columns, spread, _) in forecaster.fitted.items():
        weight = torch.stack([column.ridge.weight for column in columns])
        bias = torch.stack([column.ridge.bias for column in columns])
        parts = {"weight": weight, "bias": bias, "spread": spread}
        tensors |= {f"{horizon}.{k}": v.cpu().contiguous() for k, v in parts.items()}
    note = {
        "format": FORMAT,
        "encoder": fingerprint(forecaster.encoder),
        "columns": forecaster.columns,
        "step": forecaster.step,
        "gaps": {h: [c.gaps for c in known.columns] for h, known in forecaster.fitted.items()},
        "alphas": {
            h: [c.ridge.alpha for c in known.columns] for h, known in forecaster.fitted.items()
        },
        "tried": {h: known.tried for h, known in forecaster.fitted.items()},
        **{name: getattr(forecaster, name) for name in ARGUMENTS},
    }
    tensors["note"] = _as_tensor(json.dumps(note).encode())
    tensors["sha256"] = _digest(tensors)
    write_file(path, save_tensors(tensors))


def _as_tensor(data: bytes) -> Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


def _digest(tensors: dict[str, Tensor]) -> Tensor:
    return _as_tensor(hashlib.sha256(save_tensors(tensors)).digest())


def load(path: Path, encoder: Encoder) -> "Forecaster":
    from progmem.forecaster import Fitted, Forecaster

    if not path.is_file():
        raise InputError(f"there is no forecaster in {path}")
    try:
        tensors = load_tensors(path.read_bytes())
        note = json.loads(bytes(tensors["note"].tolist()))
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} cannot be read as a forecaster: {error}") from error
    if note.get("format") != FORMAT:
        raise InputError(f"{path} is not a forecaster this version can read")
    if not torch.equal(tensors.pop("sha256", torch.empty(0)), _digest(tensors)):
        raise InputError(f"{path} is damaged: what it holds is not what was written")
    if note["encoder"] != fingerprint(encoder):
        raise InputError(f"{path} was fitted on the features of another model; fit it again")
    found = Forecaster(encoder, **{name: note[name] for name in ARGUMENTS})
    found.columns, found.step = tuple(note["columns"]), note["step"]
    found.mean, found.scale = (tensors[name].numpy() for name in ("mean", "scale"))
    for horizon, alphas in note["alphas"].items():
        weight, bias, spread = (
            tensors[f"{horizon}.{k}"].to(device_of(encoder)) for k in ("weight", "bias", "spread")
        )
        ridges = [Ridge(*one) for one in zip(alphas, weight, bias, strict=True)]
        columns = tuple(map(Column, note["gaps"][horizon], ridges))
        found.fitted[int(horizon)] = Fitted(columns, spread, Errors(*note["tried"][horizon]))
    return found
