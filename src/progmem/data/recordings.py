"""Recordings from files: .npy, .npz and .csv, one or a folder of them, of any lengths.

Shapes: B series, L samples, C channels.
"""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from progmem.data.dates import COVARIATES, by_date, time_covariates
from progmem.data.tables import read_csv
from progmem.errors import InputError

SUFFIXES = (".npy", ".npz", ".csv")


class Recording(NamedTuple):
    """One recording, or a piece of one, and what to call it."""

    name: str
    values: Any  # (L, C) array, perhaps memory-mapped
    origin: str | None = None  # the recording a piece was cut from
    start: int = 0  # the sample of ``origin`` it begins at
    columns: tuple[str, ...] = ()  # what its file calls the channels


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
    if not covariates:
        recordings = without_covariates(recordings)
    _check_channels(recordings)
    _check_order([recording for recording in recordings if recording.columns])
    return recordings


def without_covariates(recordings: Sequence[Recording]) -> list[Recording]:
    """Dated series by their values alone; others as they are."""
    first = len(COVARIATES)
    return [
        r._replace(values=r.values[:, first:], columns=r.columns[first:])
        if r.columns[:first] == COVARIATES
        else r
        for r in recordings
    ]


def _check_channels(recordings: Sequence[Recording]) -> None:
    first = recordings[0]
    for other in recordings[1:]:
        if other.values.shape[1] != first.values.shape[1]:
            raise InputError(
                f"recordings must have the same channels: {first.name} has "
                f"{first.values.shape[1]}, {other.name} has {other.values.shape[1]}"
            )


def _check_order(named: Sequence[Recording]) -> None:
    """Refuse files that have the same columns in another order: channels would be mixed up."""
    for one in named[1:]:
        first = named[0]
        if one.columns != first.columns and sorted(one.columns) == sorted(first.columns):
            place = next(i for i, name in enumerate(one.columns) if name != first.columns[i])
            raise InputError(
                f"recordings must have their columns in one order: {one.name} has "
                f"{one.columns[place]!r} where {first.name} has {first.columns[place]!r}"
            )


def _read_file(path: Path) -> Iterator[Recording]:
    try:
        suffix = path.suffix.lower()
        if suffix == ".npy":
            yield from _split(path.stem, np.load(path, mmap_mode="r", allow_pickle=False))
        elif suffix == ".npz":
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
                for name in archive.files:
                    yield from _split(f"{path.stem}.{name}", archive[name])
        elif suffix == ".csv":
            values, columns = _read_csv(path)
            yield from (r._replace(columns=columns) for r in _split(path.stem, values))
        else:
            raise InputError(f"{path} must end in .npy, .npz or .csv")
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


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
    """One column a channel, a header if the first line is not all numbers, empty for missing.

    A column ``date`` becomes the time covariates, before the others. The second is the header.
    """
    import pandas as pd

    # in a file of one channel a blank line is a gap
    cells = pd.read_csv(
        path, header=None, nrows=1, dtype=str, keep_default_na=False, skip_blank_lines=False
    )
    first = [cell for cell in cells.iloc[0] if cell.strip().lower() not in ("", "nan")]
    named = bool(pd.to_numeric(pd.Series(first), errors="coerce").isna().any())
    table = read_csv(path, header=0 if named else None, skip_blank_lines=False)
    if not len(table):
        raise InputError(f"{path} has no rows below its header")
    dates = None
    if "date" in table.columns:
        table = by_date(table.dropna(how="all"), str(path))  # a blank line has no date
        dates = table.index
    bad = [str(name) for name in table.columns if not pd.api.types.is_numeric_dtype(table[name])]
    if bad:
        raise InputError(f"{path} must hold numbers only; column {', '.join(bad)} does not")
    values = table.to_numpy(dtype=np.float64)
    columns = tuple(map(str, table.columns)) if named else ()
    if dates is None:
        return values, columns
    return np.concatenate([time_covariates(dates), values], axis=1), (*COVARIATES, *columns)
