"""PMTForecaster: dated predictions of a user's own series, with intervals, in one call.

For each column and horizon, a ridge regression uses the column's recent values and, where that is
surely better, the last token of a frozen encoder for the window that ends at a moment. The encoder
is given, or trained on the series first.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator

from progmem.config import is_real
from progmem.data.own_series import DatedValues, as_many_series
from progmem.encoding import Encoder
from progmem.errors import InputError
from progmem.forecasting import kept
from progmem.forecasting.naive import seasonal_periods
from progmem.forecasting.own_encoder import trained_encoder
from progmem.forecasting.series import FittedSeries, predicted_names
from progmem.probes.forecast import PADDING
from progmem.progress import Log, progress
from progmem.series import check_count

if TYPE_CHECKING:
    import pandas as pd

LONGEST_CONTEXT = 400  # samples, where nobody has said how many


class PMTForecaster(BaseEstimator):  # type: ignore[misc]  # no types in sklearn
    """Dated predictions by a ridge for each column and horizon, from what a series' end tells.

    That is the column's own values in a window and, where it helps, the last token of an encoder,
    which knows of all columns. Whether it helps, the penalty, and what stands for a missing value
    are chosen on a part of the series before the last part. On the last part nothing is chosen:
    `estimate` tells how far off predictions of it were, beside those that anyone can make.

    An encoder that is given sees the time covariates and then the columns, as `progmem pretrain`
    gives them to it for a .csv file with a column date; or the columns alone, if it has no channels
    for more. Without one, ``fit`` trains a PMT on the columns of what comes before both parts, for
    40 steps, however long the series is.

    Args:
        encoder: frozen; its last token of a window must end with the window (patch stride 1). None:
            ``fit`` trains one.
        context: samples of past that a window shows beside the newest. None: 200, or as many as a
            day has, up to 400; fewer where the series is short.
        validation: the share of the last part, and of the part before it that chooses. The ridges
            that predict learn from the whole series.
        quantiles: of the errors made in both parts, conformal, given with every prediction.
        size: "tiny", "small" or "base": of the encoder that ``fit`` trains, as all that follow.
        seed: the same seed, settings and series give the same encoder, to the bit on a CPU.
        verbose: whether it says what it is doing.
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

    encoder_: Encoder  # as given, or as ``fit`` has trained it
    series_: dict[str, FittedSeries]
    many_: bool
    owns_encoder_: bool  # and saves it

    def __init__(
        self,
        encoder: Encoder | None = None,
        *,
        context: int | None = None,
        validation: float = 0.2,
        quantiles: Sequence[float] = (0.1, 0.5, 0.9),
        size: str = "tiny",
        seed: int = 0,
        verbose: bool = False,
        settings: Sequence[str] | None = None,
    ) -> None:
        self.encoder = encoder
        self.context = context
        self.validation = validation
        self.quantiles = quantiles
        self.size = size
        self.seed = seed
        self.verbose = verbose
        self.settings = settings

    def check_params(self) -> None:
        """Refuse parameters that cannot be; those of the training are refused by it."""
        if isinstance(self.encoder, str | Path):
            raise InputError(f"give the model itself: progmem.load({str(self.encoder)!r})")
        if self.encoder is not None and not callable(getattr(self.encoder, "encode", None)):
            raise InputError(
                f"the encoder must have a method encode, as PMT has; got {self.encoder!r}"
            )
        if self.context is not None:
            check_count("context", self.context)
        if not is_real(self.validation) or not 0 < self.validation < 0.5:
            raise InputError(
                f"validation must be a share between 0 and 0.5, got {self.validation!r}"
            )
        listed = isinstance(self.quantiles, list | tuple | np.ndarray)
        if not listed or not all(is_real(q) and 0 < q < 1 for q in self.quantiles):
            raise InputError(f"quantiles must lie between 0 and 1, got {self.quantiles!r}")
        if not len(self.quantiles):
            raise InputError(f"give at least one quantile, such as 0.5, got {self.quantiles!r}")

    @property
    def log(self) -> Log | None:
        return print if self.verbose else None

    def fit(self, series: Any, dates: Any = None) -> "PMTForecaster":
        """Encode a series (T,) or (T, F), NaN where missing, with regular dates or without dates.

        A DataFrame that is indexed by dates needs no others. Files, long tables and whatever else
        `progmem.read` takes or returns are read by its rules. Many series of the same columns are a
        mapping from names to them, too. The encoder is trained before, if none was given.
        """
        self.check_params()
        taken = as_many_series(series, dates)
        many = "" not in taken
        context = self._context(taken)
        found, parts = {}, []
        for name, one in taken.items():
            try:
                found[name], part = self._prepared(one, context)
            except InputError as error:
                raise InputError(f"{name}: {error}" if many else str(error)) from error
            parts.append(part)
        encoder = self.encoder
        if encoder is None:
            first = next(iter(taken.values()))
            encoder = trained_encoder(
                parts, first.dates, context=context, size=self.size, seed=self.seed,
                settings=self.settings, log=self.log,
            )  # fmt: skip
        count = sum(len(one.times()) for one in found.values())
        told = f"encoding {count} windows of {context + 1} samples"
        with progress(told, count, log=self.log) as advance:
            for fitted in found.values():
                fitted.encode(encoder, advance)
        self.encoder_, self.series_, self.many_ = encoder, found, many
        self.owns_encoder_ = self.encoder is None
        return self

    def _context(self, taken: Mapping[str, DatedValues]) -> int:
        """As given, or what suits the dates and the shortest of the series."""
        if self.context is not None:
            return int(self.context)
        shortest = min(taken.values(), key=lambda one: len(one.values))
        day = next(iter(seasonal_periods(shortest.dates, LONGEST_CONTEXT)), 0)
        end = self._ends(len(shortest.values))[0]
        return max(1, min(max(PADDING, day), end // 3))

    def _ends(self, T: int) -> tuple[int, int]:
        """Where the training part of T samples ends, and where the last part begins."""
        size = round(self.validation * T)
        return T - 2 * size, T - size

    def _prepared(self, taken: DatedValues, context: int) -> tuple[FittedSeries, np.ndarray]:
        """A series with its parts and scale, and (T', F) the scaled values of the first part."""
        end, last = self._ends(len(taken.values))
        if end <= context + 1:
            raise InputError(
                f"a training part of {end} samples holds no window of {context + 1} with one "
                "to predict; give a longer series or a smaller context"
            )
        names = predicted_names(taken.columns, self.quantiles)
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise InputError(
                f"predictions would have two columns {twice[0]!r}, one of them a quantile; give "
                "quantiles once, or rename the column"
            )
        found = FittedSeries(context, [float(q) for q in self.quantiles])
        found.scaled = self.encoder is None
        found.learn(taken, end, last)
        return found, found.scaled_values(taken)[:end]

    def predict(
        self, horizon: int | Sequence[int], series: Any = None, dates: Any = None
    ) -> "pd.DataFrame":
        """The next ``horizon`` samples after the fitted series, or after newer ``series``.

        One row a date, or a number of a sample; a column for each of the series', and for each of
        its quantiles: the prediction plus that quantile of the errors the same number of steps
        ahead. Several horizons are one below the other, by a level ``horizon`` of the index; many
        series likewise, by a level ``series``.
        """
        if series is None and dates is not None:
            raise InputError("dates go with a newer series; give that too, or leave them out")
        newer = {} if series is None else as_many_series(series, dates)
        known = getattr(self, "series_", {})
        if newer and known and newer.keys() != known.keys():
            raise InputError(
                f"fitted on the series {', '.join(known) or 'given alone'}, got "
                f"{', '.join(newer) or 'one alone'}"
            )
        return self._each(
            horizon, lambda name, one, h: one.predict(h, self.encoder_, newer.get(name))
        )

    def estimate(self, horizon: int | Sequence[int]) -> "pd.DataFrame":
        """How far off predictions of the last part were, one row a column.

        ``used`` is "encoder + values" or "values alone", ``why`` what the encoder was worth on the
        part before; ``coverage`` the share of values between the lowest and the highest quantile.
        The others are mean squared errors in standard deviations of the training part: of what is
        used (``forecast``), with and without the encoder, of repeating the newest value and of the
        values one season before.
        """
        return self._each(horizon, lambda _, one, h: one.estimate(h))

    def _each(
        self,
        horizon: int | Sequence[int],
        call: Callable[[str, FittedSeries, int], "pd.DataFrame"],
    ) -> "pd.DataFrame":
        """Tables of each series and horizon, joined; levels of the index say of which."""
        import pandas as pd

        several = isinstance(horizon, list | tuple)
        asked: list[Any] = list(horizon) if isinstance(horizon, list | tuple) else [horizon]
        for one in asked:
            check_count("horizon", one)
        horizons: list[int] = [int(one) for one in dict.fromkeys(asked)]
        if not horizons:
            raise InputError("give at least one horizon")
        if not hasattr(self, "series_"):
            raise InputError(f"horizon {horizons[0]} was not fitted; fitted: none: call fit")
        todo = [
            (name, known, h)
            for name, known in self.series_.items()
            for h in horizons
            if h not in known.fitted
        ]
        count = sum(len(known.columns) for _, known, _ in todo)
        told = f"fitting and trying horizon {' and '.join(map(str, horizons))}"
        with progress(told, count, log=self.log) as advance:
            for name, known, h in todo:
                try:
                    known.fit_horizon(h, advance)
                except InputError as error:
                    raise InputError(f"{name}: {error}" if self.many_ else str(error)) from error
        tables = {
            name: pd.concat({h: call(name, one, h) for h in horizons}, names=["horizon"])
            if several
            else call(name, one, horizons[0])
            for name, one in self.series_.items()
        }
        return pd.concat(tables, names=["series"]) if self.many_ else tables[""]

    def save(self, path: str | Path) -> None:
        """Write the horizons fitted so far, without pickle.

        If ``fit`` trained the encoder, ``path`` is a folder, which holds it too; otherwise a file
        without the encoder. Many series are always a folder. A forecaster that was loaded from a
        folder is saved as one.
        """
        kept.save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, encoder: Encoder | None = None) -> "PMTForecaster":
        """The forecaster that ``save`` wrote.

        ``encoder`` is the one it was fitted on; a folder has its own. That one then counts as
        given: ``fit`` does not train it again.
        """
        return kept.load(Path(path), encoder)
