"""UCI "Epileptic Seizure Recognition", data.csv: 11,500 pieces of 500 recordings.

A row's name tells its piece and recording, X21.V1.791: piece 21, and "V1.791" is what R made of the
hundred equal column names of each of the five sets, Z O N F S, put beside each other.
"""

import numpy as np

from progmem.data.converters.archive import Archive
from progmem.errors import InputError

LENGTH = 178
SETS, SET_SIZE, PIECES = "ZONFS", 100, 23
SEIZURE = 1


def find(archive: Archive) -> list[str]:
    for member in archive.ending_in(".csv"):
        header = _header(archive, member)
        if "X1" in header and "X2" in header:
            return ["Epilepsy"]
    return []


def read(archive: Archive, name: str) -> dict[str, np.ndarray]:
    """The arrays of the set, its rows split as TS-TCC does."""
    from sklearn.model_selection import train_test_split

    member = next(m for m in archive.ending_in(".csv") if "X1" in _header(archive, m))
    expected = [*(f"X{i + 1}" for i in range(LENGTH)), "y"]
    header = _header(archive, member)
    if header[1:] != expected:
        missing = [column for column in expected if column not in header]
        reason = (
            f"it has no {', '.join(missing[:3])}"
            if missing
            else "it has other columns, or another order"
        )
        raise InputError(
            f"{member} must have a row's name, X1 .. X{LENGTH} and y as columns; {reason}"
        )
    rows = _below_header(archive, member, width=len(header))
    if len(rows) < 5:
        raise InputError(f"{member} must have 5 rows or more to be split, got {len(rows)}")
    recording, chunk = _places(member, rows)
    values = archive.numbers(member, [cells[1:] for cells in rows])
    if not np.isin(values[:, -1], range(1, 6)).all():
        raise InputError(f"{member} must have classes 1 .. 5 in column y")
    x, y = values[:, :-1], values[:, -1].astype(np.int64)
    merged, test = train_test_split(
        np.arange(len(y), dtype=np.int32), test_size=0.2, random_state=42
    )
    train, held = train_test_split(merged, test_size=0.2, random_state=42)
    arrays = {
        "classes": np.arange(1, 6),
        "n_train_without_val": np.array(len(train)),
        "column_min": x.min(0).astype(np.int16),
        "column_max": x.max(0).astype(np.int16),
    }
    for part, chosen in (("train", np.concatenate([train, held])), ("test", test)):
        arrays |= {
            f"X_{part}": x[chosen, :, None].astype(np.float32),
            f"y_{part}": y[chosen] - 1,
            f"y_{part}_binary": (y[chosen] != SEIZURE).astype(np.int64),
            f"row_{part}": chosen,
            f"recording_{part}": recording[chosen],
            f"chunk_{part}": chunk[chosen],
        }
    return arrays


def _places(member: str, rows: list[list[str]]) -> tuple[np.ndarray, np.ndarray]:
    """Of each row the recording, and which piece of it, from 1."""
    recordings = {v1: recording for recording, v1 in recording_names().items()}
    pieces = {str(1 + i): 1 + i for i in range(PIECES)}
    places = []
    for number, (row_name, *_) in enumerate(rows):
        piece, _, v1 = row_name.strip('"').removeprefix("X").partition(".")
        if v1 not in recordings or piece not in pieces:
            raise InputError(
                f"{member}: row {number} must be named by its piece and recording, such as "
                f"X21.V1.791, got {row_name}"
            )
        places.append((recordings[v1], pieces[piece]))
    recording, chunk = zip(*places, strict=True)
    return np.array(recording), np.array(chunk, dtype=np.int8)


def recording_names() -> dict[str, str]:
    """What R calls each recording, S093 being the 93rd of set S.

    A hundred columns are V1, V1.1 .. V1.99; the same names of a later set get the first number
    that makes them new: V1.60 becomes V1.601, and V1.1 becomes V1.110, V1.11 .. V1.19 being taken.
    """
    plain = ["V1", *(f"V1.{i}" for i in range(1, SET_SIZE))]
    taken, names = set(plain), {}
    for place, letter in enumerate(SETS):
        for i, v1 in enumerate(plain):
            new = v1
            if place:
                count = 1
                while (new := f"{v1}{count}") in taken:
                    count += 1
            taken.add(new)
            names[f"{letter}{i + 1:03d}"] = new
    return names


def _header(archive: Archive, member: str) -> list[str]:
    return [cell.strip().strip('"') for cell in archive.first_line(member).split(",")]


def _below_header(archive: Archive, member: str, width: int) -> list[list[str]]:
    with archive.members[member]() as stream:
        text = stream.read().decode("utf-8", errors="replace")
    archive.check_cells(member, text)
    lines = text.splitlines()[1:]
    rows = [line.split(",") for line in lines if line.strip()]
    for number, cells in enumerate(rows, 2):
        if len(cells) != width:
            raise InputError(
                f"{member} is ragged: line {number} has {len(cells)} values, the header {width}"
            )
    return rows
