"""A user's series as cases of (channels, time): from arrays, lists, tables or files.

Shapes: R cases, C channels, L samples. NaN is missing.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from progmem.data.reader import csv_layout, read_csv
from progmem.errors import InputError
from progmem.series import as_array


class Columns(NamedTuple):
    """Names of a table's columns, as `as_collection` takes them."""

    case: str | None
    time: str | None
    channel: str | None
    value: str | None
    label: str | None

    def refuse(self, source: str) -> None:
        """Refuse names of columns where there is no table."""
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
    order = list(dict.fromkeys(table[case]))  # of first appearance
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


AEON_FILES = {
    ".ts": "load_from_ts_file",
    ".tsv": "load_from_tsv_file",
    ".arff": "load_from_arff_file",
}
ARRAY_FORM = "(cases, channels, time), or (cases, time) for one channel"


class Collection(NamedTuple):
    """Series, and the label of each where the source has them."""

    x: Any  # (R, C, L) array, or a list of R (C, L_i) where the lengths differ
    y: np.ndarray | None  # (R,)


def as_collection(
    source: Any,
    *,
    case: str | None = None,
    time: str | None = None,
    channel: str | None = None,
    value: str | None = None,
    label: str | None = None,
) -> Collection:
    """Series from an array, a list, a pandas table, a tensor or a file.

    Args:
        source: numpy or torch (cases, channels, time) or (cases, time); a list of (channels, time)
            or (time,) of any lengths, or of tables with one column per channel; a DataFrame; a path
            to .npy, .csv or .parquet (read as an array or a DataFrame), .ts, .tsv or .arff (read by
            aeon).
        case: the column that names the case in a long table, which has one row per sample. Without
            it a table is wide: one row per case, one column per sample.
        time: the column a case's rows are ordered by, numbers or dates (as text: year first);
            without it they are in order.
        channel: in a table of one row per case, time and channel: the column that names the
            channel, with ``value`` that of the values. Otherwise all other columns are channels.
        label: the column of the labels.

    A table whose index has two levels is long by them: case, then time.
    """
    columns = Columns(case, time, channel, value, label)
    if isinstance(source, str | Path):
        return _read(Path(source), columns)
    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return _from_list(*split_table(source, columns))
    columns.refuse(type(source).__name__)
    if isinstance(source, list | tuple):
        return _from_list(source, None)
    array = _as_numpy(source, "X")
    if array.ndim not in (2, 3):
        raise InputError(f"X must be {ARRAY_FORM}, got shape {array.shape}")
    return _collection(array if array.ndim == 3 else array[:, None], None)


def _from_list(series: Any, y: np.ndarray | None) -> Collection:
    cases = []
    for i, one in enumerate(series):
        array = _as_numpy(one, f"case {i}")
        if hasattr(one, "columns"):
            array = array.T  # a table has one column per channel
        if array.ndim not in (1, 2):
            raise InputError(f"case {i} must be (channels, time), got shape {array.shape}")
        cases.append(np.atleast_2d(array))
        if len(cases[i]) != len(cases[0]):
            raise InputError(
                f"cases must have the same channels: case 0 has {len(cases[0])}, "
                f"case {i} has {len(cases[i])}; a case is (channels, time)"
            )
    return _collection(_stacked(cases), y)


def _read(path: Path, columns: Columns) -> Collection:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        if path.suffix in AEON_FILES:
            columns.refuse(f"a {path.suffix} file")
            return _read_with_aeon(path)
        if path.suffix == ".npy":
            return as_collection(np.load(path, allow_pickle=False), **columns._asdict())
        if path.suffix in (".csv", ".parquet"):
            if path.suffix == ".csv":
                table = read_csv(path, header=0 if csv_layout(path, wide=True).has_header else None)
            else:
                import pandas as pd

                table = pd.read_parquet(path, engine="pyarrow")
            return _from_list(*split_table(table, columns))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except ImportError as error:
        raise InputError(f"{path} needs pyarrow: pip install 'progmem[data]'") from error
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    suffixes = ", ".join([".npy", ".csv", ".parquet", *AEON_FILES])
    raise InputError(f"{path} must end in one of {suffixes}")


def _read_with_aeon(path: Path) -> Collection:
    try:
        import aeon.datasets as readers
    except ImportError as error:
        raise InputError(f"{path.suffix} files need aeon: pip install 'progmem[data]'") from error
    found: Any = getattr(readers, AEON_FILES[path.suffix])(str(path))
    x, y = found if isinstance(found, tuple) else (found, None)
    return _from_list(list(x), np.asarray(y) if y is not None and len(y) else None)


def _as_numpy(source: Any, name: str) -> np.ndarray:
    array = as_array(source, name)
    if isinstance(array, Tensor):
        array = array.detach().cpu()
        array = np.asarray(array.float() if array.dtype == torch.bfloat16 else array)
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must hold real numbers, got dtype {array.dtype}")
    return array


def _stacked(cases: list[np.ndarray]) -> Any:
    return np.stack(cases) if len({one.shape for one in cases}) == 1 else cases


def _collection(x: Any, y: np.ndarray | None) -> Collection:
    """A collection, refused where a series has no values."""
    if not len(x):
        raise InputError("there are no series; give at least one")
    for i, one in enumerate(x):
        if not one.size:
            raise InputError(f"case {i} has no values, got shape {one.shape}")
    return Collection(x, y)
