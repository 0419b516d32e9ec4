"""A user's own series to forecast: values and dates from arrays, tables or files.

Shapes: T samples, F columns.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from progmem.data import datasets
from progmem.data.dates import regular_dates
from progmem.data.forecast_sets import VARIANTS
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.reader import read_with
from progmem.data.recordings import Recording, Recordings
from progmem.data.sets import DatedSeries
from progmem.data.tables import CASE_NAMES, TIME_NAMES, is_table
from progmem.errors import InputError
from progmem.progress import Log
from progmem.series import as_array

if TYPE_CHECKING:
    import pandas as pd


class DatedValues(NamedTuple):
    """The values, column names and dates of a series; without dates, the numbers of its samples."""

    values: np.ndarray  # (T, F), NaN where missing
    columns: tuple[str, ...]
    dates: "pd.DatetimeIndex | pd.RangeIndex"


def as_dated_values(series: Any, dates: Any = None) -> DatedValues:
    """A user's series, checked: numbers, at most two axes, one regular date per sample, or none."""
    import pandas as pd

    if isinstance(series, pd.Series):
        series = series.to_frame("value" if series.name is None else series.name)
    if not isinstance(series, pd.DataFrame):
        array = as_array(series, "a series")
        if isinstance(array, Tensor):
            array = array.detach().cpu()
            array = (array.double() if array.is_floating_point() else array).numpy()
        if array.ndim not in (1, 2):
            raise InputError(f"a series must be (time,) or (time, columns), got {array.shape}")
        array = array[:, None] if array.ndim == 1 else array
        one = array.shape[1] == 1
        series = pd.DataFrame(array, columns=["value"] if one else range(array.shape[1]))
    index: pd.DatetimeIndex | pd.RangeIndex
    if dates is None and series.index.equals(pd.RangeIndex(len(series))):  # nothing but a count
        index = pd.RangeIndex(len(series))
    else:
        if dates is None and isinstance(series.index, pd.PeriodIndex):
            series = series.set_axis(series.index.to_timestamp())
        if dates is None and not isinstance(series.index, pd.DatetimeIndex):
            raise InputError("give the dates of the series, or a DataFrame that is indexed by them")
        index = regular_dates(series.index if dates is None else dates, len(series))
    if isinstance(series.index, pd.DatetimeIndex) and not series.index.equals(index):
        raise InputError("the series is indexed by other dates than those given; leave those out")
    columns = tuple(map(str, series.columns))
    if len(set(columns)) < len(columns):
        duplicate = next(name for name in columns if columns.count(name) > 1)
        raise InputError(f"columns must have different names; {duplicate!r} is there twice")
    kinds = pd.api.types
    for column in series.columns:
        kind = series[column].dtype
        if not kinds.is_numeric_dtype(kind) or kinds.is_complex_dtype(kind):
            raise InputError(f"column {column} must hold real numbers, got {kind}")
    if not series.shape[1]:
        raise InputError("the series has no columns")
    values = np.array(series.to_numpy(dtype=np.float64, na_value=np.nan))  # a copy
    if np.isinf(values).any():
        row, place = np.argwhere(np.isinf(values))[0]
        raise InputError(
            f"column {series.columns[place]} is infinite at {index[row]}; mark missing by NaN"
        )
    return DatedValues(values, columns, index)


def as_many_series(series: Any, dates: Any = None) -> dict[str, DatedValues]:
    """Series by name, checked, of anything that `progmem.read` takes; one alone is called ''.

    Arrays are one series (T,) or (T, F), and a mapping has any number of them.
    """
    if isinstance(series, Mapping):
        if dates is not None:
            raise InputError("give many series as tables that are indexed by their dates")
        if not series:
            raise InputError("there is no series to forecast: the mapping is empty")
    else:
        series = _read(series) if dates is None else {"": series}
    found = {}
    for name, one in series.items():
        try:
            tables = _read(one) if dates is None else {"": one}
            if "" not in tables:
                raise InputError(f"it holds {len(tables)} series; give one for each name")
            found[str(name)] = as_dated_values(tables[""], dates)
        except InputError as error:
            raise InputError(f"{name}: {error}" if name else str(error)) from error
    first, *others = found
    for name in others:
        if found[name].columns != found[first].columns:
            raise InputError(
                f"{name} has the columns {', '.join(found[name].columns)}, {first} has "
                f"{', '.join(found[first].columns)}: series that are forecast together have the "
                "same; forecast these one by one"
            )
    return found


def _read(series: Any) -> dict[str, Any]:
    """What the reader makes of files, recordings and tables; an array, as it is, is called ''."""
    if not _is_for_the_reader(series):
        return {"": series}
    return _tables(read_with(series), "the source", alone=True)


def _is_for_the_reader(series: Any) -> bool:
    """Whether this is no array, but something whose dates or cases `progmem.read` finds."""
    import pandas as pd

    if isinstance(series, str | Path | Recordings):
        return True
    if isinstance(series, list | tuple):
        return bool(series) and all(isinstance(one, Recording) or is_table(one) for one in series)
    if isinstance(series, pd.DataFrame):
        dated = isinstance(series.index, pd.DatetimeIndex)  # then columns hold no times
        known = {*CASE_NAMES, *(() if dated else TIME_NAMES)}
        return series.index.nlevels > 1 or any(str(c).lower() in known for c in series.columns)
    xarray: Any = sys.modules.get("xarray")
    labelled = xarray is not None and isinstance(series, xarray.DataArray | xarray.Dataset)
    return labelled or (is_table(series) and not isinstance(series, pd.Series))


def read_series(
    source: str,
    data_dir: Path | None = None,
    options: ReadOptions = BY_RULE,
    *,
    log: Log | None = None,
) -> "dict[str, pd.DataFrame]":
    """Tables to forecast, by name: of a file, a folder, or a data set; one alone is called ''.

    Rows are indexed by date, or by the number of the sample where a recording has no dates.
    """
    import pandas as pd

    if source in VARIANTS:
        if options != BY_RULE:
            raise InputError(f"{source} is a data set by name; options of reading are for files")
        series = datasets.load(VARIANTS[source].file, data_dir)
        assert isinstance(series, DatedSeries)
        table = pd.DataFrame(series.values, pd.DatetimeIndex(series.dates), list(series.columns))
        return {"": table if VARIANTS[source].form != "target" else table[[series.target]]}
    if not Path(source).suffix and not Path(source).exists():
        raise InputError(
            f"give a file of recordings, a folder of them, or one of {', '.join(VARIANTS)}; got "
            f"{source}"
        )
    found = read_with(source, options, log=log)
    if log is not None:
        log("\n".join(found.lines()))
    return _tables(found, source, alone=not Path(source).is_dir())


def _tables(found: Recordings, source: str, *, alone: bool) -> "dict[str, pd.DataFrame]":
    """Recordings by name; with ``alone`` a single one is called ''."""
    if len(found) == 1 and alone:
        return {"": _table(found[0])}
    undated = [recording.name for recording in found if recording.calendar is None]
    if 0 < len(undated) < len(found):
        raise InputError(
            f"{source}: {undated[0]} has no dates, others have; give them all, or none"
        )
    return {recording.name: _table(recording) for recording in found}


def _table(recording: Recording) -> "pd.DataFrame":
    import pandas as pd

    values, calendar = recording.values, recording.calendar
    one = values.shape[1] == 1
    columns = recording.columns or (("value",) if one else tuple(map(str, range(values.shape[1]))))
    index: pd.Index = pd.RangeIndex(len(values), name="sample")
    # seconds that are no whole number of nanoseconds give dates that are not quite regular
    if calendar is not None and not isinstance(calendar.step, float):
        index = calendar.at(np.arange(len(values)))
    return pd.DataFrame(np.asarray(values, dtype=np.float64), index, list(columns))
