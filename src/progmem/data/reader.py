"""The one reader of recordings: files, folders, arrays and tables, for commands and for Python.

Shapes: B series, L samples, C channels.
"""

import csv
import errno
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from progmem import guard
from progmem.data.arrays import CASES, FILES, Axes, from_xarray, mask_sentinels, split_array
from progmem.data.csv_files import check_last_line, csv_layout, read_csv
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.recordings import (
    Recording,
    Recordings,
    check_channels,
    with_printable_names,
)
from progmem.data.signals import checked, read_edf, read_miniseed, read_wfdb
from progmem.data.tables import Split, is_table, split_table, to_pandas
from progmem.errors import InputError, RepairableError
from progmem.names import printable, printable_labels
from progmem.progress import Log, progress

MOST_FILES = 2**16  # open at once
EXTRA = "pip install 'progmem[data]'"


def read(
    source: Any,
    *,
    layout: str | None = None,
    case: str | None = None,
    time: str | None = None,
    channel: str | None = None,
    value: str | None = None,
    label: str | None = None,
    sep: str | None = None,
    decimal: str | None = None,
    date_column: str | None = None,
    date_format: str | None = None,
    missing: Any = (),
    fill_gaps: bool = False,
    drop_duplicates: bool = False,
    limit: Any = None,
) -> Recordings:
    """The recordings of a file, a folder, an array or a table, as all commands read them.

    An array of three axes is (series, time, channels), one of two is one recording (time,
    channels), a vector is one channel. A table is long if it has a column of cases, otherwise one
    recording with a row for each sample. What could as well be something else is refused, and
    ``layout`` decides.

    Args:
        source: a path of a file or a folder, which may have folders in it; numpy, torch; a list of
            arrays or tables, one for each recording; a dict of arrays by name; pandas, polars,
            xarray.
        layout: what the axes are: "time,channels" or "channels,time" for one recording,
            "series,time", "series,time,channels" or "series,channels,time" for several. A table is
            "time,channels", "series,time" (one series a row) or "long".
        case: the column that names the case in a long table, which has one row per sample; by
            default one called case, case_id, case_index, series, series_id,
            unique_id or item_id.
        time: the column of dates or times; by default one called date, datetime, timestamp, time,
            time_index or ds. It is no channel. Dates go with the recordings.
        channel: in a table of one row per case, time and channel: the column that names the
            channel, with ``value`` that of the values.
        label: the column of the labels, which are then in ``labels`` of what is returned.
        sep: what separates the cells of a text file; by default a comma, in a .tsv file a tab.
        decimal: the decimal sign of the numbers in a text file; by default a point.
        date_column: ``time``, by the name that the commands use.
        date_format: how dates are written if not year first, such as "%d.%m.%Y %H:%M".
        missing: a number such as -9999, or several, or texts that stand for a missing value.
        fill_gaps: whether to put rows of NaN where dates or times leave samples out.
        drop_duplicates: whether to keep only the first of several rows of one time.
        limit: how much memory the content of a file may take, in bytes or as a text such as "4GB";
            by default fifty times the size of the file, and no more than is free.

    Example:
        >>> import pandas as pd, progmem
        >>> dates = pd.date_range("2024-05-31", periods=4, freq="h")
        >>> table = pd.DataFrame({"kW": [3.0, 4.0, -9999, 5.0]}, index=dates)
        >>> found = progmem.read(table, missing=-9999)
        >>> found.lines()
        ['recordings: 1, samples: 4, channels: 1 (kW)']
        >>> found[0].values.ravel()
        array([ 3.,  4., nan,  5.])
        >>> str(found[0].calendar.start), found[0].rate * 3600  # samples an hour
        ('2024-05-31 00:00:00', 1.0)
    """
    options = ReadOptions(
        layout=layout, case=case, time=time, channel=channel, value=value, label=label, sep=sep,
        decimal=decimal, date_column=date_column, date_format=date_format, missing=missing,
        fill_gaps=fill_gaps, drop_duplicates=drop_duplicates, limit=limit,
    )  # fmt: skip
    return read_with(source, options)


def read_with(
    source: Any,
    options: ReadOptions = BY_RULE,
    *,
    axes: Axes = FILES,
    log: Log | None = None,
) -> Recordings:
    """`read`, with its options in one and the axes of arrays in memory where nobody says.

    ``log`` is told how far it is with the files of a folder.
    """
    if isinstance(source, Recordings):
        return source
    skipped: tuple[str, ...] = ()
    if isinstance(source, str | Path):
        found, skipped = _read_path(Path(source), options, log)
    else:
        found = _read_object(source, options, axes)
    if not found.recordings:
        raise InputError("there are no series; give at least one")
    found = found._replace(recordings=[with_printable_names(r) for r in found.recordings])
    for recording in found.recordings:
        if not np.prod(recording.values.shape):
            shape = tuple(recording.values.shape)
            raise InputError(f"{recording.name} has no values, got shape {shape}")
    name, count = Counter(recording.name for recording in found.recordings).most_common(1)[0]
    if count > 1:
        raise InputError(f"{source} holds {count} recordings called {name!r}; rename their files")
    cases = axes is CASES and isinstance(source, list | tuple)
    check_channels(found.recordings, "; a case is (channels, time)" if cases else "")
    items = tuple(mask_sentinels(found.recordings, options.missing_numbers))
    notes, skipped = (tuple(map(printable, texts)) for texts in (found.notes, skipped))
    labels = None if found.labels is None else printable_labels(found.labels)
    return Recordings(items, labels, notes, skipped)


def _read_object(source: Any, options: ReadOptions, axes: Axes) -> Split:
    if is_table(source):
        return split_table(to_pandas(source), "", options, axes)
    xarray: Any = sys.modules.get("xarray")
    if xarray is not None and isinstance(source, xarray.DataArray | xarray.Dataset):
        options.refuse_columns("an xarray")
        return Split(from_xarray(source, options.layout))
    if type(source).__name__ == "LazyFrame":
        raise InputError("a LazyFrame holds no values yet; give what its collect() returns")
    if type(source) is dict:
        options.refuse_columns(type(source).__name__)
        return _split_arrays("", {str(n): np.asarray(a) for n, a in source.items()}, options, axes)
    if isinstance(source, list | tuple):
        if source and all(isinstance(one, Recording) for one in source):
            return Split(list(source))
        return _join([_read_item(one, i, options, axes) for i, one in enumerate(source)])
    options.refuse_columns(type(source).__name__)
    found = split_array(source, "", options.layout, axes)
    return Split([r._replace(name=r.name or "series 0") for r in found])


def _read_item(one: Any, number: int, options: ReadOptions, axes: Axes) -> Split:
    """One recording of a list."""
    name = f"series {number}"
    if is_table(one):
        return split_table(to_pandas(one), name, options, axes._replace(table="time,channels"))
    options.refuse_columns("a list of arrays")
    if options.layout is not None and "series" in options.layout:
        raise InputError(
            f"a list holds one recording in each place, so layout is time,channels or "
            f"channels,time, got {options.layout!r}"
        )
    return Split(split_array(one, name, options.layout, axes, in_list=True))


def _join(parts: list[Split]) -> Split:
    labels = None
    if any(part.labels is not None for part in parts):  # None: of a recording that has no label
        labels = np.concatenate([
            np.full(len(part.recordings), None) if part.labels is None else part.labels
            for part in parts
        ])  # fmt: skip
    return Split(
        [recording for part in parts for recording in part.recordings],
        labels,
        tuple(note for part in parts for note in part.notes),
    )


def _read_path(path: Path, options: ReadOptions, log: Log | None) -> tuple[Split, tuple[str, ...]]:
    if not path.exists():
        raise InputError(f"there is no {path}; give a {_KINDS} file or a folder of them")
    if not path.is_dir():
        if kind_of(path) not in SUFFIXES:
            raise InputError(f"{path} must end in one of {_KINDS}")
        return _read_file(path, stem_of(path), options), ()
    ours: list[Path] = []
    skipped: list[Path] = []
    files = sorted(path.rglob("*"), key=lambda file: file.relative_to(path).parts)
    heads = {file.with_suffix("") for file in files if kind_of(file) == ".hea"}
    for file in files:
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if hidden or not file.is_file():
            continue
        if kind_of(file) in SUFFIXES and not _holds_labels(file):
            ours.append(file)
        elif file.with_suffix("") not in heads:  # the samples and notes of a WFDB record
            skipped.append(file)
    names = tuple(file.relative_to(path).as_posix() for file in skipped)
    if not ours:
        there = f"; it has {', '.join(names[:5])}" if names else ""
        raise InputError(f"{path} holds no {_KINDS} file{there}")
    parts = []
    with progress(f"reading {len(ours)} files", len(ours), log=log, begun=True) as advance:
        for file in ours:
            name = (file.parent / stem_of(file)).relative_to(path).as_posix()
            part = _read_file(file, name, options)
            own = [
                r if f"{r.name}.".startswith(f"{name}.") else r._replace(name=f"{name}.{r.name}")
                for r in part.recordings
            ]
            parts.append(part._replace(recordings=own))
            advance(1)
    joined = _join(parts)
    if not joined.recordings:
        raise InputError(f"{path} holds no recording: its arrays are empty")
    return joined, names


def kind_of(path: Path) -> str:
    """The suffix that says what a file holds: .csv also of a .csv.gz file."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = len(suffixes) > 1 and suffixes[-1] == ".gz" and suffixes[-2] in (".csv", ".tsv")
    return suffixes[-2] if packed else path.suffix.lower()


def stem_of(path: Path) -> str:
    """The name of a file without the suffixes that say what it holds."""
    return Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem


def _holds_labels(path: Path) -> bool:
    """Whether this is the file of labels that lies beside its recordings."""
    if path.name.lower() != "labels.csv":
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        head = next(csv.reader([stream.readline(guard.PIECE)]), [])
    return "label" in [name.strip() for name in head]


def _read_file(path: Path, name: str, options: ReadOptions) -> Split:
    try:
        return SUFFIXES[kind_of(path)](path, name, options)
    except InputError as error:
        text = str(error).removeprefix(f"{name}: ")
        text = text if str(path) in text else f"{path}: {text}"
        if isinstance(error, RepairableError):
            raise RepairableError(text, option=error.option) from error
        raise InputError(text) from error
    except ImportError as error:
        package = str(error.name or error).partition(".")[0]
        raise InputError(f"{path} needs {package}: {EXTRA}") from error
    except guard.UNREADABLE as error:
        raise InputError(f"{path} cannot be read: {guard.first_line(error)}") from error


def _read_npy(path: Path, name: str, options: ReadOptions) -> Split:
    options.refuse_columns("a .npy file")
    with path.open("rb") as stream:
        head = stream.read(len(guard.NPY))
        if not head:
            raise ValueError("No data left in file")
        if head != guard.NPY and head.isascii():
            raise ValueError(
                "it does not begin as .npy files do; it begins with text: is it a .csv file?"
            )
        stream.seek(0)
        guard.check_npy(stream, path.stat().st_size)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        if error.errno != errno.EMFILE or not _raise_file_limit():
            raise
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    _check_series(path, [array], options)
    return Split(split_array(array, name, options.layout, FILES))


def _raise_file_limit() -> bool:
    """Allow this process as many open files as it may have: each mapped file is one."""
    try:
        import resource
    except ImportError:  # not on Windows
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if most <= soft:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return True


def _read_npz(path: Path, name: str, options: ReadOptions) -> Split:
    options.refuse_columns("a .npz file")
    arrays = guard.load_npz(path, options.limit)
    _check_series(path, list(arrays.values()), options)
    return _split_arrays(name, arrays, options, FILES)


def _check_series(path: Path, arrays: Sequence[np.ndarray], options: ReadOptions) -> None:
    """Refuse arrays of more series than there is room for, however small these are."""
    split = (options.layout or "").startswith("series")
    counts = [len(array) for array in arrays if array.ndim == 3 or (split and array.ndim == 2)]
    guard.check_series(path, sum(counts), options.limit)


def _split_arrays(
    name: str, arrays: Mapping[str, np.ndarray], options: ReadOptions, axes: Axes
) -> Split:
    """Arrays by name: X or X_train with its labels y or y_train, or recordings."""
    if not arrays:
        raise InputError("it holds no array")
    labels = {key: "y" + key[1:] for key in arrays if "y" + key[1:] in arrays and key[0] in "xX"}
    parts, three = [], [len(a) for a in arrays.values() if a.ndim > 2]
    for key, array in arrays.items():
        if key in labels.values():
            continue
        if array.ndim == 1 and len(array) in three:
            raise InputError(
                f"{key} {array.shape} looks like labels; name the series X and their labels y, or "
                "give labels in a file of their own, with --labels"
            )
        whole = f"{name}.{key}" if name else key
        found = split_array(array, whole, options.layout, axes)
        y = arrays[labels[key]] if key in labels else None
        if y is not None and y.shape != (len(found),):
            raise InputError(
                f"{labels[key]} has shape {y.shape}, {key} holds {len(found)} series; give one "
                "label for each"
            )
        parts.append(Split(found, y))
    return _join(parts)


def _read_text(path: Path, name: str, options: ReadOptions) -> Split:
    """A .csv or .tsv file. A .tsv file without names of columns is as the UCR archive has it."""
    tabs = kind_of(path) == ".tsv"
    sep = options.sep or ("\t" if tabs else ",")
    decimal = options.decimal or "."
    if decimal == sep:
        raise InputError(f"{decimal!r} cannot be the decimal sign and separate cells: say sep")
    wide = options.layout == "series,time"
    guard.check_text(path, sep, options.limit)
    has_header, several_columns = csv_layout(path, wide=wide, sep=sep, decimal=decimal)
    # in a file of one channel a blank line is a missing sample
    table = read_csv(
        path, header=0 if has_header else None, skip_blank_lines=several_columns, sep=sep,
        decimal=decimal,
        na_values=options.missing_texts or None,
    )  # fmt: skip
    if not len(table):
        raise InputError(f"{path} has no rows below its header")
    if has_header and not wide and path.suffix.lower() != ".gz":  # a packed one knows its end
        check_last_line(path, sep)
    if not tabs or has_header or options.layout is not None:
        return split_table(table, name, options, FILES)
    options.refuse_columns("a .tsv file without names of columns")
    classes = table[0]
    numbers = classes.dtype.kind in "iuf" and bool((classes == classes.round()).all())
    if table.shape[1] < 3 or not numbers:
        raise InputError(
            "a .tsv file without names of columns has a class, a whole number, and then the "
            "samples of a series in each row; say layout='time,channels' (--layout) for a recording"
        )
    found = split_table(
        table, name, ReadOptions(layout="series,time", label=cast(str, classes.name)), FILES
    )
    assert found.labels is not None
    notes = (f"{name} is read as files of the UCR archive: a class, then one series, in each row",)
    return found._replace(labels=found.labels.astype(np.int64), notes=notes)


def _read_parquet(path: Path, name: str, options: ReadOptions) -> Split:
    import pandas as pd
    import pyarrow  # noqa: F401  # which pandas would not name

    guard.check_parquet(path, options.limit)
    table = checked(pd.read_parquet, path, engine="pyarrow")
    return split_table(table, name, options, FILES)


AEON = {".ts": "load_from_ts_file", ".arff": "load_from_arff_file"}


def _read_with_aeon(path: Path, name: str, options: ReadOptions) -> Split:
    options.refuse_columns(f"a {kind_of(path)} file")
    if options.layout is not None:
        raise InputError(f"a {kind_of(path)} file says itself what its axes are; leave layout out")
    import aeon.datasets as readers

    guard.check_text(path, ",", options.limit, column=0)  # between samples
    between_channels = ":" if kind_of(path) == ".ts" else "\\"
    guard.check_text(path, between_channels, options.limit, whole=True)
    if kind_of(path) == ".arff":
        _check_arff(path)
    found: Any = checked(getattr(readers, AEON[kind_of(path)]), str(path))
    x, y = found if isinstance(found, tuple) else (found, None)
    if not len(x):
        raise InputError("there are no series; give at least one")
    recordings = [  # aeon has (channels, time)
        Recording(f"{name}.{i}", np.atleast_2d(one).T) for i, one in enumerate(x)
    ]
    return Split(recordings, np.asarray(y) if y is not None and len(y) else None)


def _check_arff(path: Path) -> None:
    """Refuse a file whose last column is no class, which aeon would take for one."""
    last = ""
    with path.open(encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if line.lower().startswith("@data"):
                break
            last = line if line.lower().startswith("@attribute") else last
    if last and not last.rstrip().endswith("}"):
        raise InputError(
            f"its last attribute is no class such as {{a,b}}, but {' '.join(last.split()[1:])[:60]}"
            ": a series is a row that ends with its class; save other tables as .csv"
        )


SUFFIXES: dict[str, Callable[[Path, str, ReadOptions], Split]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_text,
    ".tsv": _read_text,
    ".parquet": _read_parquet,
    ".ts": _read_with_aeon,
    ".arff": _read_with_aeon,
    ".edf": read_edf,
    ".bdf": read_edf,
    ".hea": read_wfdb,
    ".mseed": read_miniseed,
    ".miniseed": read_miniseed,
}
_KINDS = f"{', '.join(list(SUFFIXES)[:-1])} or {list(SUFFIXES)[-1]}"
