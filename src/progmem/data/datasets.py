"""The paper's data sets by name: where their files are, whether they are right, what they hold.

Shapes: R series, L samples, C channels. Arrays are (cases, channels, time), as in aeon and sktime.
"""

import difflib
import gzip
import hashlib
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from progmem import guard
from progmem.data.dates import by_date
from progmem.data.sets import DatedSeries, LabelledSet
from progmem.data.splits import choose_rows, options_of
from progmem.errors import InputError

ANEW = "make its file anew with progmem data convert"
DATA_VARIABLE = "PROGMEM_DATA"  # the one environment variable: the folder of the files
MAIN_ARRAYS = ("X_train", "y_train", "X_test", "y_test")


class LabelledFile(NamedTuple):
    """What a .npz file must hold: X_train, y_train, X_test, y_test, and further arrays."""

    file: str
    train: int
    test: int
    length: int
    channels: int
    sha256: str  # of the four arrays, however they are compressed
    extra_sha256: str  # of ``classes`` and of ``extra``
    extra: tuple[str, ...] = ()  # arrays about the rows: their recordings, their split
    converted_sha256: str | None = None  # the same, in a file made by `progmem data convert`

    def describe(self) -> str:
        return (
            f"{self.train} + {self.test} series of {self.length} samples, {self.channels} channels"
        )


class DatedFile(NamedTuple):
    """What a .csv.gz file must hold, and where its parts end."""

    file: str
    rows: int
    columns: tuple[str, ...] | int  # their number, where the names are not known beforehand
    target: str  # the column of univariate forecasting
    ends: tuple[int, int, int]  # of train, validation, test
    first: str | None  # the true first date, where the file's dates are made up
    sha256: str | None  # of the unpacked file; None: not known

    def describe(self) -> str:
        if isinstance(self.columns, int):
            return f"{self.rows} hourly rows, {self.columns} columns, {self.target} among them"
        return f"{self.rows} hourly rows, columns {', '.join(self.columns)}"


FILES: dict[str, LabelledFile | DatedFile] = {
    "HAR": LabelledFile(
        "HAR.npz", 7352, 2947, 128, 9,
        "ef0d03eba3dd6b482854390be358417cb7bd74e0b5909541f6c8826a1f6ac4f3",
        "437b570413ff1ed448ffe90a66c64468ffbf55a53064127529626e843085d582",
        ("subject_train", "subject_test", "experiment_train", "experiment_test", "start_train",
         "start_test", "tstcc_train_idx", "tstcc_val_idx"),
        "55f8e72e71db294ca92e02a3495286b9dcad53a10fb72c892fcbde5deb91a812",
    ),
    "Epilepsy": LabelledFile(
        "Epilepsy.npz", 9200, 2300, 178, 1,
        "d4496b52cd16dd04968fe3548070219058bb49a45b8569c6b2f627c6eff5e58b",
        "48befb3ec3c26a75d003c377e9c47ec2cd89a53a36674395996a8c7146c3cae7",
        ("y_train_binary", "y_test_binary", "recording_train", "recording_test", "chunk_train",
         "chunk_test", "n_train_without_val", "column_min", "column_max"),
    ),
    "Wafer": LabelledFile(
        "Wafer.npz", 1000, 6164, 152, 1,
        "469cc439e6854565eab5bc9d02f9efad0d79e6688c7d0ee9c7dcfe97f0a74274",
        "abdb8c7fd3c86c102e740049b8b5b61ac52505b53077dceff22372e489a49116",
    ),
    "FordA": LabelledFile(
        "FordA.npz", 3601, 1320, 500, 1,
        "7342d6b02ebcef97a4bff89d44b3ac6eabe9ad86181db89a1b4ecc73dd65db40",
        "abdb8c7fd3c86c102e740049b8b5b61ac52505b53077dceff22372e489a49116",
    ),
    "FordB": LabelledFile(
        "FordB.npz", 3636, 810, 500, 1,
        "a7319634029f36fefb844d035b2090f7ec9a19d7ec08f0aaa19446ad5abf78cc",
        "abdb8c7fd3c86c102e740049b8b5b61ac52505b53077dceff22372e489a49116",
    ),
    "PhalangesOutlinesCorrect": LabelledFile(
        "PhalangesOutlinesCorrect.npz", 1800, 858, 80, 1,
        "ba7cafc7ae60975547f9f300d3b8211fe5749da6e26f9a6ef1fea67465568782",
        "0aae385fbe56f953190f1f982752ea397ca987db7e3d710e44eef4678b9efc08",
    ),
    "ElectricDevices": LabelledFile(
        "ElectricDevices.npz", 8926, 7711, 96, 1,
        "88f2f2eba462f9fe5dd758eb41e475d052cfc7a785ab25ab9ab6740bc4debe10",
        "1e99bf4bf44c97bdc1d5c5b554c73eee63f7ad0ecbc3a2fe81ad57975f27f25e",
    ),
    "ETTh1": DatedFile(
        "ETTh1.csv.gz", 17420, ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"), "OT",
        (8640, 11520, 14400), None,
        "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
    ),
    "Electricity": DatedFile(
        "electricity_2clients.csv.gz", 26304, ("0", "OT"), "0",
        (15782, 21043, 26304), "2012-01-01",
        "20a7ef13dda01992b2db40760338f0be0eb5039e2a4c33f56953d4196a21392d",
    ),
    "Electricity321": DatedFile(
        "Electricity321.csv.gz", 26304, 321, "MT_001", (15782, 21043, 26304), None, None,
    ),
}  # fmt: skip
LABELLED = tuple(name for name, file in FILES.items() if isinstance(file, LabelledFile))


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    split: str = "official",
    scaling: str = "none",
    labels: str = "paper",
) -> LabelledSet | DatedSeries:
    """One of the paper's data sets, its file checked by shape and checksum.

    Args:
        name: one of ``FILES``.
        data_dir: the folder of the files; None: that of the environment variable PROGMEM_DATA.
        split: "official"; "validation" (a fifth of the training rows is held out in place of the
            test rows, by whole subjects or recordings where they are known); and what a set has
            beside them, see `progmem.data.splits`.
        scaling: "none", or "tstcc" for Epilepsy: to 0..1 by all rows, test rows included.
        labels: "paper", or "five" for Epilepsy, which is seizure or not by default.
    """
    file, path = FILES[check_name(name, data_dir)], find_file(name, data_dir)
    if isinstance(file, DatedFile):
        options = {"split": split, "scaling": scaling, "labels": labels}
        plain = {"split": "official", "scaling": "none", "labels": "paper"}
        if options != plain:
            raise InputError(f"{name} has its own split by date, and no other options")
        return _read_dated(name, file, path)
    options_of(name, split=split, scaling=scaling, labels=labels)
    return choose_rows(
        name, _read_labelled(file, path), split=split, scaling=scaling, labels=labels
    )


def load_labelled(name: str, data_dir: str | Path | None = None, **options: str) -> LabelledSet:
    """`load` of a set with labels; others are refused."""
    if check_name(name, data_dir) not in LABELLED:
        raise InputError(f"{name} has no labels; those that have: {', '.join(LABELLED)}")
    found = load(name, data_dir, **options)
    assert isinstance(found, LabelledSet)
    return found


def check_name(name: str, data_dir: str | Path | None) -> str:
    """``name``, if there is such a set."""
    if name not in FILES:
        near = difflib.get_close_matches(name.lower(), [known.lower() for known in FILES], n=1)
        meant = next((known for known in FILES if near and known.lower() == near[0]), None)
        hint = f"did you mean {meant!r}? " if meant else ""
        raise InputError(
            f"unknown data set {name!r}; {hint}known: {', '.join(FILES)}; "
            f"their files are looked for in "
            f"{data_folder(data_dir) or f'the folder {DATA_VARIABLE} names'}"
        )
    return name


def find_file(name: str, data_dir: str | Path | None) -> Path:
    """The file of a known set."""
    folder = data_folder(data_dir)
    if folder is None:
        raise InputError(
            f"where is {FILES[name].file}? Give its folder as data_dir (--data-dir on the command "
            f"line) or in the environment variable {DATA_VARIABLE}"
        )
    path = folder / FILES[name].file
    if not path.is_file():
        raise InputError(
            f"{path} is not there; {name} is looked for in {folder}, which --data-dir or "
            f"{DATA_VARIABLE} names"
        )
    return path


def data_folder(data_dir: str | Path | None) -> Path | None:
    named = data_dir if data_dir is not None else os.environ.get(DATA_VARIABLE)
    return Path(named) if named else None  # an empty variable is an unset one


def content_sha256(arrays: dict[str, np.ndarray], names: Sequence[str] = MAIN_ARRAYS) -> str:
    """Checksum of arrays' names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in names:
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _read_labelled(file: LabelledFile, path: Path) -> dict[str, np.ndarray]:
    try:
        arrays = guard.load_npz(path, None)
    except InputError as error:
        raise InputError(f"{path} is larger than this set; {ANEW}") from error
    except guard.UNREADABLE as error:
        raise InputError(f"{path} cannot be read: {guard.first_line(error)}") from error
    missing = [name for name in (*MAIN_ARRAYS, "classes", *file.extra) if name not in arrays]
    if missing:
        raise InputError(f"{path} has no {', '.join(missing)}")
    for name, count in (("X_train", file.train), ("X_test", file.test)):
        shape = (count, file.length, file.channels)
        if arrays[name].shape != shape:
            raise InputError(f"{path}: {name} must have shape {shape}, got {arrays[name].shape}")
    _check_sha256(path, content_sha256(arrays), file.sha256)
    found = content_sha256(arrays, ("classes", *file.extra))
    if found != file.converted_sha256:
        _check_sha256(path, found, file.extra_sha256)
    return arrays


def _read_dated(name: str, file: DatedFile, path: Path) -> DatedSeries:
    import pandas as pd

    try:
        guard.check_text(path, ",", None)
        text = gzip.decompress(path.read_bytes())
    except InputError as error:
        raise InputError(f"{path} is larger than this set; {ANEW}") from error
    except guard.UNREADABLE as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if file.sha256 is not None:
        _check_sha256(path, hashlib.sha256(text).hexdigest(), file.sha256)
    try:
        table = pd.read_csv(io.BytesIO(text))
    except ValueError as error:  # ragged rows, or no text; without a checksum anything may come
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    date, *columns = map(str, table.columns)
    expected = file.columns
    matches = len(columns) == expected if isinstance(expected, int) else tuple(columns) == expected
    if date != "date" or not matches or file.target not in columns or len(table) != file.rows:
        raise InputError(f"{path} must have {file.describe()}")
    for column in columns:
        if not pd.api.types.is_numeric_dtype(table[column]):
            raise InputError(f"{path} must hold numbers; column {column} does not")
    table = by_date(table, str(path))
    dates = table.index
    if file.first is not None:
        dates = dates - dates[0] + pd.Timestamp(file.first)
    ends = (0, *file.ends)
    bounds = {
        part: (ends[i], ends[i + 1]) for i, part in enumerate(("train", "validation", "test"))
    }
    values = table[columns].to_numpy(dtype=np.float64)
    return DatedSeries(name, values, tuple(columns), dates.to_numpy(), file.target, bounds)


def _check_sha256(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise InputError(
            f"{path} is damaged or another version: the sha256 of its content is {found[:12]}…, "
            f"not {expected[:12]}…"
        )


def list_lines(data_dir: str | Path | None) -> list[str]:
    """One line per set: its name, its content, and whether its file is there."""
    folder = data_folder(data_dir)
    lines = [
        f"files are looked for in {folder or f'no folder yet: give --data-dir or {DATA_VARIABLE}'}"
    ]
    for name, file in FILES.items():
        there = folder is not None and (folder / file.file).is_file()
        state = "there  " if there else "missing"
        lines.append(f"{name:26}{state}  {file.file}: {file.describe()}")
    return lines


def check_lines(data_dir: str | Path | None) -> tuple[list[str], bool]:
    """One line per set after reading it, and whether all files that are there are as expected."""
    folder = data_folder(data_dir)
    if folder is None:
        raise InputError(f"give the folder of the files with --data-dir or in {DATA_VARIABLE}")
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if not any((folder / file.file).is_file() for file in FILES.values()):
        raise InputError(f"none of the files is in {folder}")
    checked = [check_line(name, folder) for name in FILES]
    return [line for line, _ in checked], all(good for _, good in checked)


def check_line(name: str, data_dir: str | Path | None) -> tuple[str, bool]:
    """The outcome of reading a set in one line, and whether its file is as expected."""
    file = FILES[name]
    try:
        path = find_file(name, data_dir)
    except InputError:
        return f"{name:26}missing  {file.file}", True
    try:
        load(name, data_dir)
    except InputError as error:
        return f"{name:26}WRONG    {error}", False
    checked = f"content sha256 {file.sha256[:12]}…" if file.sha256 else "no checksum is known"
    return f"{name:26}ok       {path}, {file.describe()}, {checked}", True
