"""Recordings from files: .npy, .npz and .csv, one or a folder of them, of any lengths.

Shapes: B series, L samples, C channels.
"""

import csv
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from progmem.data.dates import COVARIATES, by_date, time_covariates
from progmem.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


MISSING = ("", "nan", "-nan", "na", "n/a", "#n/a", "#na", "<na>", "null", "none")  # as in pandas


class CsvLayout(NamedTuple):
    """What the first lines of a .csv file show."""

    has_header: bool  # the first line holds the names of columns
    several_columns: bool  # then a blank line is no sample


def csv_layout(path: Path, *, wide: bool = False) -> CsvLayout:
    """Whether the first line of a file is a header: texts, or numbers that count the columns.

    0, 1, 2, … is what pandas writes above a table without names. The header of a ``wide`` table,
    which has one column per sample, may hold any numbers in equal steps, such as times or wave
    lengths. Where the next line is like that too, both are samples.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as stream:
            lines = list(islice(csv.reader(stream), 9))
    except csv.Error as error:
        raise ValueError(str(error)) from error
    several = any(len(line) > 1 for line in lines)
    if several:
        lines = [line for line in lines if line]
    first, second = ([_number(cell) for cell in line] for line in [*lines, [], []][:2])
    if None in first:
        return CsvLayout(True, several)
    if (
        len(first) > 1 and lines[0][0] == "" and second and _may_be_row_name(second[0])
    ):  # pandas' index
        return CsvLayout(_is_range(first[1:]), several)
    counts = _evenly_increasing(first) and (wide or _is_range(first))
    return CsvLayout(counts and second != [] and not _evenly_increasing(second), several)


def _evenly_increasing(numbers: list[float | None]) -> bool:
    """Whether these are at least three numbers in equal steps upwards."""
    steps = np.diff(np.array(numbers, dtype=float))
    return bool(len(steps) > 1 and steps[0] > 0 and np.allclose(steps, steps[0], atol=0))


def _may_be_row_name(number: float | None) -> bool:
    """Whether a cell may be the name of a row: a whole number, or text."""
    return number is None or number.is_integer()


def _is_range(numbers: list[float | None]) -> bool:
    return numbers in ([*range(len(numbers))], [*range(1, len(numbers) + 1)])


def _number(cell: str) -> float | None:
    """The number in a cell, NaN if it is empty; None if it is not a number."""
    try:
        return float("nan") if cell.strip().lower() in MISSING else float(cell)
    except ValueError:
        return None


def read_csv(path: Path, **options: Any) -> "pd.DataFrame":
    """A .csv file as pandas reads it; ValueError where that would mix up or add columns.

    Where rows have more cells than the header, pandas would take the first cells for an index and
    shift the others by a column. Empty cells at the end of all rows are dropped.
    """
    import pandas as pd

    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # it loses cells
        try:
            table = pd.read_csv(path, index_col=False, **options)
        except pd.errors.ParserWarning as error:
            raise ValueError(
                "rows have more cells than the first line: a comma too many, or as decimal sign?"
            ) from error
    unnamed = table.columns.astype(str).str.startswith("Unnamed: ")
    table = table.loc[:, ~(unnamed & table.isna().all().to_numpy())]  # a comma ends every line
    first = table.iloc[:, 0]
    counting = pd.api.types.is_integer_dtype(first) and first.is_unique
    if first.name == "Unnamed: 0" and counting and len(first) > 1:
        raise ValueError(
            "the first column has no name and a number of its own in each row, as an index; write "
            "the file without it (in pandas: index=False)"
        )
    return table


SUFFIXES = (".npy", ".npz", ".csv")


class Recording(NamedTuple):
    """One recording, or a piece of one, with its name."""

    name: str
    values: Any  # (L, C) array, perhaps memory-mapped
    origin: str | None = None  # the recording a piece was cut from
    start: int = 0  # the sample of ``origin`` it begins at
    columns: tuple[str, ...] = ()  # the names of the channels in its file


def read_recordings(path: Path, *, covariates: bool = True) -> list[Recording]:
    """All recordings of a file or of a folder's files, in order of their names.

    An array (L, C) is one recording, (B, L, C) are B of them; a vector is one channel. Dated series
    begin with the time covariates, or are their values alone.
    """
    if not path.exists():
        raise InputError(f"there is no {path}; give a .npy, .npz or .csv file or a folder of them")
    files = [path]
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in SUFFIXES)
        if not files:
            raise InputError(f"{path} holds no .npy, .npz or .csv file")
    recordings = [recording for file in files for recording in _read_file(file)]
    if not recordings:
        raise InputError(f"{path} holds no recording: its arrays are empty")
    name, count = Counter(recording.name for recording in recordings).most_common(1)[0]
    if count > 1:
        raise InputError(f"{path} holds {count} recordings called {name!r}; rename their files")
    if not covariates:
        recordings = without_covariates(recordings)
    _check_channels(recordings)
    named = [recording for recording in recordings if recording.columns]
    if named:
        check_order(named[0].name, named[0].columns, named[1:])
    return recordings


def without_covariates(recordings: Sequence[Recording]) -> list[Recording]:
    """Dated series without their time covariates; others as they are."""
    first = len(COVARIATES)
    return [
        r._replace(values=r.values[:, first:], columns=r.columns[first:])
        if has_calendar(r.columns)
        else r
        for r in recordings
    ]


def has_calendar(columns: tuple[str, ...]) -> bool:
    """Whether the first of the channels are the time covariates."""
    return columns[: len(COVARIATES)] == COVARIATES


def _check_channels(recordings: Sequence[Recording]) -> None:
    first = recordings[0]
    for other in recordings[1:]:
        if other.values.shape[1] != first.values.shape[1]:
            raise InputError(
                f"recordings must have the same channels: {first.name} has "
                f"{first.values.shape[1]}, {other.name} has {other.values.shape[1]}"
            )


def summarise(recordings: Sequence[Recording]) -> str:
    """The number, lengths and channels of recordings, in one line."""
    lengths = [len(recording.values) for recording in recordings]
    least, most = min(lengths), max(lengths)
    columns = columns_of(recordings)
    some = ", ".join(columns[:12]) + (", …" if len(columns) > 12 else "")
    return (
        f"recordings: {len(lengths)}, samples: {least if least == most else f'{least} to {most}'}, "
        f"channels: {recordings[0].values.shape[1]}" + (f" ({some})" if columns else "")
    )


def columns_of(recordings: Sequence[Recording]) -> tuple[str, ...]:
    """The names of the channels, from the first file that has them."""
    return next((recording.columns for recording in recordings if recording.columns), ())


def check_order(name: str, columns: Sequence[str], others: Sequence[Recording]) -> None:
    """Refuse recordings with a column of ``name`` in another position: channels would be mixed."""
    for other in others:
        for first, here in zip(columns, other.columns, strict=False):
            if here != first and here in columns:
                raise InputError(
                    f"recordings must have their columns in one order: {other.name} has {here!r} "
                    f"where {name} has {first!r}"
                )


def _read_file(path: Path) -> Iterator[Recording]:
    try:
        suffix = path.suffix.lower()
        if suffix == ".npy":
            yield from _split(path.stem, np.load(path, mmap_mode="r", allow_pickle=False))
        elif suffix == ".npz":
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files}
                _refuse_labels(path, arrays)
                for name, array in arrays.items():
                    yield from _split(f"{path.stem}.{name}", array)
        elif suffix == ".csv":
            values, columns = _read_csv(path)
            yield from (r._replace(columns=columns) for r in _split(path.stem, values))
        else:
            raise InputError(f"{path} must end in .npy, .npz or .csv")
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _refuse_labels(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Refuse a vector as long as another array has series: it holds labels, not a recording."""
    for name, array in arrays.items():
        if array.ndim == 1 and any(a.ndim == 3 and len(a) == len(array) for a in arrays.values()):
            raise InputError(
                f"{path}: {name} {array.shape} looks like labels; an .npz file holds recordings "
                "only, labels go into a file of their own, given with --labels"
            )


def _split(name: str, array: np.ndarray) -> Iterator[Recording]:
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim == 2:
        yield Recording(name, array)
    elif array.ndim == 3:
        yield from (Recording(f"{name}.{i}", values) for i, values in enumerate(array))
    else:
        raise InputError(
            f"{name} must be (time, channels) or (batch, time, channels), got shape {array.shape}"
        )


def _read_csv(path: Path) -> tuple[np.ndarray, tuple[str, ...]]:
    """The values and column names of a file with one column per channel; empty cells are missing.

    A column ``date`` becomes the time covariates, which come before the others.
    """
    import pandas as pd

    has_header, several_columns = csv_layout(path)
    # in a file of one channel a blank line is a missing sample
    table = read_csv(path, header=0 if has_header else None, skip_blank_lines=several_columns)
    if not len(table):
        raise InputError(f"{path} has no rows below its header")
    dates = None
    if "date" in table.columns:
        table = by_date(table.dropna(how="all"), str(path))  # a blank line has no date
        dates = table.index
    bad = [str(name) for name in table.columns if not pd.api.types.is_numeric_dtype(table[name])]
    if bad:
        raise InputError(
            f"{path} must hold numbers only; column {', '.join(bad)} does not{_hint(bad)}"
        )
    values = table.to_numpy(dtype=np.float64)
    columns = tuple(map(str, table.columns)) if has_header else ()
    if dates is None:
        return values, columns
    return np.concatenate([time_covariates(dates), values], axis=1), (*COVARIATES, *columns)


def _hint(columns: Sequence[str]) -> str:
    dates = "date", "datetime", "time", "timestamp", "unnamed: 0"
    if any(mark in name for name in columns for mark in ";\t|"):
        return "; is it separated by something else than commas?"
    if any(name.lower() in dates for name in columns):
        return "; dates are read from a column called date"
    return ""
