"""Series to forecast: the input of an encoder, the target, and the parts of the data.

Shapes: I instances, T samples, C channels an encoder sees, F values to predict.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from progmem.data.datasets import load
from progmem.data.dates import COVARIATES, time_covariates
from progmem.data.recordings import Recording
from progmem.data.sets import DatedSeries
from progmem.errors import InputError

HORIZONS = (24, 48, 168, 336, 720)


class Variant(NamedTuple):
    """A way to forecast a file: its target alone, all columns jointly, or each on its own."""

    file: str  # the data set that it is made from
    form: str  # "target", "joint" or "instances"


VARIANTS = {
    "ETTh1": Variant("ETTh1", "joint"),
    "ETTh1-uni": Variant("ETTh1", "target"),
    "Electricity-uni": Variant("Electricity", "target"),
    "Electricity321": Variant("Electricity321", "instances"),
}


@dataclass(frozen=True)
class ForecastData:
    """Instances of one length and calendar.

    ``x`` begins with the time covariates and is not scaled: encoders scale their input. Only where
    columns are instances, which share a channel, each is scaled by its own training part.
    """

    name: str
    x: np.ndarray  # (I, T, C)
    target: np.ndarray  # (I, T, F), scaled by the training part
    mean: np.ndarray  # (I, F), of the training part
    scale: np.ndarray  # (I, F)
    columns: tuple[str, ...]
    bounds: dict[str, tuple[int, int]]  # train, validation, test: [start, end) in samples

    def training_recordings(self) -> list[Recording]:
        """The training part of each instance, as `pretrain` takes it."""
        start, end = self.bounds["train"]
        columns = [self.columns] if len(self.x) == 1 else [(column,) for column in self.columns]
        names = [self.name] if len(self.x) == 1 else [f"{self.name} {c}" for c in self.columns]
        return [
            Recording(name, x[start:end], columns=(*COVARIATES, *own))
            for name, x, own in zip(names, self.x, columns, strict=True)
        ]

    def with_channels(self, channels: int) -> "ForecastData":
        """The input for a model of ``channels`` channels: with the covariates, or without them."""
        total, first = self.x.shape[2], len(COVARIATES)
        if channels == total:
            return self
        if channels != total - first:
            raise InputError(
                f"{self.name} has {total} channels with its time covariates, {total - first} "
                f"without them, the model has {channels}; pretrain on {self.name}"
            )
        return replace(self, x=self.x[..., first:])


def forecast_set(name: str, data_dir: str | Path | None = None) -> ForecastData:
    """One of ``VARIANTS``, its file found by `progmem.data.datasets`."""
    if name not in VARIANTS:
        raise InputError(f"{name!r} cannot be forecast; known: {', '.join(VARIANTS)}")
    series = load(VARIANTS[name].file, data_dir)
    assert isinstance(series, DatedSeries)
    return as_forecast(series, name, VARIANTS[name].form)


def as_forecast(series: DatedSeries, name: str, form: str) -> ForecastData:
    """``series`` in one of the forms of `Variant`."""
    values, columns = series.values, series.columns  # (T, F)
    if form == "target":
        place = columns.index(series.target)
        values, columns = values[:, [place]], (series.target,)
    start, end = series.bounds["train"]
    mean, scale = moments(values[start:end], columns)
    target, seen = (values - mean) / scale, values
    if form == "instances":
        seen = target
    calendar = time_covariates(series.dates)  # (T, 7)

    def split(array: np.ndarray) -> np.ndarray:
        return array.T[..., None] if form == "instances" else array[None]

    seen, target, mean, scale = (split(a) for a in (seen, target, mean[None], scale[None]))
    calendar = np.broadcast_to(calendar, (len(seen), *calendar.shape))
    x = np.concatenate([calendar, seen], axis=2)
    return ForecastData(name, x, target, mean[:, 0], scale[:, 0], columns, series.bounds)


def moments(values: np.ndarray, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation (F,) of what is observed of (T, F); 1 where nothing varies."""
    seen = np.isfinite(values).any(0)
    if not seen.all():
        raise InputError(
            f"column {columns[int(np.argmin(seen))]} has no value in the training part"
        )
    mean, scale = np.nanmean(values, 0), np.nanstd(values, 0)
    varies = (np.nanmin(values, 0) < np.nanmax(values, 0)) & (scale > 0)
    return mean, np.where(varies, scale, 1.0)  # the mean of equal values has a rounding error
