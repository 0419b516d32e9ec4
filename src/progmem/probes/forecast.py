"""Forecasting as TS2Vec does it: ridge regressions on frozen features of a moment.

The feature at t is the last token of a window that ends there, so no feature sees the future,
whatever the encoder does inside a window. It predicts t+1 .. t+H. Ridges learn from the training
part, their penalty is chosen on the validation part, errors are those of the test part, whose
features may look back across its first sample. All on values scaled by the training part.

Shapes: I instances, T samples, C channels, F values, P samples of past, H horizon, n places,
D width, M outputs, A penalties, q quantiles.
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
    """Regressions of y (n, M) on x (n, D), one a penalty; the intercept is not penalised.

    With ``standardise`` the penalty is on features of standard deviation 1. NaN in y is missing:
    an output is fitted on the samples that have it. Outputs that have the same ones share one
    eigendecomposition.
    """
    x, y = x.double(), y.double()
    unit = torch.ones_like(x[0])
    if standardise:
        sd = x.std(0, correction=0)
        unit = torch.where(sd > 0, sd, unit)
    x = x / unit
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
            raise InputError("nothing to learn from: a value is missing in all of the samples")
        x_mean, y_mean = some.mean(0), wanted.mean(0)
        some, wanted = some - x_mean, wanted - y_mean
        values, vectors = torch.linalg.eigh(some.T @ some)
        turned = vectors.T @ (some.T @ wanted)  # (D, m)
        for a, alpha in enumerate(alphas):
            found = vectors @ (turned / (values.clamp(min=0) + alpha)[:, None])
            weight[a][:, outputs] = found / unit[:, None]
            bias[a][outputs] = y_mean - x_mean @ found
    return [Ridge(*one) for one in zip(alphas, weight, bias, strict=True)]


def choose(path: Sequence[Ridge], x: Tensor, y: Tensor) -> Ridge:
    """The regression of least RMSE + MAE on validation samples; of equally good ones the first."""
    return min(path, key=lambda ridge: distance(ridge.predict(x) - y))


def errors(predicted: Tensor, y: Tensor) -> Errors:
    difference = predicted - y
    return Errors(float(difference.square().nanmean()), float(difference.abs().nanmean()))


def distance(difference: Tensor) -> float:
    """RMSE + MAE over what is observed, by which TS2Vec's protocol chooses."""
    return float(difference.square().nanmean().sqrt() + difference.abs().nanmean())


class Totals:
    """Errors over what is observed of several tables of differences."""

    def __init__(self) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64)

    def add(self, difference: Tensor) -> None:
        square, size = difference.square().nansum(), difference.abs().nansum()
        self.sums += torch.stack([square, size, (~difference.isnan()).sum()]).cpu()

    def errors(self) -> Errors:
        square, size, count = self.sums.tolist()
        return Errors(square / count, size / count)


def residual_quantiles(residual: Tensor, quantiles: Sequence[float]) -> Tensor:
    """Quantiles (q, M) of what is observed of (n, M); NaN where nothing is."""
    q = torch.tensor(quantiles, dtype=residual.dtype, device=residual.device)
    size = max(1, 2**23 // len(residual))  # torch takes 2**24 numbers at a time
    return torch.cat(
        [part.nanquantile(q, dim=0) for part in torch.split(residual, size, dim=1)], dim=1
    )


PADDING = 200  # P, as TS2Vec
SAMPLES_AT_ONCE = 2**17  # samples of windows given to the encoder at a time


class Places(NamedTuple):
    """Moments of instances."""

    instance: np.ndarray  # (n,)
    time: np.ndarray  # (n,)


class Features(NamedTuple):
    """One vector a place."""

    values: Tensor  # (n, D) float32
    there: Tensor  # (n,) bool: something was observed at that moment


def windows(x: Tensor, padding: int) -> Tensor:
    """The ``padding`` samples before each sample, and it: a view (I, T, P+1, C) of (I, T, C).

    Before its first sample a series is missing.
    """
    before = x.new_full((x.shape[0], padding, x.shape[2]), torch.nan)
    padded = torch.cat([before, x], dim=1)  # (I, P+T, C)
    return padded.unfold(1, padding + 1, 1).transpose(2, 3)  # (I, T, P+1, C)


def sliding_features(
    encoder: Encoder, x: np.ndarray, places: Places, *, padding: int = PADDING
) -> Features:
    """Features of some moments of series (I, T, C)."""
    device = device_of(encoder)
    view = windows(torch.as_tensor(x, dtype=torch.float64, device=device), padding)
    values, there = [], []
    for part in _pieces(places, SAMPLES_AT_ONCE // (padding + 1)):
        instance, time = (torch.from_numpy(index).to(device) for index in part)
        z = encoder.encode(view[instance, time])  # of windows (b, P+1, C)
        end = int(z.token_spans[-1, 1])
        if end != padding + 1:
            raise InputError(
                f"the encoder's last token of a window of {padding + 1} samples ends after {end}: "
                "its feature would not know the newest; train with model.patch_stride=1"
            )
        values.append(z.tokens[:, -1].float())
        there.append(z.token_mask[:, -1])
    return Features(torch.cat(values), torch.cat(there))


def device_of(encoder: Any) -> torch.device:
    """Where an encoder computes; the CPU for one that does not say."""
    first = next(encoder.parameters(), None) if isinstance(encoder, nn.Module) else None
    return torch.device("cpu") if first is None else first.device


def _pieces(places: Places, size: int) -> Iterator[Places]:
    for first in range(0, len(places.time), max(1, size)):
        part = slice(first, first + max(1, size))
        yield Places(places.instance[part], places.time[part])


MOST = 100_000  # samples a ridge is fitted on or chosen by, as TS2Vec
AT_ONCE = 2**24  # predicted numbers held at a time
HEADS = {"ridge": False, "ridge, standardised": True}  # are the features scaled to sd 1?


class TestErrors(NamedTuple):
    """Errors on scaled values, as papers print them, and in the units of the data."""

    mse: float
    mae: float
    mse_raw: float
    mae_raw: float


def samples(
    data: ForecastData, part: str, horizon: int, *, padding: int, most: int | None = MOST
) -> Places:
    """The moments of a part whose next ``horizon`` samples lie in it, at most ``most`` of them.

    The first ``padding`` of the training part are left out: their windows are not full.
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
    if most is not None and len(time) > most:
        kept, _ = train_test_split(np.arange(len(time)), train_size=most, random_state=0)
        time, instance = time[kept], instance[kept]
    return Places(instance, time)


def futures(target: Tensor, places: Places, horizon: int) -> Tensor:
    """The next ``horizon`` samples of each place, (n, H * F), of a target (I, T, F)."""
    view = target.unfold(1, horizon, 1)  # (I, T-H+1, F, H)
    instance, time = (torch.from_numpy(index).to(target.device) for index in places)
    return view[instance, time + 1].transpose(1, 2).flatten(1)


def probe_forecast(
    encoder: Encoder,
    data: ForecastData,
    *,
    horizons: Sequence[int] = HORIZONS,
    padding: int = PADDING,
) -> dict[str, Any]:
    """Every error of an encoder on a series, for a json file.

    Only moments that some ridge needs are encoded.
    """
    parts = {"train": MOST, "validation": MOST, "test": None}
    plan = {
        (part, horizon): samples(data, part, horizon, padding=padding, most=most)
        for part, most in parts.items()
        for horizon in horizons
    }
    known = Known(encoder, data, list(plan.values()), padding)
    target = torch.as_tensor(data.target, device=device_of(encoder))
    scores: dict[str, Any] = {}
    for horizon in horizons:
        train, validation = (
            (known.at(plan[part, horizon]), futures(target, plan[part, horizon], horizon))
            for part in ("train", "validation")
        )
        for head, standardise in HEADS.items():
            ridge = choose(ridge_path(*train, standardise=standardise), *validation)
            found = {
                "alpha": ridge.alpha,
                "validation": errors(ridge.predict(validation[0]), validation[1])._asdict(),
                "test": score(ridge, known, data, target, plan["test", horizon], horizon)._asdict(),
            }
            scores.setdefault(str(horizon), {})[head] = found
    return {"set": data.name, "padding": padding, "encoded": len(known.keys), "scores": scores}


class Known:
    """Features of the moments of some lists of places, each encoded once."""

    def __init__(
        self, encoder: Encoder, data: ForecastData, wanted: Sequence[Places], padding: int
    ) -> None:
        self.length = data.x.shape[1]
        self.keys = np.unique(np.concatenate([self._key(places) for places in wanted]))
        places = Places(*np.divmod(self.keys, self.length))
        self.features: Features = sliding_features(encoder, data.x, places, padding=padding)

    def at(self, places: Places) -> Tensor:
        """Features (n, D)."""
        return self.features.values[self._rows(places)]

    def there(self, places: Places) -> np.ndarray:
        """Whether anything was observed, (n,)."""
        return self.features.there[self._rows(places)].cpu().numpy()

    def newest(self) -> Features:
        """The last moment of the last instance."""
        return Features(*(part[-1:] for part in self.features))

    def _rows(self, places: Places) -> Tensor:
        rows = torch.from_numpy(np.searchsorted(self.keys, self._key(places)))
        return rows.to(self.features.values.device)

    def _key(self, places: Places) -> np.ndarray:
        return places.instance * self.length + places.time


def score(
    ridge: Ridge, known: Known, data: ForecastData, target: Tensor, places: Places, horizon: int
) -> TestErrors:
    """Errors over all ``places`` of the test part, some at a time."""
    scale = torch.as_tensor(data.scale, device=target.device)  # (I, F)
    size = max(1, AT_ONCE // (horizon * target.shape[2]))
    scaled, raw = Totals(), Totals()
    for first in range(0, len(places.time), size):
        some = Places(*(index[first : first + size] for index in places))
        difference = ridge.predict(known.at(some)) - futures(target, some, horizon)
        unit = scale[torch.from_numpy(some.instance).to(scale.device)].repeat(1, horizon)
        scaled.add(difference)
        raw.add(difference * unit)
    return TestErrors(*scaled.errors(), *raw.errors())
