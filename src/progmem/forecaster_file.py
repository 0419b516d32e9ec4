"""A fitted Forecaster as one file.

Shapes: F columns, H horizon, K values a ridge knows, q quantiles.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from progmem import artifact, legacy
from progmem.artifact import Artifact, noted, shaped
from progmem.encoding import Encoder
from progmem.errors import ArtifactError, InputError
from progmem.forecaster_ridges import GAPS, Column
from progmem.probes.own_data import fingerprint
from progmem.probes.ridge import Errors, Ridge
from progmem.probes.sliding import device_of

if TYPE_CHECKING:
    from progmem.forecaster import Fitted, Forecaster

ARGUMENTS = ("padding", "validation", "quantiles")
NUMBER = (int, float)


def save(forecaster: "Forecaster", path: Path) -> None:
    """Write the horizons fitted so far."""
    if not forecaster.fitted:
        raise InputError("there is nothing to keep yet; predict or estimate a horizon first")
    tensors = {name: torch.as_tensor(getattr(forecaster, name)) for name in ("mean", "scale")}
    for horizon, (columns, spread, _) in forecaster.fitted.items():
        tensors |= {
            f"{horizon}.weight": torch.stack([column.ridge.weight for column in columns]),
            f"{horizon}.bias": torch.stack([column.ridge.bias for column in columns]),
            f"{horizon}.spread": spread,
        }
    fitted = forecaster.fitted.items()
    note = {
        "encoder": fingerprint(forecaster.encoder),
        "columns": forecaster.columns,
        "step": forecaster.step,
        "gaps": {h: [column.gaps for column in known.columns] for h, known in fitted},
        "alphas": {h: [column.ridge.alpha for column in known.columns] for h, known in fitted},
        "tried": {h: known.tried for h, known in fitted},
        **{name: getattr(forecaster, name) for name in ARGUMENTS},
    }
    artifact.write(path, "forecaster", tensors, note)


def load(path: Path, encoder: Encoder) -> "Forecaster":
    """The forecaster that ``save`` wrote, for the encoder it was fitted on."""
    from progmem.forecaster import Forecaster

    if not path.is_file():
        raise InputError(f"there is no forecaster in {path}")
    where = f"{path} is not a forecaster this version can read"
    try:
        kept = legacy.read_forecaster(path) or artifact.read(path, "forecaster")
        if kept.note.get("encoder") != fingerprint(encoder):
            raise ArtifactError(f"{path} was fitted on the features of another model; fit it again")
        columns = noted(kept.note, "columns", list, where, of=str)
        step = noted(kept.note, "step", str, where)
        arguments: dict[str, Any] = {name: kept.note.get(name) for name in ARGUMENTS}
        found = Forecaster(encoder, **arguments)  # which checks them
        fitted = _fitted(kept, found, len(columns), where)
    except ArtifactError as error:
        raise InputError(str(error)) from error
    except InputError as error:  # of an argument
        raise InputError(f"{where}: {error}") from error
    found.columns, found.step, found.fitted = tuple(columns), step, fitted
    found.mean, found.scale = (kept.tensors[name].numpy() for name in ("mean", "scale"))
    return found


def _fitted(kept: Artifact, forecaster: "Forecaster", F: int, where: str) -> dict[int, "Fitted"]:
    """What each horizon needs, if all of its parts fit together and to the forecaster."""
    from progmem.forecaster import Fitted

    q, device = len(forecaster.quantiles), device_of(forecaster.encoder)
    width = getattr(
        getattr(forecaster.encoder, "cfg", None), "dim", None
    )  # an encoder need not say it
    alphas, gaps, tried = (
        noted(kept.note, name, dict, where, of=list) for name in ("alphas", "gaps", "tried")
    )
    if not alphas.keys() == gaps.keys() == tried.keys() or not all(map(_is_horizon, alphas)):
        raise ArtifactError(f"{where}: its horizons are {', '.join(alphas)[:60]}")
    expected = {"mean": shaped(F), "scale": shaped(F)}
    for text in alphas:
        weight = kept.tensors.get(f"{text}.weight", torch.empty(0))
        H, K = int(text), weight.shape[1] if weight.ndim == 3 else 0
        if width is not None:
            K = width + forecaster.padding + 1
        expected |= {
            f"{text}.weight": shaped(F, K, H),
            f"{text}.bias": shaped(F, H),
            f"{text}.spread": shaped(q, H * F),
        }
        for values, size, good in (
            (alphas[text], F, lambda v: isinstance(v, NUMBER)),
            (gaps[text], F, lambda v: isinstance(v, str) and v in GAPS),
            (tried[text], 2, lambda v: isinstance(v, NUMBER)),
        ):
            if len(values) != size or not all(map(good, values)):
                raise ArtifactError(f"{where}: its note has {str(values)[:60]} for horizon {H}")
    artifact.check_tensors(kept.tensors, expected, where)
    found = {}
    for text in alphas:
        weight, bias, spread = (
            kept.tensors[f"{text}.{part}"].to(device) for part in ("weight", "bias", "spread")
        )
        ridges = [Ridge(*one) for one in zip(alphas[text], weight, bias, strict=True)]
        columns = tuple(map(Column, gaps[text], ridges))
        found[int(text)] = Fitted(columns, spread, Errors(*tried[text]))
    return found


def _is_horizon(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and str(int(text)) == text
