"""Forecasting as TS2Vec does it: ridge regressions on the frozen features of a forecast origin.

The feature of origin t is the last token of a window that ends at sample t, so no feature sees the
future, whatever the encoder does inside a window. It predicts the samples t+1 .. t+H. Ridges are
fitted on the training part and their penalty is chosen on the validation part. Errors are those of
the test part, whose features may look back across its first sample. All values are scaled by the
training part.

Shapes: I instances, T samples, C channels, F values, P samples of context, H horizon, n origins,
D width, M outputs, A penalties.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

from progmem.data.forecast_sets import HORIZONS, ForecastData
from progmem.encoding import Encoder
from progmem.errors import InputError
from progmem.missing import already_told
from progmem.progress import Advance, Log, progress
from progmem.series import check_count

ALPHAS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)  # TS2Vec's


class Ridge(NamedTuple):
    """A fitted regression."""

    alpha: float
    weight: Tensor  # (D, M) float64
    bias: Tensor  # (M,) float64

    def predict(self, x: Tensor) -> Tensor:
        return x.to(self.weight.dtype) @ self.weight + self.bias  # (n, M)


class Errors(NamedTuple):
    """Mean squared and mean absolute error over what is observed."""

    mse: float
    mae: float


def ridge_path(
    x: Tensor, y: Tensor, alphas: Sequence[float] = ALPHAS, *, standardise: bool = False
) -> list[Ridge]:
    """Regressions of y (n, M) on x (n, D), one per penalty; the intercept is not penalised.

    With ``standardise`` the penalty is on features of standard deviation 1. NaN in y is missing:
    an output is fitted on the samples that have it. Outputs that are observed at the same samples
    share one eigendecomposition.
    """
    x, y = x.double(), y.double()
    scale = torch.ones_like(x[0])
    if standardise:
        sd = x.std(0, correction=0)
        scale = torch.where(sd > 0, sd, scale)
    x = x / scale
    D, M = x.shape[1], y.shape[1]
    weight, bias = x.new_empty(len(alphas), D, M), x.new_empty(len(alphas), M)
    observed = ~y.isnan()  # (n, M)
    if bool(observed.all()):
        groups = [(slice(None), slice(None))]
    else:
        patterns, group = torch.unique(observed.T, dim=0, return_inverse=True)  # (g, n), (M,)
        groups = [(rows, group == g) for g, rows in enumerate(patterns)]
    for rows, outputs in groups:
        some, wanted = x[rows], y[:, outputs][rows]
        if not len(some):
            raise InputError("nothing to fit: a value is missing in all of the samples")
        x_mean, y_mean = some.mean(0), wanted.mean(0)
        some, wanted = some - x_mean, wanted - y_mean
        values, vectors = torch.linalg.eigh(some.T @ some)
        rotated = vectors.T @ (some.T @ wanted)  # (D, m)
        for a, alpha in enumerate(alphas):
            found = vectors @ (rotated / (values.clamp(min=0) + alpha)[:, None])
            weight[a][:, outputs] = found / scale[:, None]
            bias[a][outputs] = y_mean - x_mean @ found
    return [Ridge(*one) for one in zip(alphas, weight, bias, strict=True)]


def choose_ridge(path: Sequence[Ridge], x: Tensor, y: Tensor) -> Ridge:
    """The regression of least RMSE + MAE on validation samples; the first of equally good ones."""
    return min(path, key=lambda ridge: rmse_plus_mae(ridge.predict(x) - y))


def errors(predicted: Tensor, y: Tensor) -> Errors:
    difference = predicted - y
    return Errors(float(difference.square().nanmean()), float(difference.abs().nanmean()))


def rmse_plus_mae(difference: Tensor) -> float:
    """RMSE + MAE over what is observed, by which TS2Vec's protocol chooses."""
    return float(difference.square().nanmean().sqrt() + difference.abs().nanmean())


class ErrorSums:
    """Errors over what is observed of several tables of differences."""

    def __init__(self) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64)

    def add(self, difference: Tensor) -> None:
        square, size = difference.square().nansum(), difference.abs().nansum()
        self.sums += torch.stack([square, size, (~difference.isnan()).sum()]).cpu()

    def errors(self) -> Errors:
        square, size, count = self.sums.tolist()
        return Errors(square / count, size / count)


PADDING = 200  # P, as TS2Vec
MAX_SAMPLES = 2**17  # samples of windows given to the encoder at a time


class Origins(NamedTuple):
    """Forecast origins: the newest sample that a forecast knows."""

    instance: np.ndarray  # (n,)
    time: np.ndarray  # (n,)


class Features(NamedTuple):
    """One vector per origin."""

    values: Tensor  # (n, D) float32
    observed: Tensor  # (n,) bool: whether the origin itself has an observed value


def sliding_windows(x: Tensor, padding: int) -> Tensor:
    """Each sample with the ``padding`` samples before it: a view (I, T, P+1, C) of (I, T, C).

    Samples before the first one of a series are missing.
    """
    missing = x.new_full((x.shape[0], padding, x.shape[2]), torch.nan)
    padded = torch.cat([missing, x], dim=1)  # (I, P+T, C)
    return padded.unfold(1, padding + 1, 1).transpose(2, 3)  # (I, T, P+1, C)


def sliding_features(
    encoder: Encoder,
    x: np.ndarray,
    origins: Origins,
    *,
    padding: int = PADDING,
    advance: Advance | None = None,
) -> Features:
    """Features of some origins of series (I, T, C); ``advance`` is told how many are done."""
    device = device_of(encoder)
    view = sliding_windows(torch.as_tensor(x, dtype=torch.float64, device=device), padding)
    values, observed = [], []
    for part in _chunks(origins, MAX_SAMPLES // (padding + 1)):
        instance, time = (torch.from_numpy(index).to(device) for index in part)
        with already_told():
            z = encoder.encode(view[instance, time])  # of windows (b, P+1, C)
        end = int(z.token_spans[-1, 1])
        if end != padding + 1:
            raise InputError(
                f"the encoder's last token of a window of {padding + 1} samples ends after {end}: "
                "its feature would miss the newest sample; train with model.patch_stride=1"
            )
        values.append(z.tokens[:, -1].float())
        observed.append(z.token_mask[:, -1])
        if advance is not None:
            advance(len(part.time))
    return Features(torch.cat(values), torch.cat(observed))


def device_of(encoder: Any) -> torch.device:
    """The device of an encoder's parameters; the CPU where it has none."""
    first = next(encoder.parameters(), None) if isinstance(encoder, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


def _chunks(origins: Origins, size: int) -> Iterator[Origins]:
    for first in range(0, len(origins.time), max(1, size)):
        part = slice(first, first + max(1, size))
        yield Origins(origins.instance[part], origins.time[part])


MAX_ORIGINS = 100_000  # for fitting or choosing a ridge, as TS2Vec
MAX_PREDICTIONS = 2**24  # predicted numbers held at a time
HEADS = {"ridge": False, "ridge, standardised": True}  # are the features scaled to sd 1?


class TestErrors(NamedTuple):
    """Errors on scaled values, as papers print them, and in the units of the data."""

    mse: float
    mae: float
    mse_raw: float
    mae_raw: float


def forecast_origins(
    data: ForecastData, part: str, horizon: int, *, padding: int, limit: int | None = MAX_ORIGINS
) -> Origins:
    """The origins in a part whose next ``horizon`` samples lie in it, at most ``limit`` of them.

    The first ``padding`` samples of the training part are left out: their windows are not full.
    """
    check_count("horizon", horizon)
    start, end = data.bounds[part]
    first = start + padding if part == "train" else start
    if end - horizon <= first:
        raise InputError(
            f"horizon {horizon} does not fit into the {part} part of {data.name}: of {end - start} "
            f"samples {max(0, end - first - 1)} can be ahead"
        )
    time = np.tile(np.arange(first, end - horizon), len(data.x))
    instance = np.repeat(np.arange(len(data.x)), end - horizon - first)
    if limit is not None and len(time) > limit:
        kept, _ = train_test_split(np.arange(len(time)), train_size=limit, random_state=0)
        time, instance = time[kept], instance[kept]
    return Origins(instance, time)


def future_values(target: Tensor, origins: Origins, horizon: int) -> Tensor:
    """The next ``horizon`` samples after each origin, (n, H * F), of a target (I, T, F)."""
    view = target.unfold(1, horizon, 1)  # (I, T-H+1, F, H)
    instance, time = (torch.from_numpy(index).to(target.device) for index in origins)
    return view[instance, time + 1].transpose(1, 2).flatten(1)


def probe_forecast(
    encoder: Encoder,
    data: ForecastData,
    *,
    horizons: Sequence[int] = HORIZONS,
    padding: int = PADDING,
    log: Log | None = None,
) -> dict[str, Any]:
    """Every error of an encoder on a series, for a json file.

    Only origins that some ridge needs are encoded.
    """
    limits = {"train": MAX_ORIGINS, "validation": MAX_ORIGINS, "test": None}
    plan = {
        (part, horizon): forecast_origins(data, part, horizon, padding=padding, limit=limit)
        for part, limit in limits.items()
        for horizon in horizons
    }
    lists = list(plan.values())
    count = len(
        np.unique(np.concatenate([at.instance * data.x.shape[1] + at.time for at in lists]))
    )
    with progress(f"encoding {count} windows of {padding + 1} samples", count, log=log) as advance:
        features = OriginFeatures(encoder, data, lists, padding, advance)
    target = torch.as_tensor(data.target, device=device_of(encoder))
    scores: dict[str, Any] = {}
    for horizon in horizons:
        if log is not None:
            log(f"fitting ridges, {horizon} samples ahead ...")
        train, validation = (
            (features.at(plan[part, horizon]), future_values(target, plan[part, horizon], horizon))
            for part in ("train", "validation")
        )
        for head, standardise in HEADS.items():
            ridge = choose_ridge(ridge_path(*train, standardise=standardise), *validation)
            found = {
                "alpha": ridge.alpha,
                "validation": errors(ridge.predict(validation[0]), validation[1])._asdict(),
                "test": score(
                    ridge, features, data, target, plan["test", horizon], horizon
                )._asdict(),
            }
            scores.setdefault(str(horizon), {})[head] = found
    return {"set": data.name, "padding": padding, "encoded": len(features.keys), "scores": scores}


class OriginFeatures:
    """Features of several lists of origins; an origin that is in several is encoded once."""

    def __init__(
        self,
        encoder: Encoder,
        data: ForecastData,
        lists: Sequence[Origins],
        padding: int,
        advance: Advance | None = None,
    ) -> None:
        self.length = data.x.shape[1]
        self.keys = np.unique(np.concatenate([self._key(origins) for origins in lists]))
        origins = Origins(*np.divmod(self.keys, self.length))
        self.features: Features = sliding_features(
            encoder, data.x, origins, padding=padding, advance=advance
        )

    def at(self, origins: Origins) -> Tensor:
        """Features (n, D)."""
        return self.features.values[self._rows(origins)]

    def observed(self, origins: Origins) -> np.ndarray:
        """Whether each origin has an observed value, (n,)."""
        return self.features.observed[self._rows(origins)].cpu().numpy()

    def newest(self) -> Features:
        """Of the last sample of the last instance."""
        return Features(*(part[-1:] for part in self.features))

    def _rows(self, origins: Origins) -> Tensor:
        rows = torch.from_numpy(np.searchsorted(self.keys, self._key(origins)))
        return rows.to(self.features.values.device)

    def _key(self, origins: Origins) -> np.ndarray:
        return origins.instance * self.length + origins.time


def score(
    ridge: Ridge,
    features: OriginFeatures,
    data: ForecastData,
    target: Tensor,
    origins: Origins,
    horizon: int,
) -> TestErrors:
    """Errors over all ``origins`` of the test part, some at a time."""
    scale = torch.as_tensor(data.scale, device=target.device)  # (I, F)
    size = max(1, MAX_PREDICTIONS // (horizon * target.shape[2]))
    scaled, raw = ErrorSums(), ErrorSums()
    for first in range(0, len(origins.time), size):
        some = Origins(*(index[first : first + size] for index in origins))
        difference = ridge.predict(features.at(some)) - future_values(target, some, horizon)
        factor = scale[torch.from_numpy(some.instance).to(scale.device)].repeat(1, horizon)
        scaled.add(difference)
        raw.add(difference * factor)
    return TestErrors(*scaled.errors(), *raw.errors())
