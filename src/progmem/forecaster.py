"""Forecasts of a user's own series from a frozen encoder, with the spread of past errors.

For each column and horizon, a ridge regression uses the last token of the window that ends at a
moment and the column's recent values. The encoder is given, or trained on the series first.

Shapes: T samples, C channels an encoder sees, F columns, P samples of past, H horizon, D width,
q quantiles, n moments, K values a ridge uses.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from progmem import artifact, legacy
from progmem.artifact import Artifact, noted, shaped
from progmem.config import LONGEST_TRAINING_WINDOW, is_real, read_config
from progmem.data.dates import (
    COVARIATES,
    ONE_SAMPLE,
    next_dates,
    step_of,
    time_covariates,
)
from progmem.data.forecast_sets import ForecastData, moments
from progmem.data.own_series import DatedValues, as_dated_values
from progmem.data.reader import Recording
from progmem.encoding import Encoder
from progmem.errors import ArtifactError, InputError
from progmem.files import check_output
from progmem.model import saving
from progmem.model.pmt import PMT
from progmem.probes.forecast import (
    ALPHAS,
    PADDING,
    Errors,
    ErrorSums,
    OriginFeatures,
    Origins,
    Ridge,
    choose_ridge,
    device_of,
    forecast_origins,
    future_values,
    residual_quantiles,
    ridge_path,
    rmse_plus_mae,
    sliding_features,
    sliding_windows,
)
from progmem.probes.own_data import fingerprint
from progmem.series import check_count

if TYPE_CHECKING:
    import pandas as pd


PENALTIES = (*ALPHAS, 1e4, 1e5, 1e6)  # the last leave little but a mean or the newest value


class Column(NamedTuple):
    """How a column is predicted."""

    gaps: str  # of GAPS
    ridge: Ridge


def newest_before(values: Tensor) -> Tensor:
    """Values (1, T, 1) with the newest one before it in place of each that is missing."""
    place = torch.arange(values.shape[1], device=values.device)[:, None]
    seen = torch.where(values[0].isnan(), 0, place).cummax(0).values  # (T, 1)
    return values.gather(1, seen[None])


# what stands for a missing value: the newest one before it, or 0, which is the column's mean
GAPS: dict[str, Callable[[Tensor], Tensor]] = {"newest": newest_before, "mean": Tensor.nan_to_num}


def knowledge(token: Tensor, values: Tensor, origins: Origins, context: int) -> Tensor:
    """What a column is predicted from, (n, D+P+1): tokens (n, D), and its own values.

    These are ``values`` (1, T, 1) in the windows that end at ``origins``, 0 where missing.
    """
    instance, time = (torch.from_numpy(index).to(values.device) for index in origins)
    own = sliding_windows(values, context)[instance, time, :, 0]  # (n, P+1)
    return torch.cat([token, own.nan_to_num(0.0)], dim=1)


def fit_column(x: Sequence[Tensor], y: Sequence[Tensor], context: int) -> tuple[Ridge, Tensor]:
    """The ridge of a column, and (n, H) how far off one without the validation part was on it.

    ``x`` is the `knowledge` of two parts, training and validation, ``y`` (n, H) what followed. The
    second part chooses the penalty and what it draws predictions to; then both are learnt from.
    """
    candidates = [
        (draw, ridge) for draw in (to_the_mean, to_the_newest)
        for ridge in draw(x[0], y[0], PENALTIES, context)
    ]  # fmt: skip
    ridge = choose_ridge([ridge for _, ridge in candidates], x[1], y[1])
    draw = next(draw for draw, one in candidates if one is ridge)
    (whole,) = draw(torch.cat(list(x)), torch.cat(list(y)), [ridge.alpha], context)
    return whole, y[1] - ridge.predict(x[1])


def to_the_mean(x: Tensor, y: Tensor, alphas: Sequence[float], _: int) -> list[Ridge]:
    """Ridges of futures y (n, H) on `knowledge`: a penalty draws predictions to the mean."""
    return ridge_path(x, y, alphas)


def to_the_newest(x: Tensor, y: Tensor, alphas: Sequence[float], context: int) -> list[Ridge]:
    """The same linear functions, but drawn to the newest value: for series without a level."""
    now, past = x[:, -1:], slice(-1 - context, -1)
    x = x.clone()
    x[:, past] -= now
    found = []
    for alpha, weight, bias in ridge_path(x, y - now, alphas):
        weight[-1] += 1 - weight[past].sum(0)  # in terms of the values themselves
        found.append(Ridge(alpha, weight, bias))
    return found


class Fitted(NamedTuple):
    """What one horizon needs."""

    columns: tuple[Column, ...]  # their ridges are of the whole series
    spread: Tensor  # (q, H * F), quantiles of the validation part's residuals, scaled
    tried: Errors  # of ridges that do not know the validation part, on it


class Estimate(NamedTuple):
    """Errors on the validation part, values scaled by the training part."""

    ridge: Errors
    last_value: Errors  # of repeating the newest value that is observed


class PMTForecaster:
    """Dated predictions by a ridge for each column and horizon, from what a series' end tells.

    That is the encoder's last token, which knows of all columns and of the calendar, and the
    column's own values in the window. A penalty draws predictions to the column's mean or to its
    newest value, and a missing value of the past is taken for the newest before it or for the mean,
    whichever is better in the validation part.

    An encoder that is given sees the time covariates and then the columns, as `progmem pretrain`
    gives them to it for a .csv file with a column date; or the columns alone, if it has no channels
    for more. Without one, ``fit`` trains a PMT on the columns of what comes before the validation
    part, for 60 steps, however long the series is.

    Args:
        encoder: frozen; its last token of a window must end with the window (patch stride 1). None:
            ``fit`` trains one.
        context: samples of past that a window shows beside the newest.
        validation: the share at the end of the series that chooses the penalty and shows how far
            off predictions are, by ridges that learn from what comes before it. Those that predict
            learn from the whole.
        quantiles: of those residuals, given with every prediction.
        size: "tiny", "small" or "base": of the encoder that ``fit`` trains, as all that follow.
        seed: the same seed, settings and series give the same encoder, to the bit on a CPU.
        verbose: whether training shows its progress.
        settings: everything else as on the command line, e.g. ``("train.steps=300",)``.

    Example:
        >>> import numpy as np, pandas as pd, progmem
        >>> dates = pd.date_range("2024-01-01", periods=600, freq="h")
        >>> load = pd.Series(2 + np.sin(np.arange(600) * 2 * np.pi / 24), dates, name="kW")
        >>> forecaster = progmem.PMTForecaster(context=48, settings=("train.steps=2",)).fit(load)
        >>> forecaster.predict(horizon=3).round(2)[["kW", "kW 10%", "kW 90%"]]
                               kW  kW 10%  kW 90%
        date
        2024-01-26 00:00:00  2.00    2.00    2.00
        2024-01-26 01:00:00  2.26    2.26    2.26
        2024-01-26 02:00:00  2.50    2.50    2.50
    """

    encoder: Encoder  # given, or once fitted

    def __init__(
        self,
        encoder: Encoder | None = None,
        *,
        context: int = PADDING,
        validation: float = 0.2,
        quantiles: Sequence[float] = (0.1, 0.5, 0.9),
        size: str = "tiny",
        seed: int = 0,
        verbose: bool = False,
        settings: Sequence[str] | None = None,
    ) -> None:
        if isinstance(encoder, str | Path):
            raise InputError(f"give the model itself: progmem.load({str(encoder)!r})")
        if encoder is not None and not callable(getattr(encoder, "encode", None)):
            raise InputError(f"the encoder must have a method encode, as PMT has; got {encoder!r}")
        check_count("context", context)
        if not is_real(validation) or not 0 < validation < 1:
            raise InputError(f"validation must be a share between 0 and 1, got {validation!r}")
        quantiles = tuple(quantiles) if isinstance(quantiles, Iterable) else quantiles
        if not isinstance(quantiles, tuple) or not all(is_real(q) and 0 < q < 1 for q in quantiles):
            raise InputError(f"quantiles must lie between 0 and 1, got {quantiles!r}")
        self.trains = encoder is None  # in fit
        self.owns_encoder = self.trains  # and is saved with it
        self.context, self.validation = int(context), float(validation)
        self.quantiles = tuple(map(float, quantiles))
        self.size, self.seed, self.verbose, self.settings = size, seed, verbose, settings
        if encoder is not None:
            self.encoder = encoder
        self.fitted: dict[int, Fitted] = {}
        self.data: ForecastData | None = None

    def fit(self, series: Any, dates: Any = None) -> "PMTForecaster":
        """Encode a series (T,) or (T, F), NaN where missing, with regular dates or without dates.

        A DataFrame that is indexed by dates needs no others. The encoder is trained before, if none
        was given.
        """
        taken = as_dated_values(series, dates)
        T = len(taken.values)
        end = T - round(self.validation * T)
        if end <= self.context + 1:
            raise InputError(
                f"a training part of {end} samples holds no window of {self.context + 1} with one "
                "to predict; give a longer series or a smaller context"
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
        if self.trains:
            self.encoder = trained_encoder(self, taken, end)
        x = self._seen(taken)[None]  # (1, T, C)
        target = ((taken.values - mean) / scale)[None]
        data = ForecastData("the series", x, target, mean[None], scale[None], taken.columns, bounds)
        everything = Origins(np.zeros(T - self.context, dtype=np.int64), np.arange(self.context, T))
        self.known = OriginFeatures(self.encoder, data, [everything], self.context)
        self.columns, self.dates, self.step = taken.columns, taken.dates, str(step_of(taken.dates))
        self.mean, self.scale, self.data = mean, scale, data
        self.target = torch.as_tensor(target, device=device_of(self.encoder))
        self.fitted = {}
        return self

    def predict(self, horizon: int, series: Any = None, dates: Any = None) -> "pd.DataFrame":
        """The next ``horizon`` samples after the fitted series, or after a newer ``series``.

        One row a date, or a number of a sample; a column for each of the series', and for each of
        its quantiles: the prediction plus that quantile of the residuals the same number of steps
        ahead.
        """
        import pandas as pd

        known = self._known(horizon)
        if series is None:
            if self.data is None:
                raise InputError("give the series to predict from; a kept forecaster has none")
            index, (token, there), target = self.dates, self.known.newest(), self.target
        else:
            taken = as_dated_values(series, dates)
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
            if len(taken.values) <= self.context:
                raise InputError(
                    f"the series has {len(taken.values)} samples; the forecaster looks at the last "
                    f"{self.context + 1}: give them all, NaN where missing"
                )
            index, x = taken.dates, self._seen(taken)[None]
            token, there = sliding_features(self.encoder, x, _end(index), padding=self.context)
            target = torch.as_tensor((taken.values - self.mean) / self.scale)[None]
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
        names = self._names(self.columns)
        return pd.DataFrame(table, index=next_dates(index, horizon), columns=names)

    def estimate(self, horizon: int) -> Estimate:
        """How far off predictions of the validation part are; the penalty was chosen on it."""
        import pandas as pd

        known = self._known(horizon)
        if self.data is None:
            raise InputError("a kept forecaster has no series to be tried on; fit it again")
        origins = self._places("validation", horizon)
        newest = pd.DataFrame(self.data.target[0]).ffill().to_numpy()[origins.time]  # past gaps
        stays = ErrorSums()
        for f in range(len(self.columns)):
            y = future_values(self.target[..., [f]], origins, horizon)
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
        origins = {part: self._places(part, horizon) for part in ("train", "validation")}
        parts = {part: (self.known.at(at), at) for part, at in origins.items()}
        columns, spread, tried = [], [], ErrorSums()
        for f in range(len(self.columns)):
            column, residual = self._fit_column(f, parts, horizon)
            columns.append(column)
            spread.append(residual_quantiles(residual, self.quantiles))  # (q, H)
            tried.add(residual)
        both = torch.stack(spread, dim=2).flatten(1)
        self.fitted[horizon] = Fitted(tuple(columns), both, tried.errors())
        return self.fitted[horizon]

    def _fit_column(
        self, f: int, parts: dict[str, tuple[Tensor, Origins]], horizon: int
    ) -> tuple[Column, Tensor]:
        """How column ``f`` is predicted, and (n, H) how far off that was without validation part.

        A part is the tokens (n, D) of its moments, and these. What stands for missing values of the
        past is chosen as the penalty is.
        """
        values = self.target[..., [f]]  # (1, T, 1)
        y = []
        for part, (_, origins) in parts.items():
            y.append(future_values(values, origins, horizon))
            if not bool((~y[-1].isnan()).any()):
                raise InputError(
                    f"nothing of column {self.columns[f]} is observed in the {part} part "
                    f"{horizon} samples ahead"
                )
        found = []
        for gaps in GAPS if bool(values.isnan().any()) else ("newest",):
            own = GAPS[gaps](values)
            x = [knowledge(token, own, at, self.context) for token, at in parts.values()]
            ridge, residual = fit_column(x, y, self.context)
            found.append((Column(gaps, ridge), residual))
        return min(found, key=lambda one: rmse_plus_mae(one[1]))

    def _places(self, part: str, horizon: int) -> Origins:
        """The moments of a part with ``horizon`` samples ahead at which a value is observed."""
        assert self.data is not None
        origins = forecast_origins(self.data, part, horizon, padding=self.context, limit=None)
        there = self.known.observed(origins)
        there &= ~np.isnan(self.data.target[0, origins.time]).all(1)  # a date alone is not enough
        return Origins(*(index[there] for index in origins))

    def _names(self, columns: Sequence[str]) -> list[str]:
        """Of a prediction's columns: each of the series', then its quantiles."""
        kinds = ["", *(f" {100 * q:g}%" for q in self.quantiles)]
        return [f"{column}{kind}" for column in columns for kind in kinds]

    def _seen(self, taken: DatedValues) -> np.ndarray:
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
        if step_of(taken.dates) == ONE_SAMPLE:
            raise InputError("the model sees time covariates; give the dates of the series")
        return np.concatenate([time_covariates(taken.dates), taken.values], axis=1)

    def save(self, path: str | Path) -> None:
        """Write the horizons fitted so far, without pickle.

        If ``fit`` trained the encoder, ``path`` is a folder, which holds it too; otherwise a file
        without the encoder. A forecaster that was loaded from a folder is saved as one.
        """
        _save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, encoder: Encoder | None = None) -> "PMTForecaster":
        """The forecaster that ``save`` wrote.

        ``encoder`` is the one it was fitted on; a folder has its own. That one then counts as
        given: ``fit`` does not train it again.
        """
        return _load(Path(path), encoder)


def _end(index: "pd.Index") -> Origins:
    """The last moment of a series with these dates."""
    return Origins(np.array([0]), np.array([len(index) - 1]))


# Of the encoder that fit trains. Values without the calendar, tokens of a day, HGCL alone and a
# short training did well on the validation parts of docs/LOG.md; bent time would not fit its hours.
DEFAULTS = (
    "views.preset=gentle", "views.time_warp=0", "views.crop=0", "loss.icl=0", "loss.pcl=0",
    "train.steps=60", "train.batch_size=32", "train.lr=1e-3",
)  # fmt: skip
PARAMETERS = {"size": "model.size", "seed": "train.seed"}


def trained_encoder(forecaster: "PMTForecaster", taken: DatedValues, end: int) -> PMT:
    """An encoder of the columns, trained without labels on the first ``end`` samples."""
    from progmem.estimators import ONE_CHECKPOINT, check_settings, training  # they load slowly
    from progmem.training.pretrain import pretrain

    more = check_settings(forecaster.settings, PARAMETERS)
    given = [f"{name}={getattr(forecaster, key)}" for key, name in PARAMETERS.items()]
    if any(text.startswith("train.epochs=") for text in more):
        given.append("train.steps=null")  # they are in place of the default's steps
    window = max(2, min(forecaster.context + 1, end // 4, LONGEST_TRAINING_WINDOW))
    patch, stride = tokens_of_a_day(taken.dates, forecaster.context, window)
    geometry = [f"model.patch={patch}", f"model.patch_stride={stride}", f"data.longest={window}",
                f"data.window={window}", f"data.hop={max(1, window // 10)}"]  # fmt: skip
    cfg = read_config(None, [ONE_CHECKPOINT, *DEFAULTS, *geometry, *given, *more])
    with training() as folder:
        log = print if forecaster.verbose else None
        recordings = [Recording("the series", taken.values[:end])]
        return pretrain(recordings, folder / "run", cfg, log=log)


def tokens_of_a_day(
    dates: "pd.DatetimeIndex | pd.RangeIndex", context: int, window: int
) -> tuple[int, int]:
    """Patch and patch stride: a day, if one fits well into a window, and an eighth of it.

    The last token of ``context`` + 1 samples ends with them: the patch is made a little longer
    until it does. Where a day does not fit, and without dates, a patch is an eighth of the
    training window.
    """
    import pandas as pd

    day = 0  # samples
    if not isinstance(dates, pd.RangeIndex):
        day = int((dates < dates[0] + pd.Timedelta(days=1)).sum())
    patch = day if 4 <= day <= window // 3 else max(1, window // 8)
    stride = max(1, round(patch / 8))
    return patch + (context + 1 - patch) % stride, stride


ARGUMENTS = ("context", "validation", "quantiles")
FILE = "forecaster.safetensors"  # in the folder of one that trained its encoder
NUMBER = (int, float)


def _save(forecaster: "PMTForecaster", path: Path) -> None:
    """Write the horizons fitted so far."""
    if not forecaster.fitted:
        raise InputError("there is nothing to keep yet; predict or estimate a horizon first")
    if forecaster.owns_encoder:
        from progmem.estimators import check_folder

        assert isinstance(forecaster.encoder, PMT)
        check_folder(path, ("model", FILE), "a forecaster with its encoder")
        forecaster.encoder.save(path / "model")
        path = path / FILE
    else:
        check_output(path)
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


def _load(path: Path, encoder: Encoder | None) -> "PMTForecaster":
    """The forecaster that ``save`` wrote, for the encoder it was fitted on."""
    owns_encoder = path.is_dir() and encoder is None
    if path.is_dir():
        encoder = saving.load(path / "model") if encoder is None else encoder
        path = path / FILE
    if not path.is_file():
        raise InputError(f"there is no forecaster in {path}")
    if encoder is None:
        raise InputError(f"{path} was kept without its encoder; give the one it was fitted on")
    where = f"{path} is not a forecaster this version can read"
    try:
        kept = legacy.read_forecaster(path) or artifact.read(path, "forecaster")
        kept = kept._replace(note=legacy.forecaster_note(kept.note))
        if kept.note.get("encoder") != fingerprint(encoder):
            raise ArtifactError(f"{path} was fitted on the features of another model; fit it again")
        columns = noted(kept.note, "columns", list, where, of=str)
        step = noted(kept.note, "step", str, where)
        arguments: dict[str, Any] = {name: kept.note.get(name) for name in ARGUMENTS}
        found = PMTForecaster(encoder, **arguments)  # which checks them
        fitted = _fitted(kept, found, len(columns), where)
    except ArtifactError as error:
        raise InputError(str(error)) from error
    except InputError as error:  # of an argument
        raise InputError(f"{where}: {error}") from error
    found.columns, found.step, found.fitted = tuple(columns), step, fitted
    found.owns_encoder = owns_encoder
    found.mean, found.scale = (kept.tensors[name].numpy() for name in ("mean", "scale"))
    return found


def _fitted(kept: Artifact, forecaster: "PMTForecaster", F: int, where: str) -> dict[int, "Fitted"]:
    """What each horizon needs, if all of its parts fit together and to the forecaster."""
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
            K = width + forecaster.context + 1
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
