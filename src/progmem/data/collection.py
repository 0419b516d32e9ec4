"""Whatever holds a user's series, as cases of (channels, time): arrays, lists, tables, files.

Shapes: R cases, C channels, L samples. NaN is missing.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from progmem.errors import InputError
from progmem.model.inputs import as_array

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
            or (time,) of any lengths; a DataFrame; a path to .npy, .csv or .parquet (read as an
            array or a DataFrame), .ts, .tsv or .arff (read by aeon).
        case: the column that tells the cases of a long table apart, one row a sample. Without it a
            table is wide: one row a case, one column a sample.
        time: the column a case's rows are ordered by; without it they are in order.
        channel: in a table of one row per case, time and channel: the column that names the
            channel, with ``value`` that of the values. Otherwise all other columns are channels.
        label: the column of the labels.

    A table whose index has two levels is long by them: case, then time.
    """
    if isinstance(source, str | Path):
        return _read(Path(source), case, time, channel, value, label)
    if hasattr(source, "columns") and hasattr(source, "iloc"):
        return _from_table(source, case, time, channel, value, label)
    named = {"case": case, "time": time, "channel": channel, "value": value, "label": label}
    given = [name for name, column in named.items() if column is not None]
    if given:
        raise InputError(
            f"{given[0]} names a column, but there is no table, got {type(source).__name__}"
        )
    if isinstance(source, list | tuple) and any(np.ndim(s) != 0 for s in source):
        return Collection(_from_list(source), None)
    array = as_array(source, "X")
    array = np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
    if array.ndim not in (2, 3):
        raise InputError(f"X must be {ARRAY_FORM}, got shape {array.shape}")
    return Collection(_real(array if array.ndim == 3 else array[:, None], "X"), None)


def _from_list(series: Any) -> Any:
    cases = []
    for i, one in enumerate(series):
        array = as_array(one, f"case {i}")
        array = np.asarray(array.detach().cpu() if hasattr(array, "detach") else array)
        if array.ndim not in (1, 2):
            raise InputError(f"case {i} must be (channels, time), got shape {array.shape}")
        cases.append(_real(np.atleast_2d(array), f"case {i}"))
    _check_channels(cases)
    return _stacked(cases)


def _from_table(
    table: Any, case: str | None, time: str | None, channel: str | None, value: str | None,
    label: str | None,
) -> Collection:  # fmt: skip
    import pandas as pd

    if case is None and table.index.nlevels == 2:
        names = [
            name if name is not None else f"level_{i}" for i, name in enumerate(table.index.names)
        ]
        table = table.rename_axis(names).reset_index()
        case, time = names[0], time or names[1]
    for column in (case, time, channel, value, label):
        if column is not None and column not in table.columns:
            there = ", ".join(map(str, table.columns[:20]))
            raise InputError(f"there is no column {column!r}; the table has {there}")
    if (channel is None) != (value is None):
        raise InputError("channel and value go together: the columns of a channel's name and value")
    if case is None:
        y = None if label is None else table[label].to_numpy()
        wide = table if label is None else table.drop(columns=label)
        return Collection(_numbers(wide)[:, None], y)  # (R, 1, L)
    if bool(table[case].isna().any()):
        raise InputError(f"column {case!r} has missing values; every row belongs to a case")
    y = None
    if label is not None:
        labels = table.groupby(case, sort=False)[label]
        mixed = labels.nunique(dropna=False)
        if bool((mixed > 1).any()):
            raise InputError(f"case {mixed.idxmax()!r} has more than one {label!r}")
        y = labels.first().to_numpy()
    order = list(dict.fromkeys(table[case]))  # as they first come
    if channel is not None:
        if time is None:
            raise InputError("channel and value need time: which samples belong together?")
        if bool(table.duplicated([case, time, channel]).any()):
            twice = table[table.duplicated([case, time, channel])].iloc[0]
            raise InputError(
                f"case {twice[case]!r} has channel {twice[channel]!r} twice at {twice[time]!r}"
            )
        table = table.pivot(index=[case, time], columns=channel, values=value).reset_index()
    table = table if time is None else table.sort_values([time], kind="stable")
    others = [c for c in table.columns if c not in (case, time, label)]
    if not others:
        raise InputError("the table has no column left for the values")
    values, cases = _numbers(table[others]), pd.factorize(table[case])[0]
    first = {name: i for i, name in enumerate(pd.unique(table[case]))}
    rows = np.split(np.argsort(cases, kind="stable"), np.cumsum(np.bincount(cases))[:-1])
    return Collection(_stacked([values[rows[first[name]]].T for name in order]), y)


def _read(
    path: Path, case: str | None, time: str | None, channel: str | None, value: str | None,
    label: str | None,
) -> Collection:  # fmt: skip
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        if path.suffix in AEON_FILES:
            return _read_with_aeon(path)
        if path.suffix == ".npy":
            return as_collection(np.load(path, allow_pickle=False))
        if path.suffix in (".csv", ".parquet"):
            import pandas as pd

            if path.suffix == ".csv":
                table = pd.read_csv(path)
            else:
                table = pd.read_parquet(path, engine="pyarrow")
            return _from_table(table, case, time, channel, value, label)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except ImportError as error:
        raise InputError(f"{path} needs pyarrow: pip install 'progmem[data]'") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    suffixes = ", ".join([".npy", ".csv", ".parquet", *AEON_FILES])
    raise InputError(f"{path} must end in one of {suffixes}")


def _read_with_aeon(path: Path) -> Collection:
    try:
        import aeon.datasets as readers
    except ImportError as error:
        raise InputError(f"{path.suffix} files need aeon: pip install 'progmem[data]'") from error
    found: Any = getattr(readers, AEON_FILES[path.suffix])(str(path))
    x, y = found if isinstance(found, tuple) else (found, None)  # a file may have no labels
    return Collection(_from_list(list(x)), None if y is None else np.asarray(y))


def _numbers(table: Any) -> np.ndarray:
    import pandas as pd

    bad = [str(c) for c in table.columns if not pd.api.types.is_numeric_dtype(table[c])]
    if bad:
        raise InputError(f"values must be numbers; column {', '.join(bad[:5])} is not")
    return table.to_numpy(dtype=np.float64, na_value=np.nan)


def _real(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must hold real numbers, got dtype {array.dtype}")
    return array


def _check_channels(cases: list[np.ndarray]) -> None:
    for i, one in enumerate(cases):
        if one.shape[0] != cases[0].shape[0]:
            raise InputError(
                f"cases must have the same channels: case 0 has {cases[0].shape[0]}, "
                f"case {i} has {one.shape[0]}; a case is (channels, time)"
            )


def _stacked(cases: list[np.ndarray]) -> Any:
    return np.stack(cases) if len({one.shape for one in cases}) == 1 else cases
