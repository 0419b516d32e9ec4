"""Dates of a series: whether they are regular, which come next, and their time covariates.

Shapes: T samples.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from progmem import guard
from progmem.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

COVARIATES = ("minute", "hour", "weekday", "day", "day of year", "month", "week")


ONE_SAMPLE = "one sample"  # the step of a series without dates


class Calendar(NamedTuple):
    """When the samples of a recording were taken: the date of the first, the step to the next."""

    start: "pd.Timestamp"
    step: "pd.Timedelta | pd.DateOffset | str | float"  # seconds, if it is a number

    @classmethod
    def of(cls, index: "pd.DatetimeIndex") -> "Calendar":
        """That of regular dates."""
        return cls(index[0], step_of(index))

    def at(self, samples: np.ndarray) -> "pd.DatetimeIndex":
        """The dates of some samples, which are counted from 0."""
        import pandas as pd

        if isinstance(self.step, pd.Timedelta):
            return pd.DatetimeIndex(self.start + samples * self.step)
        if isinstance(self.step, int | float):  # a sample may be a fraction of a nanosecond
            return pd.DatetimeIndex(self.start + pd.to_timedelta(samples * self.step, unit="s"))
        count = int(samples.max()) + 1 if len(samples) else 0
        return pd.date_range(self.start, periods=count, freq=self.step)[samples]

    def texts(self, samples: np.ndarray) -> list[str]:
        """These dates as texts, all of one form, whichever samples they are of."""
        import pandas as pd

        step = self.step.total_seconds() if isinstance(self.step, pd.Timedelta) else self.step
        fractions = isinstance(step, int | float) and step % 1 != 0
        whole = not (fractions or self.start.microsecond or self.start.nanosecond)
        return [
            date.isoformat(" ", "seconds" if whole else "nanoseconds") for date in self.at(samples)
        ]

    def moved(self, samples: int) -> "Calendar":
        """That of what begins so many samples later."""
        return self._replace(start=self.at(np.array([samples]))[0]) if samples else self

    def to_note(self) -> dict[str, Any]:
        """This as json takes it."""
        import pandas as pd

        step: Any = self.step
        if isinstance(step, pd.Timedelta):
            step = {"time": str(step)}
        elif isinstance(step, pd.DateOffset):
            step = {"months": step.kwds["months"]}
        zone = None if self.start.tz is None else str(self.start.tz)
        return {"start": self.start.isoformat(), "zone": zone, "step": step}

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> "Calendar":
        """What `to_note` was made of."""
        import pandas as pd

        start, step = pd.Timestamp(note["start"]), note["step"]
        if note["zone"] is not None:
            start = start.tz_convert(note["zone"])
        if isinstance(step, dict):
            months = step.get("months")
            step = pd.Timedelta(step["time"]) if months is None else pd.DateOffset(months=months)
        return cls(start, step)

    @property
    def rate(self) -> float | None:
        """Samples per second, where the step is always as long."""
        import pandas as pd

        if isinstance(self.step, pd.Timedelta):
            return 1 / self.step.total_seconds()
        return 1 / self.step if isinstance(self.step, int | float) else None


def time_covariates(dates: Any) -> np.ndarray:
    """The time covariates of each date, (T, 7) in the order of ``COVARIATES``, not scaled."""
    import pandas as pd

    index = pd.DatetimeIndex(dates)
    parts = [
        index.minute, index.hour, index.dayofweek, index.day, index.dayofyear, index.month,
        index.isocalendar().week,
    ]  # fmt: skip
    return np.stack([np.asarray(part, dtype=np.float64) for part in parts], axis=1)


def has_calendar(columns: Sequence[str]) -> bool:
    """Whether the first of the channels are the time covariates."""
    return tuple(columns[: len(COVARIATES)]) == COVARIATES


def read_dates(dates: Any) -> "pd.DatetimeIndex":
    """``dates``, as texts or in a type that pandas knows, as an index."""
    import pandas as pd

    if getattr(dates, "ndim", 1) != 1 or not hasattr(dates, "__iter__"):
        raise InputError(f"dates must be a list or a column, one per sample, got {dates!s:.80}")
    kind = getattr(dates, "dtype", None)
    if kind is None:
        dates = list(dates)
        numbers = any(isinstance(date, int | float) for date in dates[:1])
    else:
        numbers = getattr(kind, "kind", "") in "biuf"
    if numbers:  # pandas would take them for nanoseconds
        raise InputError("dates must be dates such as 2024-05-31 12:00, got numbers")
    try:
        return pd.DatetimeIndex(pd.to_datetime(dates, format="ISO8601"))
    except (ValueError, TypeError, OverflowError) as error:
        why = str(error).splitlines()[0].removesuffix(" You might want to try:")
        if "timezone" in why:
            raise InputError(
                "dates are in several offsets from UTC, as after a change of the clock: write all "
                "of them in one, such as UTC"
            ) from error
        raise InputError(f"dates must be dates such as 2024-05-31 12:00: {why}") from error


def regular_dates(dates: Any, count: int) -> "pd.DatetimeIndex":
    """``dates`` as an index, refused unless there are ``count``, evenly spaced or by calendar.

    By calendar: a day of every month, working days and whatever else pandas has a name for.
    """
    import pandas as pd

    index = read_dates(dates)
    if len(index) != count:
        raise InputError(f"give one date per sample: {count} samples, {len(index)} dates")
    if count < 3:
        raise InputError(f"dates need at least 3 samples to show their step, got {count}")
    if index.hasnans:
        raise InputError(f"the date of row {int(np.argmax(index.isna()))} is missing")
    steps = np.diff(index.asi8)
    if (steps <= 0).any():
        row = int(np.argmax(steps <= 0)) + 1
        raise InputError(
            f"dates must increase: row {row}, {index[row]}, is not after {index[row - 1]}"
        )
    if _step(index) is not None:
        return index
    holidays = _days_off(index)
    if len(holidays):
        raise InputError(
            f"dates are working days without {len(holidays)} of them, the first "
            f"{holidays[0].date()}; put rows of NaN for days off"
        )
    usual = np.sort(steps)[(len(steps) - 1) // 2]
    row = int(np.argmax(steps != usual)) + 1
    gap = "" if steps[row - 1] < usual else "; where samples are missing, put rows of NaN"
    raise InputError(
        f"dates must be regular: from {index[row - 1]} to {index[row]} (row {row}) is "
        f"{index[row] - index[row - 1]}, the usual step is "
        f"{pd.Timedelta(int(usual), index.unit)}{gap}"
    )


def _days_off(index: "pd.DatetimeIndex") -> "pd.DatetimeIndex":
    """Working days that are missing, where dates are working days and pass over weekends."""
    import pandas as pd

    local = index.tz_localize(None)
    weekends = (local[:-1].dayofweek == 4) & (local[1:] - local[:-1] == pd.Timedelta(days=3))
    if not weekends.any() or not ((local == local.normalize()) & (local.dayofweek < 5)).all():
        return local[:0]
    days = pd.date_range(local[0], local[-1], freq="D")
    return days[days.dayofweek < 5].difference(local)


def by_date(table: "pd.DataFrame", name: str) -> "pd.DataFrame":
    """``table`` with its column ``date`` as regular dates on the left."""
    if "date" not in table.columns:
        there = ", ".join(map(str, table.columns[:20]))
        raise InputError(f"{name} has no column 'date'; it has {there}")
    if table.shape[1] == 1:
        raise InputError(f"{name} has no column beside 'date'")
    try:
        index = regular_dates(table["date"], len(table))
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    return table.drop(columns="date").set_axis(index)


def fill_gaps(table: "pd.DataFrame", name: str, limit: Any = None) -> tuple["pd.DataFrame", int]:
    """``table``, indexed by increasing dates or times, with rows of NaN where samples are missing.

    The second is how many rows were put in.
    """
    import pandas as pd

    index: Any = table.index
    if len(index) < 3:
        return table, 0
    dated = isinstance(index, pd.DatetimeIndex)
    if dated and _step(index) is not None:
        return table, 0
    if dated and (days_off := len(_days_off(index))):
        count = len(index) + days_off
        guard.check_table(name, table, limit, rows=count, columns=1 + table.shape[1])
        whole: Any = pd.bdate_range(index[0], index[-1])
        return table.reindex(whole), len(whole) - len(table)
    ticks = index.asi8 if dated else np.asarray(index, dtype=np.float64)
    steps = np.diff(ticks)
    usual = np.sort(steps)[(len(steps) - 1) // 2]
    off = np.abs(steps / usual - np.round(steps / usual))
    if off.max() > (0.01 if dated else 0.3):  # numbers of seconds may have been rounded
        row = int(np.argmax(off)) + 1
        raise InputError(
            f"{name}: from {index[row - 1]} to {index[row]} (row {row}) is no multiple of the "
            "usual step, so gaps cannot be filled; resample it to even steps first"
        )
    rows = 1 + float(np.round(steps / usual).sum())
    rows = int(rows) if np.isfinite(rows) else 2**62
    guard.check_table(name, table, limit, rows=rows, columns=1 + table.shape[1])
    places = np.concatenate([[0], np.cumsum(np.round(steps / usual))]).astype(np.int64)
    every = np.arange(int(places[-1]) + 1)
    whole = index[0] + pd.to_timedelta(every * usual, unit=index.unit) if dated else every * usual
    return table.set_axis(whole[places]).reindex(whole), len(whole) - len(table)


def step_of(
    index: "pd.DatetimeIndex | pd.RangeIndex",
) -> "pd.Timedelta | pd.DateOffset | str":
    """The step between regular dates, or pandas' name of the rule they follow."""
    import pandas as pd

    if isinstance(index, pd.RangeIndex):
        return ONE_SAMPLE
    step = _step(index)
    assert step is not None
    return step


def _step(index: "pd.DatetimeIndex") -> "pd.Timedelta | pd.DateOffset | str | None":
    """As `step_of`; None where dates are not regular."""
    import pandas as pd

    if index.tz is not None:  # a day is one on the clock, also if that is put forward meanwhile
        local = index.tz_localize(None)
        step = local[1] - local[0]
        if step == pd.Timedelta(days=step.days) and bool((local[1:] - local[:-1] == step).all()):
            return f"{step.days}D"
    steps = np.diff(index.asi8)
    if (steps == steps[0]).all():
        return index[1] - index[0]
    return _rule(index) or _months(index)


def _rule(index: "pd.DatetimeIndex") -> str | None:
    """pandas' name of the rule that gives these very dates; it also names some that do not."""
    import pandas as pd

    rule = pd.infer_freq(index)
    if rule is None:
        return None
    return rule if (pd.date_range(index[0], periods=len(index), freq=rule) == index).all() else None


def _months(index: "pd.DatetimeIndex") -> "pd.DateOffset | None":
    """Months between dates that all have the same day and hour, one that every month has."""
    import pandas as pd

    local = index.tz_localize(None)
    within = local - local.to_period("M").start_time
    months = np.diff(12 * local.year + local.month)
    alike = (within == within[0]).all() and (months == months[0]).all() and local[0].day <= 28
    return pd.DateOffset(months=int(months[0])) if alike else None


def next_dates(index: "pd.DatetimeIndex | pd.RangeIndex", count: int) -> "pd.Index":
    """The ``count`` dates that follow regular ones, or the numbers of the samples that follow."""
    import pandas as pd

    if isinstance(index, pd.RangeIndex):
        return pd.RangeIndex(len(index), len(index) + count, name="sample")
    return pd.date_range(index[-1], periods=count + 1, freq=step_of(index), name="date")[1:]
