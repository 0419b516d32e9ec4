"""A user's labels from files, each put to its series."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from progmem.data.csv_files import read_csv
from progmem.data.recordings import Recording
from progmem.errors import InputError


def labels_for(recordings: Sequence[Recording], x: Path, y: Path) -> np.ndarray:
    """The label of each recording of ``x``: by name where ``y`` has names, else in order."""
    labels, names = read_labels(y)
    if names is not None:
        strangers = sorted(set(names) - {r.name for r in recordings})
        if strangers:
            there = ", ".join(r.name for r in recordings[:3])
            raise InputError(f"{y} names {strangers[0]!r}, which is not in {x}: {there}, …")
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise InputError(f"{y} names {twice[0]!r} more than once")
        known = dict(zip(names, labels, strict=True))
        return np.array([str(known.get(r.name, "")) for r in recordings])
    if x.is_dir():
        first = ", ".join(r.name for r in recordings[:3])
        raise InputError(
            f"which label belongs to which file of {x}? Give {y} as a .csv with the columns series "
            f"and label; series are {first}, …"
        )
    if len(recordings) != len(labels):
        hint = ""
        if len(recordings) == 1 and len(recordings[0].values) == len(labels):
            shape = recordings[0].values.shape
            hint = f"; an array {shape} is one recording (time, channels), more are 3-D"
        raise InputError(
            f"{y} has {len(labels)} labels, {x} holds {len(recordings)} series; "
            f"give one label a series{hint}"
        )
    return labels


def read_labels(path: Path) -> tuple[np.ndarray, list[str] | None]:
    """Labels from a .npy vector, or from a .csv file's column ``label``, with its ``series``."""
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    try:
        if path.suffix == ".npy":
            labels = np.asarray(np.load(path, allow_pickle=False))
            if labels.ndim != 1:
                raise InputError(f"{path} must hold one label a series, got shape {labels.shape}")
            return labels, None
        if path.suffix == ".csv":
            # as text: 001 is not 1, and NA may be a class; only an empty cell is no label
            table = read_csv(path, dtype=str, keep_default_na=False, skip_blank_lines=False)
            if "label" not in table.columns:
                there = ", ".join(map(str, table.columns))
                raise InputError(f"{path} has no column 'label'; it has {there}")
            names = list(table["series"]) if "series" in table.columns else None
            return np.array(table["label"].fillna(""), dtype=str), names
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    raise InputError(f"{path} must end in .npy or .csv")
