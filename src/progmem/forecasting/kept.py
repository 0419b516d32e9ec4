"""A fitted forecaster on disk: one file a series and, where it trained one, its encoder."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from progmem import artifact, legacy
from progmem.artifact import Artifact, noted, shaped
from progmem.encoding import Encoder
from progmem.errors import ArtifactError, InputError
from progmem.files import check_output, make_folder, read_whole, unfinished
from progmem.forecasting.ridges import GAPS, Column
from progmem.forecasting.series import Fitted, FittedSeries
from progmem.model import saving
from progmem.probes.forecast import Ridge, device_of
from progmem.probes.own_data import fingerprint

if TYPE_CHECKING:
    from progmem.forecaster import PMTForecaster

FILE = "forecaster.safetensors"  # in a folder, of one series
MANY = "series-{}.safetensors"  # of many, by number
NUMBER = (int, float)


def save(forecaster: "PMTForecaster", path: Path) -> None:
    """Write the horizons fitted so far."""
    series = getattr(forecaster, "series_", {})
    if not series or not all(one.fitted for one in series.values()):
        raise InputError("there is nothing to keep yet; predict or estimate a horizon first")
    files = {"": FILE}
    if forecaster.many_:
        files = {name: MANY.format(i) for i, name in enumerate(series)}
    if forecaster.owns_encoder_ or forecaster.many_:
        check_folder(path)
        make_folder(path.parent)
        with unfinished(path) as new:
            new.mkdir()
            if forecaster.owns_encoder_:
                own: Any = forecaster.encoder_  # a PMT
                own.save(new / "model")
            for name, kept in files.items():
                _write(forecaster, name, new / kept)
    else:
        check_output(path)
        _write(forecaster, "", path)


def check_folder(path: Path) -> None:
    """Refuse a folder that holds other files than a forecaster's."""
    from progmem import estimators  # which load slowly

    before = [found.name for found in path.glob(MANY.format("*"))]
    estimators.check_folder(path, ("model", FILE, *before), "a forecaster with its encoder")


def _write(forecaster: "PMTForecaster", name: str, path: Path) -> None:
    one = forecaster.series_[name]
    tensors = {part: torch.as_tensor(getattr(one, part)) for part in ("mean", "scale")}
    for horizon, (columns, spread, _) in one.fitted.items():
        tensors |= {
            f"{horizon}.weight": torch.stack([column.ridge.weight for column in columns]),
            f"{horizon}.bias": torch.stack([column.ridge.bias for column in columns]),
            f"{horizon}.spread": spread,
        }
    fitted = one.fitted.items()
    note = {
        "encoder": fingerprint(forecaster.encoder_),
        "series": name if forecaster.many_ else None,
        "columns": one.columns,
        "step": one.step,
        "scaled": one.scaled,
        "gaps": {h: [column.gaps for column in known.columns] for h, known in fitted},
        "alphas": {h: [column.ridge.alpha for column in known.columns] for h, known in fitted},
        "context": one.context,
        "validation": float(forecaster.validation),
        "quantiles": one.quantiles,
    }
    artifact.write(path, "forecaster", tensors, note)


def load(path: Path, encoder: Encoder | None) -> "PMTForecaster":
    """The forecaster that ``save`` wrote, for the encoder it was fitted on."""
    return read_whole(path, lambda: _load(path, encoder))


def _load(path: Path, encoder: Encoder | None) -> "PMTForecaster":
    files, owns_encoder = [path], False
    if path.is_dir():
        owns_encoder = encoder is None and (path / "model").is_dir()
        encoder = saving.load(path / "model") if owns_encoder else encoder
        files = sorted(path.glob(MANY.format("*")), key=_number) or [path / FILE]
    for file in files:
        if not file.is_file():
            raise InputError(f"there is no forecaster in {file}")
    if encoder is None:
        raise InputError(f"{path} was kept without its encoder; give the one it was fitted on")
    forecaster: PMTForecaster | None = None
    for file in files:
        forecaster = _read(file, encoder, forecaster)
    assert forecaster is not None
    forecaster.owns_encoder_ = owns_encoder
    return forecaster


def _number(path: Path) -> tuple[int, str]:
    text = path.stem.removeprefix("series-")
    return (int(text) if text.isdigit() else -1, text)


def _read(path: Path, encoder: Encoder, other: "PMTForecaster | None") -> "PMTForecaster":
    """A forecaster with the series of a file, beside those of ``other``."""
    from progmem.forecaster import PMTForecaster

    where = f"{path} is not a forecaster this version can read"
    try:
        found = legacy.read_forecaster(path) or artifact.read(path, "forecaster")
        note = legacy.forecaster_note(found.note)
        found = found._replace(note=note)
        if note.get("encoder") != fingerprint(encoder):
            raise ArtifactError(f"{path} was fitted on the features of another model; fit it again")
        columns = noted(note, "columns", list, where, of=str)
        step = noted(note, "step", str, where)
        arguments: dict[str, Any] = {
            name: note.get(name) for name in ("context", "validation", "quantiles")
        }
        forecaster = PMTForecaster(encoder, **arguments)
        forecaster.check_params()
        context = noted(note, "context", int, where)
        one = FittedSeries(context, forecaster.quantiles)
        one.fitted = _fitted(found, one, encoder, len(columns), where)
    except ArtifactError as error:
        raise InputError(str(error)) from error
    except InputError as error:  # of an argument
        raise InputError(f"{where}: {error}") from error
    one.columns, one.step, one.scaled = tuple(columns), step, note.get("scaled") is True
    one.mean, one.scale = (found.tensors[name].numpy() for name in ("mean", "scale"))
    name = note.get("series")
    forecaster.encoder_, forecaster.series_ = encoder, {}
    if other is not None:
        forecaster = other
    forecaster.many_ = isinstance(name, str)
    forecaster.series_[name if isinstance(name, str) else ""] = one
    return forecaster


def _fitted(
    kept: Artifact, one: FittedSeries, encoder: Encoder, F: int, where: str
) -> dict[int, Fitted]:
    """What each horizon needs, if all of its parts fit together and to the series."""
    q, device = len(one.quantiles), device_of(encoder)
    width = getattr(getattr(encoder, "cfg", None), "dim", None)  # an encoder need not say it
    alphas, gaps = (noted(kept.note, name, dict, where, of=list) for name in ("alphas", "gaps"))
    if not alphas.keys() == gaps.keys() or not all(map(_is_horizon, alphas)):
        raise ArtifactError(f"{where}: its horizons are {', '.join(alphas)[:60]}")
    expected = {"mean": shaped(F), "scale": shaped(F)}
    for text in alphas:
        weight = kept.tensors.get(f"{text}.weight", torch.empty(0))
        H, K = int(text), weight.shape[1] if weight.ndim == 3 else 0
        if width is not None:
            K = width + one.context + 1
        expected |= {
            f"{text}.weight": shaped(F, K, H),
            f"{text}.bias": shaped(F, H),
            f"{text}.spread": shaped(q, H * F),
        }
        for values, good in (
            (alphas[text], lambda v: isinstance(v, NUMBER)),
            (gaps[text], lambda v: isinstance(v, str) and v in GAPS),
        ):
            if len(values) != F or not all(map(good, values)):
                raise ArtifactError(f"{where}: its note has {str(values)[:60]} for horizon {H}")
    artifact.check_tensors(kept.tensors, expected, where)
    found = {}
    for text in alphas:
        weight, bias, spread = (
            kept.tensors[f"{text}.{part}"].to(device) for part in ("weight", "bias", "spread")
        )
        ridges = [Ridge(*ridge) for ridge in zip(alphas[text], weight, bias, strict=True)]
        found[int(text)] = Fitted(tuple(map(Column, gaps[text], ridges)), spread)
    return found


def _is_horizon(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and str(int(text)) == text
