"""The forecasts of one series: what is learnt of it for each horizon, and how far off that was.

Shapes: T samples, C channels an encoder sees, F columns, P samples of past, H horizon, D width,
q quantiles, n moments.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from progmem.data.dates import COVARIATES, ONE_SAMPLE, next_dates, step_of, time_covariates
from progmem.data.forecast_sets import ForecastData, moments
from progmem.data.own_series import DatedValues
from progmem.encoding import Encoder
from progmem.errors import InputError
from progmem.forecasting import conformal
from progmem.forecasting.naive import repeat, seasonal_periods
from progmem.forecasting.ridges import (
    GAPS,
    VALUES_ALONE,
    WITH_ENCODER,
    Column,
    Trial,
    fit_column,
    gain_of_encoder,
    knowledge,
    without_token,
)
from progmem.probes.forecast import (
    OriginFeatures,
    Origins,
    device_of,
    forecast_origins,
    future_values,
    rmse_plus_mae,
    sliding_features,
)
from progmem.progress import Advance

if TYPE_CHECKING:
    import pandas as pd

PARTS = ("train", "choosing", "last")
MAX_MOMENTS = 10_000  # of a series that are encoded and learnt from


class ColumnEstimate(NamedTuple):
    """How well a column of the last part was predicted, in squared standard deviations."""

    used: str  # `WITH_ENCODER` or `VALUES_ALONE`
    why: str
    coverage: float  # of the interval from the lowest to the highest quantile
    mse: dict[str, float]  # by way of forecasting; "forecast" is what is used


class Fitted(NamedTuple):
    """What one horizon needs."""

    columns: tuple[Column, ...]  # their ridges are of the whole series
    spread: Tensor  # (q, H * F), conformal quantiles of the errors made, scaled
    estimates: tuple[ColumnEstimate, ...] = ()  # a kept forecaster has none


class FittedSeries:
    """What a forecaster knows of one series: its scale, and what each horizon needs."""

    columns: tuple[str, ...]
    step: str
    mean: np.ndarray  # (F,), of the training part
    scale: np.ndarray  # (F,)
    data: ForecastData | None = None  # None where it was kept: nothing more can be learnt of it
    scaled: bool = False  # whether the encoder sees scaled values

    def __init__(self, context: int, quantiles: Sequence[float]) -> None:
        self.context, self.quantiles = context, tuple(quantiles)
        self.fitted: dict[int, Fitted] = {}

    def learn(self, taken: DatedValues, end: int, last: int) -> None:
        """Take the parts of a series, which begin at ``end`` and ``last``, and scale its values."""
        T = len(taken.values)
        self.mean, self.scale = moments(taken.values[:end], taken.columns)
        self.taken, self.columns, self.step = taken, taken.columns, str(step_of(taken.dates))
        self.bounds = {"train": (0, end), "choosing": (end, last), "last": (last, T)}

    def scaled_values(self, taken: DatedValues) -> np.ndarray:
        return np.asarray((taken.values - self.mean) / self.scale)  # (T, F)

    @property
    def apart(self) -> int:
        """Samples between two moments that are encoded."""
        return -(-len(self.taken.values) // MAX_MOMENTS)

    def times(self) -> np.ndarray:
        """The moments that are encoded: the newest and, evenly, those before it."""
        return np.arange(len(self.taken.values) - 1, self.context - 1, -self.apart)[::-1].copy()

    def encode(self, encoder: Encoder, advance: Advance) -> None:
        """Encode the moments of the series."""
        x = self.seen(self.taken, encoder)[None]  # (1, T, C)
        target = self.scaled_values(self.taken)[None]
        data = ForecastData(
            "the series", x, target, self.mean[None], self.scale[None], self.columns, self.bounds
        )
        times = self.times()
        origins = Origins(np.zeros(len(times), dtype=np.int64), times)
        self.known = OriginFeatures(encoder, data, [origins], self.context, advance)
        self.target = torch.as_tensor(target, device=device_of(encoder))
        self.data = data

    def seen(self, taken: DatedValues, encoder: Encoder) -> np.ndarray:
        """What the encoder sees, (T, C)."""
        values = self.scaled_values(taken) if self.scaled else taken.values
        F, calendar = values.shape[1], len(COVARIATES)
        channels = getattr(getattr(encoder, "cfg", None), "channels", F + calendar)
        if channels not in (F, F + calendar):
            raise InputError(
                f"the series has {F} columns; the model has {channels} channels, which is neither "
                f"{F} nor, with {calendar} time covariates, {F + calendar}"
            )
        if channels == F:
            return values
        if step_of(taken.dates) == ONE_SAMPLE:
            raise InputError("the model sees time covariates; give the dates of the series")
        return np.concatenate([time_covariates(taken.dates), values], axis=1)

    def fit_horizon(self, horizon: int, advance: Advance | None = None) -> Fitted:
        """What a horizon needs, fitted when it is first asked for; ``advance`` counts columns."""
        if horizon in self.fitted:
            return self.fitted[horizon]
        if self.data is None:
            there = ", ".join(map(str, self.fitted)) or "none: call fit"
            raise InputError(f"horizon {horizon} was not fitted; fitted: {there}")
        origins = {part: self.places(part, horizon) for part in PARTS}
        parts = [(self.known.at(at), at) for at in origins.values()]
        columns, spread, estimates = [], [], []
        for f in range(len(self.columns)):
            column, errors, estimate = self._fit_column(f, parts, horizon)
            columns.append(column)
            found = conformal.error_quantiles(errors, self.quantiles, step=self.apart)
            spread.append(found)  # (q, H)
            estimates.append(estimate)
            if advance is not None:
                advance(1)
        both = torch.as_tensor(np.stack(spread, axis=2).reshape(len(self.quantiles), -1))
        both = both.to(self.target.device)
        self.fitted[horizon] = Fitted(tuple(columns), both, tuple(estimates))
        return self.fitted[horizon]

    def _fit_column(
        self, f: int, parts: Sequence[tuple[Tensor, Origins]], horizon: int
    ) -> tuple[Column, np.ndarray, ColumnEstimate]:
        """How column ``f`` is predicted, the errors (n, H) made before, and how good it is.

        A part is the tokens (n, D) of its moments, and these. What stands for missing values of the
        past is chosen as the penalty is.
        """
        values = self.target[..., [f]]  # (1, T, 1)
        y = [future_values(values, origins, horizon) for _, origins in parts]
        for part, follows in zip(PARTS, y, strict=True):
            if not bool((~follows.isnan()).any()):
                raise InputError(
                    f"nothing of column {self.columns[f]} is observed in the {part} part "
                    f"{horizon} samples ahead"
                )
        width = parts[0][0].shape[1]
        tried: dict[str, list[Trial]] = {WITH_ENCODER: [], VALUES_ALONE: []}
        for gaps in GAPS if bool(values.isnan().any()) else ("newest",):
            own = GAPS[gaps](values)
            x = [knowledge(token, own, at, self.context) for token, at in parts]
            tried[WITH_ENCODER].append(fit_column(x, y, self.context, gaps=gaps))
            x = [part[:, width:] for part in x]
            alone = fit_column(x, y, self.context, gaps=gaps)
            tried[VALUES_ALONE].append(without_token(alone, width))
        trials = {
            used: min(found, key=lambda trial: rmse_plus_mae(trial.choosing))
            for used, found in tried.items()
        }
        gain = gain_of_encoder(trials[WITH_ENCODER], trials[VALUES_ALONE])
        used = WITH_ENCODER if gain.sure else VALUES_ALONE
        trial, times = trials[used], parts[-1][1].time
        choosing, last = (part.cpu().numpy() for part in (trial.choosing, trial.last))
        mse = {"forecast": _mse(last)}
        mse |= {name: _mse(one.last.cpu().numpy()) for name, one in trials.items()}
        true = y[-1].cpu().numpy()
        periods = seasonal_periods(self.taken.dates, self.bounds["last"][0] // 2)
        naives = {"repeat last": 1, **{f"seasonal {period}": period for period in periods}}
        for name, period in naives.items():
            naive = repeat(self.target[0, :, f].cpu().numpy(), times, horizon, period=period)
            mse[name] = _mse(naive - true)
        covered = float("nan")
        if len(self.quantiles) > 1:
            covered = conformal.coverage(choosing, last, times, self.quantiles, step=self.apart)
        estimate = ColumnEstimate(used, str(gain), covered, mse)
        return trial.column, np.concatenate([choosing, last]), estimate

    def places(self, part: str, horizon: int) -> Origins:
        """The moments of a part with ``horizon`` samples ahead at which a value is observed."""
        assert self.data is not None
        origins = forecast_origins(self.data, part, horizon, padding=self.context, limit=None)
        origins = Origins(*(index[np.isin(origins.time, self.times())] for index in origins))
        there = self.known.observed(origins)
        there &= ~np.isnan(self.data.target[0, origins.time]).all(1)  # a date alone is not enough
        return Origins(*(index[there] for index in origins))

    def predict(self, horizon: int, encoder: Encoder, newer: DatedValues | None) -> "pd.DataFrame":
        """The next ``horizon`` samples of the series, or of a newer one, with their quantiles."""
        import pandas as pd

        known = self.fit_horizon(horizon)
        if newer is None:
            if self.data is None:
                raise InputError("give the series to predict from; a kept forecaster has none")
            index, (token, there), target = self.taken.dates, self.known.newest(), self.target
        else:
            self._check_newer(newer)
            index, x = newer.dates, self.seen(newer, encoder)[None]
            token, there = sliding_features(encoder, x, _end(index), padding=self.context)
            target = torch.as_tensor(self.scaled_values(newer))[None]
        if not bool(there.all()) or bool(target[0, -1].isnan().all()):  # dates are always there
            raise InputError(f"nothing is observed at {index[-1]}, the end; cut the series before")
        F, end, target = len(self.columns), _end(index), target.to(token.device)
        each = [
            ridge.predict(knowledge(token, GAPS[gaps](target[..., [f]]), end, self.context))
            for f, (gaps, ridge) in enumerate(known.columns)
        ]
        centre = torch.stack(each, dim=2).flatten(1)  # (1, H * F), of F times (1, H)
        scaled = torch.cat([centre, centre + known.spread]).reshape(-1, horizon, F).cpu().numpy()
        found = scaled * self.scale + self.mean  # (1+q, H, F)
        table = found.transpose(1, 2, 0).reshape(horizon, -1)
        names = predicted_names(self.columns, self.quantiles)
        return pd.DataFrame(table, index=next_dates(index, horizon), columns=names)

    def _check_newer(self, newer: DatedValues) -> None:
        if newer.columns != self.columns:
            raise InputError(
                f"the series has columns {', '.join(newer.columns)}; the forecaster was fitted "
                f"on {', '.join(self.columns)}"
            )
        if str(step_of(newer.dates)) != self.step:
            raise InputError(
                f"the series has steps of {step_of(newer.dates)}; the forecaster was fitted on "
                f"steps of {self.step}"
            )
        if len(newer.values) <= self.context:
            raise InputError(
                f"the series has {len(newer.values)} samples; the forecaster looks at the last "
                f"{self.context + 1}: give them all, NaN where missing"
            )

    def estimate(self, horizon: int) -> "pd.DataFrame":
        """How the last part was predicted, one row a column."""
        import pandas as pd

        found = self.fit_horizon(horizon).estimates
        if not found:
            raise InputError("a kept forecaster has no series to be tried on; fit it again")
        rows = [
            {"used": one.used, "why": one.why, "coverage": one.coverage, **one.mse} for one in found
        ]
        return pd.DataFrame(rows, index=pd.Index(self.columns, name="column"))


def predicted_names(columns: Sequence[str], quantiles: Sequence[float]) -> list[str]:
    """Of a prediction's columns: each of the series', then its quantiles."""
    kinds = ["", *(f" {100 * q:g}%" for q in quantiles)]
    return [f"{column}{kind}" for column in columns for kind in kinds]


def _end(index: "pd.Index") -> Origins:
    """The last moment of a series with these dates."""
    return Origins(np.array([0]), np.array([len(index) - 1]))


def _mse(errors: np.ndarray) -> float:
    return float(np.nanmean(errors**2))
