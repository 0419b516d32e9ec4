"""Sets of the UCR and UEA archives: NAME_TRAIN and NAME_TEST as .tsv, .txt, .ts or .arff.

.tsv (the UCR archive) and .txt hold one series per row, its label first; .ts and .arff (timeseries
classification.com) may have several channels and unequal lengths, and are read by aeon.

Shapes: R series, L samples, C channels.
"""

import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from progmem.data.converters.archive import Archive
from progmem.data.options import ReadOptions
from progmem.data.reader import read_with
from progmem.errors import InputError

FORMATS = (".tsv", ".txt", ".ts", ".arff")  # in order of preference: the plainest first
FILE = re.compile(r"(.+)_(TRAIN|TEST)(\.tsv|\.txt|\.ts|\.arff)")
ONE_CHANNEL = re.compile(r".+Dimension\d+")  # of a set of several, given beside the whole


def find(archive: Archive) -> list[str]:
    matches = [FILE.fullmatch(PurePosixPath(member).name) for member in archive.members]
    names = sorted({match[1] for match in matches if match})
    return [name for name in names if not ONE_CHANNEL.fullmatch(name)]


def read(archive: Archive, name: str) -> dict[str, np.ndarray]:
    """The arrays of a set; series that end early are filled up with NaN, ``length`` tells."""
    names = {PurePosixPath(member).name for member in archive.members}
    complete = [f for f in FORMATS if {f"{name}_TRAIN{f}", f"{name}_TEST{f}"} <= names]
    if not complete:
        there = sorted(n for n in names if (match := FILE.fullmatch(n)) and match[1] == name)
        raise InputError(
            f"{archive.path} must have both {name}_TRAIN and {name}_TEST in one format, has "
            f"{', '.join(there)}"
        )
    files = [f"{name}_{part}{complete[0]}" for part in ("TRAIN", "TEST")]
    members = archive.all_of(files)
    reader = _read_rows if complete[0] in (".tsv", ".txt") else _read_with_aeon
    (x_train, labels_train), (x_test, labels_test) = (reader(archive, members[f]) for f in files)
    if x_train[0].shape[0] != x_test[0].shape[0]:
        raise InputError(
            f"{name} must have the same channels in both parts, got {x_train[0].shape[0]} and "
            f"{x_test[0].shape[0]}"
        )
    lengths = {series.shape[1] for series in (*x_train, *x_test)}
    classes = _classes([*labels_train, *labels_test])
    values = list(dict.fromkeys(classes.values()))  # 1 and 1.0 are one class
    arrays = {"classes": np.array(values)}
    for part, x, labels in (("train", x_train, labels_train), ("test", x_test, labels_test)):
        y = np.array([values.index(classes[label]) for label in labels], dtype=np.int64)
        arrays |= {f"X_{part}": _stacked(x, max(lengths)), f"y_{part}": y}
        if len(lengths) > 1:
            arrays[f"length_{part}"] = np.array([series.shape[1] for series in x])
    return arrays


def _read_rows(archive: Archive, member: str) -> tuple[list[np.ndarray], list[str]]:
    rows = archive.rows(member)
    labels = [cells[0] for cells in rows]
    values = archive.numbers(member, [cells[1:] for cells in rows])
    if not values.shape[1]:
        raise InputError(f"{member} must have a label and values in each row, has one column")
    return list(values[:, None]), labels


def _read_with_aeon(archive: Archive, member: str) -> tuple[list[np.ndarray], list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / PurePosixPath(member).name
        with archive.members[member]() as packed, file.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
        try:
            found = read_with(file, ReadOptions(limit=archive.limit))
        except InputError as error:  # names the copy, which no one knows
            why = str(error).replace(str(file), member)
            raise InputError(f"{archive.path}: {why}") from error
    if found.labels is None:
        raise InputError(f"{member} in {archive.path} has no labels")
    return [values.T for values in found.values], [str(label) for label in found.labels]


def _classes(labels: list[str]) -> dict[str, Any]:
    """What each label means, in order: a whole number where all are, else its text."""
    try:
        values = {label: float(label) for label in labels}
        if all(value.is_integer() for value in values.values()):
            return {k: int(v) for k, v in sorted(values.items(), key=lambda item: item[1])}
    except ValueError:
        pass
    return {label: label for label in sorted(set(labels))}


def _stacked(series: list[np.ndarray], length: int) -> np.ndarray:
    x = np.full((len(series), length, len(series[0])), np.nan, dtype=np.float32)  # (R, L, C)
    for row, values in zip(x, series, strict=True):
        row[: values.shape[1]] = values.T
    return x
