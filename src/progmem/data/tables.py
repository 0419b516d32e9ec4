"""Recordings from tables of pandas or polars: long, wide, or one recording.

Shapes: L samples, C channels. NaN is missing.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from progmem import guard
from progmem.data import dates
from progmem.data.arrays import Axes
from progmem.data.dates import Calendar, read_dates, regular_dates
from progmem.data.options import ReadOptions
from progmem.data.recordings import Recording
from progmem.errors import InputError, RepairableError

if TYPE_CHECKING:
    import pandas as pd

CASE_NAMES = ("case", "case_id", "case_index", "series", "series_id", "unique_id", "item_id")
TIME_NAMES = ("date", "datetime", "timestamp", "time", "time_index", "ds")
CHANNEL_NAMES = ("channel", "dim_id", "dimension")
_COMMA = r"\s*[+-]?\d+,\d+\s*"  # a number with a comma as its decimal sign
FILL_OPTION, DROP_OPTION = "fill_gaps", "drop_duplicates"  # of `progmem.read`
FILL = "fill_gaps=True (--fill-gaps) puts rows of NaN there"
DROP = "drop_duplicates=True (--drop-duplicates) keeps the first"


class Split(NamedTuple):
    """What a table holds."""

    recordings: list[Recording]
    labels: np.ndarray | None = None
    notes: tuple[str, ...] = ()


def is_table(source: Any) -> bool:
    """Whether this is a table or a column of pandas or polars, which need not be imported."""
    for package, kinds in (("pandas", ("DataFrame", "Series")), ("polars", ("DataFrame",))):
        module = sys.modules.get(package)
        if module is not None and isinstance(source, tuple(getattr(module, k) for k in kinds)):
            return True
    return False


def is_wide(source: Any) -> bool:
    """Whether nothing in a table says that it is long, or one recording."""
    table = to_pandas(source)
    dated = _holds_times(table.index)
    names = {str(column).lower() for column in table.columns}
    return not (table.index.nlevels > 1 or dated or names & {*CASE_NAMES, *TIME_NAMES})


def _holds_times(index: "pd.Index") -> bool:
    """Whether an index is the time of the rows, by its kind or by its name."""
    import pandas as pd

    kinds = pd.DatetimeIndex | pd.PeriodIndex | pd.TimedeltaIndex
    return isinstance(index, kinds) or str(index.name).lower() in TIME_NAMES


def to_pandas(source: Any) -> "pd.DataFrame":
    """A table or a column as a DataFrame."""
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        return source
    if isinstance(source, pd.Series):
        return source.to_frame("value" if source.name is None else source.name)
    return pd.DataFrame({name: source[name].to_numpy() for name in source.columns})


def split_table(table: "pd.DataFrame", name: str, options: ReadOptions, axes: Axes) -> Split:
    """The recordings of a table.

    It is long if a column names the case (``options.case``, or one of `CASE_NAMES`) or its index
    has two levels. Otherwise it is one recording if it has dates or times (``options.time``, one of
    `TIME_NAMES`, or as its index), and what ``axes`` say if not.
    """
    import pandas as pd

    names = options.columns
    if names["case"] is None and table.index.nlevels > 1:
        table, names = _reset_levels(table, names)
    elif _holds_times(table.index) and names["time"] is None:
        index = table.index
        index = index.to_timestamp() if isinstance(index, pd.PeriodIndex) else index
        own = str(index.name) if index.name is not None else "date"
        if own in table.columns:
            raise InputError(f"the table has times as its index and a column {own!r}; drop one")
        table = table.set_axis(index.rename(own)).reset_index()
        names = {**names, "time": own}
    for column in names.values():
        if column is not None and column not in table.columns:
            there = ", ".join(map(str, table.columns[:20]))
            raise InputError(f"there is no column {column!r}; the table has {there}")
    names = _known_names(table, names, options.layout)
    if (names["channel"] is None) != (names["value"] is None):
        raise InputError("channel and value go together: the columns of a channel's name and value")
    if names["case"] is not None:
        return _long(table, name, names, options)
    if names["channel"] is not None:
        raise InputError("channel and value need case: which rows belong together?")
    if options.layout == "long":
        there = ", ".join(map(str, table.columns[:20]))
        raise InputError(f"a long table needs case= (--case), the column of cases; it has {there}")
    dated = names["time"] is not None
    layout = options.layout or ("time,channels" if dated else axes.table)
    if layout == "series,time":
        if dated:
            raise InputError(
                f"column {names['time']!r} holds times: a table of one series a row has no such "
                "column; drop it, or say layout='time,channels' for one recording"
            )
        return _wide(table, name, names["label"])
    if layout not in ("time", "time,channels"):
        raise InputError(
            f"a table is time,channels (one recording), series,time (one series a row) or long, "
            f"got layout {layout!r}"
        )
    if names["label"] is not None:
        raise InputError(
            f"{name or 'the table'} is one recording, which has no column of labels; give case "
            "or layout='series,time'"
        )
    if not dated:
        _numbers(table)
    if options.layout is None and not dated and table.shape[1] > len(table) > 0:
        raise InputError(
            f"{name or 'the table'} has {len(table)} rows and {table.shape[1]} columns: more "
            "channels than samples if it is one recording, as tables are read; say "
            "layout='time,channels' if so, or layout='series,time' for one series a row "
            "(--layout time,channels or series,time)"
        )
    return _one(table, name, names["time"], options)


def _reset_levels(
    table: "pd.DataFrame", names: dict[str, str | None]
) -> tuple["pd.DataFrame", dict[str, str | None]]:
    levels = [
        name if name is not None else f"level_{i}" for i, name in enumerate(table.index.names)
    ]
    if len(levels) > 2:
        raise InputError(f"an index must have two levels, case and time, got {levels}")
    case, time = map(str, levels)
    table = table.rename_axis([case, time]).reset_index()
    return table, {**names, "case": case, "time": names["time"] or time}


def _known_names(
    table: "pd.DataFrame", names: dict[str, str | None], layout: str | None
) -> dict[str, str | None]:
    """``names`` with columns that are recognised by what they are called."""

    def first(known: Sequence[str]) -> str | None:
        return next((c for c in table.columns if str(c).lower() in known), None)

    names = dict(names)
    if layout in (None, "long"):
        names["case"] = names["case"] or first(CASE_NAMES)
    if names["time"] is None and layout != "series,time":
        names["time"] = first(TIME_NAMES)
    if names["case"] is not None and names["channel"] is names["value"] is None:
        channel = first(CHANNEL_NAMES)
        if channel is not None and "value" in table.columns:
            names |= {"channel": channel, "value": "value"}
    return names


def _wide(table: "pd.DataFrame", name: str, label: str | None) -> Split:
    y = None if label is None else table[label].to_numpy()
    values = _numbers(table if label is None else table.drop(columns=label))
    names = (f"{name}.{i}" if name else f"series {i}" for i in range(len(values)))
    found = [Recording(n, row[:, None]) for n, row in zip(names, values, strict=True)]  # (L, 1)
    return Split(found, y)


def _one(table: "pd.DataFrame", name: str, time: str | None, options: ReadOptions) -> Split:
    notes: list[str] = []
    calendar = None
    if time is not None:
        if table.shape[1] == 1:
            raise InputError(f"{name or 'the table'} has no column beside {time!r}")
        dense = table.dropna(how="all")  # a blank line has no date
        table, notes = _in_time(dense, name or "the table", time, options, strict=True)
        calendar = _calendar(table)
    recording = Recording(
        name or "series 0", _numbers(table), columns=_columns(table), calendar=calendar,
        rate=calendar.rate if calendar is not None else None,
    )  # fmt: skip
    return Split([recording], None, tuple(notes))


def _long(
    table: "pd.DataFrame", name: str, names: dict[str, str | None], options: ReadOptions
) -> Split:
    case, time, channel = names["case"], names["time"], names["channel"]
    value, label = names["value"], names["label"]
    assert case is not None
    for column in (case, time, channel):
        if column is not None and bool(table[column].isna().any()):
            raise InputError(f"column {column!r} has missing values; every row needs one")
    y = None
    if label is not None:
        labels = table.groupby(case, sort=False, observed=True)[label]
        mixed = labels.nunique(dropna=False)
        if bool((mixed > 1).any()):
            raise InputError(f"case {mixed.idxmax()} has more than one {label!r}")
        y = labels.first().to_numpy()
    order = list(dict.fromkeys(table[case]))  # of first appearance
    rows, columns = table.shape
    guard.check_table(name, table, options.limit, rows=rows, columns=columns, cases=len(order))
    if time is not None:
        table = table.copy(deep=False)
        table[time] = _times(table[time], options.date_format)
        table = table.sort_values(time, kind="stable")
    if channel is not None:
        table = _pivot(table, case, time, channel, value, options)
    others = [c for c in table.columns if c not in (case, time, label)]
    _numbers(table[others])  # refused before it is taken apart
    notes, found, uneven = [], [], []
    groups = dict(iter(table.groupby(case, sort=False, observed=True)))
    for key in order:
        one, calendar = groups[key], None
        if time is None:
            one = one[others]
        else:
            one, more = _in_time(one[[time, *others]], f"case {key}", time, options, strict=False)
            notes += more
            calendar = _calendar(one)
            uneven += [str(key)] if calendar is None and _is_dated(one) else []
        found.append(
            Recording(
                str(key),
                _numbers(one),
                columns=_columns(one),
                calendar=calendar,
                rate=calendar.rate if calendar is not None else None,
            )
        )
    if uneven:
        first = f", the first of them {uneven[0]}" if len(uneven) > 1 else f" ({uneven[0]})"
        notes.append(
            f"{len(uneven)} of {len(found)} cases have dates that are not evenly spaced, or too "
            f"few{first}: their rows are taken as samples one after the other, without dates; "
            f"where samples are missing, {FILL}"
        )
    by = "" if time is None else f", in the order of {time!r}"
    notes.insert(0, f"{name or 'the table'} is long: one recording for each {case!r}{by}")
    return Split(found, y, tuple(notes))


def _pivot(
    table: "pd.DataFrame", case: str, time: str | None, channel: str, value: str | None,
    options: ReadOptions,
) -> "pd.DataFrame":  # fmt: skip
    """A table of one row per case, time and channel as one with a column per channel."""
    if time is None:
        raise InputError("channel and value need time: which samples belong together?")
    twice = table[table.duplicated([case, time, channel])]
    if len(twice) and options.drop_duplicates:
        table = table.drop_duplicates([case, time, channel])
    elif len(twice):
        key, when, what = (twice[column].iloc[0] for column in (case, time, channel))
        raise RepairableError(
            f"case {key} has channel {what} twice at {time} {when}; {DROP}", option=DROP_OPTION
        )
    rows, columns = len(table[[case, time]].drop_duplicates()), table[channel].nunique()
    guard.check_table("the table", table, options.limit, rows=rows, columns=columns)
    return table.pivot(index=[case, time], columns=channel, values=value).reset_index()


def _in_time(
    table: "pd.DataFrame", name: str, time: str, options: ReadOptions, *, strict: bool
) -> tuple["pd.DataFrame", list[str]]:
    """``table`` indexed by its column ``time``, increasing, repaired as ``options`` allow.

    Args:
        strict: whether uneven dates are refused.
    """
    import pandas as pd

    notes = []
    times = _times(table[time], options.date_format)
    index = pd.Index(times)
    dated = isinstance(index, pd.DatetimeIndex)
    if index.hasnans:
        kind = "date" if dated else "time"
        row = int(np.argmax(index.isna()))
        raise InputError(f"{name}: the {kind} of row {row} is missing")
    table = table.drop(columns=time).set_axis(index)
    if len(index) > 1 and index.is_monotonic_decreasing and not index.is_monotonic_increasing:
        table = table[::-1]
        notes.append(f"{name} runs backwards in time and was turned round")
    twice = table.index.duplicated()
    if twice.any() and options.drop_duplicates:
        notes.append(f"{name}: dropped {int(twice.sum())} rows of a time that was there already")
        table = table[~twice]
    elif twice.any():
        row = int(np.argmax(twice))
        raise RepairableError(
            f"{name}: {time} must increase: row {row}, {table.index[row]}, is there twice; {DROP}",
            option=DROP_OPTION,
        )
    if not table.index.is_monotonic_increasing:
        row = int(np.argmin(np.diff(table.index.to_numpy()) > np.zeros(1, np.int64))) + 1
        raise InputError(
            f"{name}: {time} must increase: row {row}, {table.index[row]}, is not after "
            f"{table.index[row - 1]}; does it hold several series? Then say which by case= (--case)"
        )
    if options.fill_gaps:
        table, count = dates.fill_gaps(table, name, options.limit)
        if count:
            notes.append(f"{name}: put in {count} rows of NaN where samples are missing")
    if dated and strict:
        try:
            regular_dates(table.index, len(table))
        except InputError as error:
            if "of NaN" not in str(error) or options.fill_gaps:
                raise InputError(f"{name}: {error}") from error
            raise RepairableError(f"{name}: {error}; {FILL}", option=FILL_OPTION) from error
    if not dated and strict:
        _check_even(table, name, time)
        notes.append(f"{name}: column {time!r} numbers the samples and is no channel")
    return table, notes


def _check_even(table: "pd.DataFrame", name: str, time: str) -> None:
    """Refuse times with a gap; rounding and jitter are no gap."""
    steps = np.diff(np.asarray(table.index, dtype=np.float64))
    usual = np.median(steps) if len(steps) else 0
    if len(steps) and steps.max() > 1.5 * usual:
        row = int(np.argmax(steps)) + 1
        raise RepairableError(
            f"{name}: from {time} {table.index[row - 1]:g} to {table.index[row]:g} (row {row}) "
            f"samples are missing, the usual step is {usual:g}; {FILL}",
            option=FILL_OPTION,
        )


def _times(column: "pd.Series", date_format: str | None) -> Any:
    """A column to order rows by: numbers or dates; texts are read as dates."""
    import pandas as pd

    column = column.infer_objects()
    kinds = pd.api.types
    if kinds.is_datetime64_any_dtype(column):
        return column
    if kinds.is_numeric_dtype(column):
        return _of_numbers(column, date_format)
    if isinstance(column.dtype, pd.PeriodDtype):
        return column.dt.to_timestamp()
    if kinds.is_timedelta64_dtype(column):
        return column.dt.total_seconds()
    try:
        if date_format is not None:
            return pd.to_datetime(column, format=date_format)
        try:
            return pd.Series(read_dates(column), index=column.index, name=column.name)
        except InputError as error:
            if "several offsets" not in str(error):
                raise
            return pd.to_datetime(column, format="ISO8601", utc=True)  # they say which is when
    except (ValueError, TypeError) as error:
        how = "date_format (--date-format) says how they are written, such as %d.%m.%Y %H:%M"
        if date_format is not None:
            how = f"they are not written as date_format {date_format!r}"
        read = pd.to_datetime(column, format=date_format or "ISO8601", errors="coerce", utc=True)
        row = int(np.argmax(read.isna() & column.notna()))
        raise InputError(
            f"column {column.name!r} must hold numbers or dates such as 2024-05-31 12:00, got "
            f"{column.iloc[row]!r} in row {row}; {how}"
        ) from error


def _of_numbers(column: "pd.Series", date_format: str | None) -> Any:
    """A column of numbers to order rows by, or the dates that ``date_format`` says they are."""
    import pandas as pd

    if date_format is None:
        if _are_days(column):
            raise InputError(
                f"column {column.name!r} holds numbers that read as dates, such as "
                f"{column.iloc[0]:.0f}; say so by date_format='%Y%m%d' (--date-format %Y%m%d)"
            )
        return column
    width = len(pd.Timestamp(2000, 10, 10, 10, 10, 10).strftime(date_format))
    texts = column.map(lambda n: f"{n:.15g}".zfill(width), na_action="ignore").astype(object)
    try:
        dates = pd.to_datetime(texts, format=date_format)
        if (dates.dt.strftime(date_format) == texts)[texts.notna()].all():
            return dates
    except ValueError:
        pass
    raise InputError(
        f"column {column.name!r} holds numbers, such as {column.iloc[0]:.15g}, which are not dates "
        f"written as date_format {date_format!r}"
    )


def _are_days(column: "pd.Series") -> bool:
    """Whether all numbers are days such as 20240531: none skips from the 31st to the 32nd."""
    import pandas as pd

    if not len(column) or not column.between(19000101, 21001231).all():
        return False
    return bool(pd.to_datetime(column, format="%Y%m%d", errors="coerce").notna().all())


def _is_dated(table: "pd.DataFrame") -> bool:
    import pandas as pd

    return isinstance(table.index, pd.DatetimeIndex)


def _calendar(table: "pd.DataFrame") -> Calendar | None:
    """The calendar of a table with regular dates."""
    if not _is_dated(table):
        return None
    try:
        return Calendar.of(regular_dates(table.index, len(table)))
    except InputError:
        return None


def _columns(table: "pd.DataFrame") -> tuple[str, ...]:
    """The names of columns, where these are not numbers that count them."""
    import pandas as pd

    if table.columns.equals(pd.RangeIndex(table.shape[1])):
        return ()
    return tuple(map(str, table.columns))


def _numbers(table: "pd.DataFrame") -> np.ndarray:
    import pandas as pd

    if not table.shape[1]:
        raise InputError("the table has no column left for the values")
    kinds = pd.api.types
    bad = [
        str(c)
        for c, kind in zip(table.columns, table.dtypes, strict=True)
        if kinds.is_complex_dtype(kind) or not kinds.is_numeric_dtype(kind)
    ]
    if bad:
        raise InputError(
            f"values must be real numbers; column {', '.join(bad[:5])} does not hold them"
            f"{_hint(table, bad)}"
        )
    return table.to_numpy(dtype=np.float64, na_value=np.nan)


def _hint(table: "pd.DataFrame", columns: Sequence[str]) -> str:
    if any(mark in name for name in columns for mark in ";\t|"):
        return "; is it separated by something else than commas? Say so by sep (--sep ';')"
    with_comma = [
        c
        for c in table.columns
        if str(c) in columns and table[c].astype(str).str.fullmatch(_COMMA).any()
    ]
    if with_comma:
        return "; are its commas decimal signs? Say so by decimal=',' (--decimal ,)"
    return "; drop it, or name it if it holds times (time, --time) or cases (case, --case)"
