"""Cases out of pandas tables, wide or long.

Shapes: R cases, C channels, L samples.
"""

from typing import Any, NamedTuple

import numpy as np

from progmem.errors import InputError


class Columns(NamedTuple):
    """Names of a table's columns, as `as_collection` takes them."""

    case: str | None
    time: str | None
    channel: str | None
    value: str | None
    label: str | None

    def refuse(self, source: str) -> None:
        """What is no table has no columns."""
        for name, column in self._asdict().items():
            if column is not None:
                raise InputError(f"{name} names a column, but there is no table, got {source}")


def split_table(table: Any, columns: Columns) -> tuple[list[np.ndarray], np.ndarray | None]:
    """Each case as (C, L), and the labels if ``columns`` names them."""
    import pandas as pd

    case, time, channel, value, label = columns
    if case is None and table.index.nlevels > 1:
        names = [
            name if name is not None else f"level_{i}" for i, name in enumerate(table.index.names)
        ]
        if len(names) > 2:
            raise InputError(f"an index must have two levels, case and time, got {names}")
        table = table.rename_axis(names).reset_index()
        case, time = names[0], time or names[1]
    for column in (case, time, channel, value, label):
        if column is not None and column not in table.columns:
            there = ", ".join(map(str, table.columns[:20]))
            raise InputError(f"there is no column {column!r}; the table has {there}")
    if (channel is None) != (value is None):
        raise InputError("channel and value go together: the columns of a channel's name and value")
    if case is None:
        if time is not None or channel is not None:
            raise InputError("time, channel and value need case: which rows belong together?")
        y = None if label is None else table[label].to_numpy()
        wide = table if label is None else table.drop(columns=label)
        return list(_numbers(wide)[:, None]), y  # (1, L) each
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
    order = list(dict.fromkeys(table[case]))  # as they first come
    if time is not None:
        table = table.copy(deep=False)
        table[time] = _times(table[time])
        table = table.sort_values(time, kind="stable")
    if channel is not None:
        if time is None:
            raise InputError("channel and value need time: which samples belong together?")
        twice = table[table.duplicated([case, time, channel])]
        if len(twice):
            name, when, what = (twice[column].iloc[0] for column in (case, time, channel))
            raise InputError(f"case {name} has channel {what} twice at {time} {when}")
        table = table.pivot(index=[case, time], columns=channel, values=value).reset_index()
    others = [c for c in table.columns if c not in (case, time, label)]
    values, cases = _numbers(table[others]), pd.factorize(table[case])[0]
    first = {name: i for i, name in enumerate(pd.unique(table[case]))}
    rows = np.split(np.argsort(cases, kind="stable"), np.cumsum(np.bincount(cases))[:-1])
    return [values[rows[first[name]]].T for name in order], y


def _times(column: Any) -> Any:
    """A column to order rows by; text is read as dates, never ordered by its letters."""
    import pandas as pd

    column = column.infer_objects()
    if not (pd.api.types.is_object_dtype(column) or pd.api.types.is_string_dtype(column)):
        return column
    try:
        return pd.to_datetime(column, format="ISO8601", utc=True)
    except (ValueError, TypeError) as error:
        raise InputError(
            f"column {column.name!r} must hold numbers or dates such as 2024-05-31 12:00 to order "
            f"rows by, got {column.iloc[0]!r}"
        ) from error


def _numbers(table: Any) -> np.ndarray:
    import pandas as pd

    if not table.shape[1]:
        raise InputError("the table has no column left for the values")
    kinds = pd.api.types
    bad = [
        str(c)
        for c in table.columns
        if kinds.is_complex_dtype(table[c]) or not kinds.is_numeric_dtype(table[c])
    ]
    if bad:
        raise InputError(f"values must be real numbers; column {', '.join(bad[:5])} is not")
    return table.to_numpy(dtype=np.float64, na_value=np.nan)
