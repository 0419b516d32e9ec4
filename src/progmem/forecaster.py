"""Forecasts of a user's own series from a frozen encoder, with the spread of past errors.

Shapes: T samples, C channels an encoder sees, F columns, P samples of past, H horizon, D width,
q quantiles, n samples.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from progmem import forecaster_file
from progmem.data.dates import COVARIATES, next_dates, step_of, time_covariates
from progmem.data.forecast_sets import ForecastData, moments
from progmem.data.own_series import Dated, take
from progmem.encoding import Encoder
from progmem.errors import InputError
from progmem.fields import is_real
from progmem.forecaster_ridges import GAPS, Column, fit_column, knowledge
from progmem.probes.forecast import Known, futures, samples
from progmem.probes.ridge import (
    Errors,
    Totals,
    distance,
    residual_quantiles,
)
from progmem.probes.sliding import PADDING, Places, device_of, sliding_features
from progmem.series import check_count

if TYPE_CHECKING:
    import pandas as pd


class Fitted(NamedTuple):
    """What one horizon needs."""

    columns: tuple[Column, ...]  # their ridges are of the whole series
    spread: Tensor  # (q, H * F), quantiles of the validation part's residuals, scaled
    tried: Errors  # of ridges that do not know the validation part, on it


class Estimate(NamedTuple):
    """Errors on the validation part, values scaled by the training part."""

    ridge: Errors
    last_value: Errors  # of repeating the newest value that is observed


class Forecaster:
    """Dated predictions by one ridge a column and horizon, from what is known at a series' end.

    That is the encoder's last token, which knows of all columns and of the calendar, and the
    column's own values in the window. A penalty draws predictions to the column's mean or to its
    newest value, and a missing value of the past is taken for the newest before it or for the mean,
    whichever is better in the validation part.

    The encoder sees the time covariates and then the columns, as `progmem pretrain` gives them to
    it for a .csv file with a column date; or the columns alone, if it has no channels for more.

    Args:
        encoder: frozen; its last token of a window must end with the window (patch stride 1).
        padding: samples of past that a window shows beside the newest.
        validation: the share at the end of the series that chooses the penalty and shows how far
            off predictions are, by ridges that learn from what comes before it. Those that predict
            learn from the whole.
        quantiles: of those residuals, given with every prediction.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        padding: int = PADDING,
        validation: float = 0.2,
        quantiles: Sequence[float] = (0.1, 0.5, 0.9),
    ) -> None:
        if isinstance(encoder, str | Path):
            raise InputError(f"give the model itself: progmem.load({str(encoder)!r})")
        if not callable(getattr(encoder, "encode", None)):
            raise InputError(f"the encoder must have a method encode, as PMT has; got {encoder!r}")
        check_count("padding", padding)
        if not is_real(validation) or not 0 < validation < 1:
            raise InputError(f"validation must be a share between 0 and 1, got {validation!r}")
        quantiles = tuple(quantiles) if isinstance(quantiles, Iterable) else quantiles
        if not isinstance(quantiles, tuple) or not all(is_real(q) and 0 < q < 1 for q in quantiles):
            raise InputError(f"quantiles must lie between 0 and 1, got {quantiles!r}")
        self.encoder, self.padding, self.validation = encoder, int(padding), float(validation)
        self.quantiles = tuple(map(float, quantiles))
        self.fitted: dict[int, Fitted] = {}
        self.data: ForecastData | None = None

    def fit(self, series: Any, dates: Any = None) -> "Forecaster":
        """Encode a series (T,) or (T, F), NaN where missing, with regular dates.

        A DataFrame that is indexed by dates needs no others.
        """
        taken = take(series, dates)
        T = len(taken.values)
        end = T - round(self.validation * T)
        if end <= self.padding + 1:
            raise InputError(
                f"a training part of {end} samples holds no window of {self.padding + 1} with one "
                "to predict; give a longer series or a smaller padding"
            )
        names = self._names(taken.columns)
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise InputError(
                f"predictions would have two columns {twice[0]!r}, one of them a quantile; give "
                "quantiles once, or rename the column"
            )
        mean, scale = moments(taken.values[:end], taken.columns)
        bounds = {"train": (0, end), "validation": (end, T)}
        x = self._seen(taken)[None]  # (1, T, C)
        target = ((taken.values - mean) / scale)[None]
        data = ForecastData("the series", x, target, mean[None], scale[None], taken.columns, bounds)
        everything = Places(np.zeros(T - self.padding, dtype=np.int64), np.arange(self.padding, T))
        self.known = Known(self.encoder, data, [everything], self.padding)
        self.columns, self.dates, self.step = taken.columns, taken.dates, str(step_of(taken.dates))
        self.mean, self.scale, self.data = mean, scale, data
        self.target = torch.as_tensor(target, device=device_of(self.encoder))
        self.fitted = {}
        return self

    def predict(self, horizon: int, series: Any = None, dates: Any = None) -> "pd.DataFrame":
        """The next ``horizon`` samples after the fitted series, or after a newer ``series``.

        One row a date; a column for each of the series', and for each of its quantiles: the
        prediction plus that quantile of the residuals the same number of steps ahead.
        """
        import pandas as pd

        known = self._known(horizon)
        if series is None:
            if self.data is None:
                raise InputError("give the series to predict from; a kept forecaster has none")
            index, (token, there), target = self.dates, self.known.newest(), self.target
        else:
            taken = take(series, dates)
            if taken.columns != self.columns:
                raise InputError(
                    f"the series has columns {', '.join(taken.columns)}; the forecaster was fitted "
                    f"on {', '.join(self.columns)}"
                )
            if str(step_of(taken.dates)) != self.step:
                raise InputError(
                    f"the series has steps of {step_of(taken.dates)}; the forecaster was fitted on "
                    f"steps of {self.step}"
                )
            if len(taken.values) <= self.padding:
                raise InputError(
                    f"the series has {len(taken.values)} samples; the forecaster looks at the last "
                    f"{self.padding + 1}: give them all, NaN where missing"
                )
            index, x = taken.dates, self._seen(taken)[None]
            token, there = sliding_features(self.encoder, x, _end(index), padding=self.padding)
            target = torch.as_tensor((taken.values - self.mean) / self.scale)[None]
        if not bool(there.all()) or bool(target[0, -1].isnan().all()):  # dates are always there
            raise InputError(f"nothing is observed at {index[-1]}, the end; cut the series before")
        F, end, target = len(self.columns), _end(index), target.to(token.device)
        each = [
            ridge.predict(knowledge(token, GAPS[gaps](target[..., [f]]), end, self.padding))
            for f, (gaps, ridge) in enumerate(known.columns)
        ]
        centre = torch.stack(each, dim=2).flatten(1)  # (1, H * F), of F times (1, H)
        scaled = torch.cat([centre, centre + known.spread]).reshape(-1, horizon, F).cpu().numpy()
        found = scaled * self.scale + self.mean  # (1+q, H, F)
        table = found.transpose(1, 2, 0).reshape(horizon, -1)
        following = next_dates(index, horizon).rename("date")
        return pd.DataFrame(table, index=following, columns=self._names(self.columns))

    def estimate(self, horizon: int) -> Estimate:
        """How far off predictions of the validation part are; the penalty was chosen on it."""
        import pandas as pd

        known = self._known(horizon)
        if self.data is None:
            raise InputError("a kept forecaster has no series to be tried on; fit it again")
        places = self._places("validation", horizon)
        newest = pd.DataFrame(self.data.target[0]).ffill().to_numpy()[places.time]  # past gaps
        stays = Totals()
        for f in range(len(self.columns)):
            y = futures(self.target[..., [f]], places, horizon)
            stays.add(torch.as_tensor(newest[:, [f]], device=y.device) - y)
        return Estimate(known.tried, stays.errors())

    def _known(self, horizon: int) -> Fitted:
        """The ridges of a horizon, fitted when it is first asked for."""
        check_count("horizon", horizon)
        horizon = int(horizon)
        if horizon in self.fitted:
            return self.fitted[horizon]
        if self.data is None:
            there = ", ".join(map(str, self.fitted)) or "none: call fit"
            raise InputError(f"horizon {horizon} was not fitted; fitted: {there}")
        places = {part: self._places(part, horizon) for part in ("train", "validation")}
        parts = {part: (self.known.at(at), at) for part, at in places.items()}
        columns, spread, tried = [], [], Totals()
        for f in range(len(self.columns)):
            column, residual = self._fit_column(f, parts, horizon)
            columns.append(column)
            spread.append(residual_quantiles(residual, self.quantiles))  # (q, H)
            tried.add(residual)
        both = torch.stack(spread, dim=2).flatten(1)
        self.fitted[horizon] = Fitted(tuple(columns), both, tried.errors())
        return self.fitted[horizon]

    def _fit_column(
        self, f: int, parts: dict[str, tuple[Tensor, Places]], horizon: int
    ) -> tuple[Column, Tensor]:
        """How column ``f`` is predicted, and (n, H) how far off that was without validation part.

        A part is the tokens (n, D) of its moments, and these. What stands for missing values of the
        past is chosen as the penalty is.
        """
        values = self.target[..., [f]]  # (1, T, 1)
        y = []
        for part, (_, places) in parts.items():
            y.append(futures(values, places, horizon))
            if not bool((~y[-1].isnan()).any()):
                raise InputError(
                    f"nothing of column {self.columns[f]} is observed in the {part} part "
                    f"{horizon} samples ahead"
                )
        found = []
        for gaps in GAPS if bool(values.isnan().any()) else ("newest",):
            own = GAPS[gaps](values)
            x = [knowledge(token, own, at, self.padding) for token, at in parts.values()]
            ridge, residual = fit_column(x, y, self.padding)
            found.append((Column(gaps, ridge), residual))
        return min(found, key=lambda one: distance(one[1]))

    def _places(self, part: str, horizon: int) -> Places:
        """The moments of a part with ``horizon`` samples ahead at which a value is observed."""
        assert self.data is not None
        places = samples(self.data, part, horizon, padding=self.padding, most=None)
        there = self.known.there(places)
        there &= ~np.isnan(self.data.target[0, places.time]).all(1)  # a date alone is not enough
        return Places(*(index[there] for index in places))

    def _names(self, columns: Sequence[str]) -> list[str]:
        """Of a prediction's columns: each of the series', then its quantiles."""
        kinds = ["", *(f" {100 * q:g}%" for q in self.quantiles)]
        return [f"{column}{kind}" for column in columns for kind in kinds]

    def _seen(self, taken: Dated) -> np.ndarray:
        """What the encoder sees, (T, C)."""
        F, calendar = taken.values.shape[1], len(COVARIATES)
        channels = getattr(getattr(self.encoder, "cfg", None), "channels", F + calendar)
        if channels not in (F, F + calendar):
            raise InputError(
                f"the series has {F} columns; the model has {channels} channels, which is neither "
                f"{F} nor, with {calendar} time covariates, {F + calendar}"
            )
        if channels == F:
            return taken.values
        return np.concatenate([time_covariates(taken.dates), taken.values], axis=1)

    def save(self, path: str | Path) -> None:
        """Write the horizons fitted so far, without pickle and without the encoder."""
        forecaster_file.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, encoder: Encoder) -> "Forecaster":
        """The forecaster that ``save`` wrote, for the encoder it was fitted on."""
        return forecaster_file.load(Path(path), encoder)


def _end(index: "pd.DatetimeIndex") -> Places:
    """The last moment of a series with these dates."""
    return Places(np.array([0]), np.array([len(index) - 1]))
