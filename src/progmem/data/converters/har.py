"""UCI "Human Activity Recognition Using Smartphones": 18 files of signals, subjects, activities.

The archive does not say which windows share samples, but they do so exactly: where the end of a
window is the beginning of the next one of that subject, they were cut from one bout.

Shapes: R windows, L samples, C channels.
"""

import numpy as np

from progmem.data.converters.archive import Archive
from progmem.errors import InputError

CHANNELS = [
    f"{signal}_{axis}" for signal in ("body_acc", "body_gyro", "total_acc") for axis in "xyz"
]
LENGTH = 128


def find(archive: Archive) -> list[str]:
    signals = [f"{channel}_{part}.txt" for channel in CHANNELS for part in ("train", "test")]
    return ["HAR"] if archive.ending_in(*signals, "/activity_labels.txt") else []


def read(archive: Archive, name: str) -> dict[str, np.ndarray]:
    """The arrays of the set, ``experiment`` being the number of a window's bout."""
    from sklearn.model_selection import train_test_split

    members = archive.all_of(["activity_labels.txt", *_files("train"), *_files("test")])
    labels = archive.rows(members["activity_labels.txt"])
    numbers = [cells[0] for cells in labels]
    if numbers != [str(1 + i) for i in range(len(labels))]:
        raise InputError(
            f"{archive.path}: activity_labels.txt must number the activities from 1, got "
            f"{', '.join(numbers)}"
        )
    arrays = {"classes": np.array([cells[-1] for cells in labels]), "channels": np.array(CHANNELS)}
    for part in ("train", "test"):
        arrays |= _read_part(archive, [members[file] for file in _files(part)], part, len(labels))
    rows = np.arange(len(arrays["X_train"]), dtype=np.int16)
    train, held = train_test_split(rows, test_size=0.2, random_state=42)  # as TS-TCC draws them
    return arrays | {"tstcc_train_idx": train, "tstcc_val_idx": held}


def bouts(x: np.ndarray, subject: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The number of each window's bout, and the window's first sample in it, both (R,)."""
    length = x.shape[1]
    hop = np.full(len(x) - 1, length)
    for step in range(length - 1, 0, -1):
        near = np.flatnonzero((x[:-1, step] == x[1:, 0]).all(1) & (subject[:-1] == subject[1:]))
        shared = (x[near, step:] == x[near + 1, : length - step]).all((1, 2))
        hop[near[shared]] = step
    joined = np.concatenate([[False], hop < length])
    bout = np.cumsum(~joined) - 1
    place = np.cumsum(np.where(joined, np.concatenate([[0], hop]), 0))
    start = place - place[~joined][bout]
    return bout.astype(np.int16), start.astype(np.int32)


def _files(part: str) -> list[str]:
    signals = [f"{part}/Inertial Signals/{channel}_{part}.txt" for channel in CHANNELS]
    return [f"{part}/subject_{part}.txt", f"{part}/y_{part}.txt", *signals]


def _read_part(
    archive: Archive, members: list[str], part: str, classes: int
) -> dict[str, np.ndarray]:
    values = [archive.numbers(member) for member in members]
    rows = len(values[0])
    for member, found, columns in zip(members, values, [1, 1, *[LENGTH] * 9], strict=True):
        if found.shape != (rows, columns):
            raise InputError(
                f"{member} must have {rows} rows, as the first of its files, of {columns} values, "
                f"got {found.shape[0]} of {found.shape[1]}"
            )
    if not np.isin(values[1], range(1, classes + 1)).all():
        raise InputError(f"{members[1]} must hold the numbers of activities, 1 .. {classes}")
    subject, y = (column[:, 0].astype(np.int64) for column in values[:2])
    x = np.stack(values[2:], axis=2).astype(np.float32)  # (R, L, C)
    bout, start = bouts(x, subject)
    return {
        f"X_{part}": x, f"y_{part}": y - 1, f"subject_{part}": subject.astype(np.int16),
        f"experiment_{part}": bout, f"start_{part}": start,
    }  # fmt: skip
