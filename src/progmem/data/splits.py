"""The splits of the data sets into training and test rows, and their scaling.

The rows of a file are numbered, training rows first; a split is two arrays of such numbers.
Every set has "official" and "validation"; beside them
- HAR: "tstcc_validation", TS-TCC's 5,881 + 1,471 training rows. Neighbouring windows share half
  their samples and fall on both sides: it leaks. "validation" holds out whole subjects.
- Epilepsy: "official" is TS-TCC's, in which every test row comes from a recording that is also
  trained on; "recording" holds out a fifth of the recordings of each kind; "validation" another
  fifth, and has no row that "official" or "recording" tests on, so that settings chosen by it may
  be tested by either; "tstcc_validation" is TS-TCC's 7,360 + 1,840.
- FordA, FordB: "paper_table", the counts of the paper's table: FordA as in the archive of 2015,
  where training and test rows are the other way round, FordB as in 2018. Settings of FordA chosen
  by "validation" have seen rows that "paper_table" tests on.
"""

from collections.abc import Callable

import numpy as np

from progmem.data.sets import LabelledSet
from progmem.errors import InputError

Arrays = dict[str, np.ndarray]
Rows = tuple[np.ndarray, np.ndarray]  # trained on, tested on

HELD_OUT = 0.2  # share of rows or groups
EPILEPSY_CHUNK = 178  # samples; a recording was cut into 23 chunks


def official(arrays: Arrays) -> Rows:
    train, test = len(arrays["y_train"]), len(arrays["y_test"])
    return np.arange(train), np.arange(train, train + test)


def validation(arrays: Arrays) -> Rows:
    """A fifth of the training rows of each class is held out."""
    train, _ = official(arrays)
    held = np.zeros(len(train), dtype=bool)
    rng = np.random.default_rng(0)
    for label in np.unique(arrays["y_train"]):
        rows = rng.permutation(np.flatnonzero(arrays["y_train"] == label))
        held[rows[: round(HELD_OUT * len(rows))]] = True
    return train[~held], train[held]


def har_validation(arrays: Arrays) -> Rows:
    """Every fifth subject of the training rows is held out."""
    train, _ = official(arrays)
    subjects = np.unique(arrays["subject_train"])
    held = np.isin(arrays["subject_train"], subjects[:: round(1 / HELD_OUT)])
    return train[~held], train[held]


def epilepsy_validation(arrays: Arrays) -> Rows:
    """A fifth of the recordings is held out; those that "recording" tests on are left alone."""
    train, _ = official(arrays)
    _, tested = by_recording(arrays)
    chosen = _fifth_of_recordings(_recordings(arrays), which=1)
    held = np.isin(arrays["recording_train"], chosen)
    return train[~held & ~np.isin(train, tested)], train[held]


def swapped(arrays: Arrays) -> Rows:
    train, test = official(arrays)
    return test, train


def har_tstcc(arrays: Arrays) -> Rows:
    return arrays["tstcc_train_idx"].astype(np.int64), arrays["tstcc_val_idx"].astype(np.int64)


def epilepsy_tstcc(arrays: Arrays) -> Rows:
    train, _ = official(arrays)
    first = int(arrays["n_train_without_val"])
    return train[:first], train[first:]


def by_recording(arrays: Arrays) -> Rows:
    """A fifth of the recordings of each kind, with all their rows, is tested on."""
    recording = _recordings(arrays)
    test = np.isin(recording, _fifth_of_recordings(recording, which=0))
    return np.flatnonzero(~test), np.flatnonzero(test)


def _recordings(arrays: Arrays) -> np.ndarray:
    return np.concatenate([arrays["recording_train"], arrays["recording_test"]])


def _fifth_of_recordings(recording: np.ndarray, which: int) -> np.ndarray:
    """Names of a fifth of the recordings of each kind; the kind is the name's first letter."""
    names = np.unique(recording)
    rng, chosen = np.random.default_rng(0), []
    for kind in np.unique(names.astype("<U1")):
        mine = rng.permutation(names[names.astype("<U1") == kind])
        count = round(HELD_OUT * len(mine))
        chosen.append(mine[which * count : (which + 1) * count])
    return np.concatenate(chosen)


COMMON_SPLITS: dict[str, Callable[[Arrays], Rows]] = {
    "official": official,
    "validation": validation,
}
OWN_SPLITS: dict[str, dict[str, Callable[[Arrays], Rows]]] = {
    "HAR": {"validation": har_validation, "tstcc_validation": har_tstcc},
    "Epilepsy": {
        "validation": epilepsy_validation,
        "recording": by_recording,
        "tstcc_validation": epilepsy_tstcc,
    },
    "FordA": {"paper_table": swapped},
    "FordB": {"paper_table": official},
}


def options_of(name: str, **chosen: str) -> dict[str, tuple[str, ...]]:
    """The values that each option of a set can have; others are refused."""
    epilepsy = name == "Epilepsy"
    known = {
        "split": tuple(COMMON_SPLITS | OWN_SPLITS.get(name, {})),
        "scaling": ("none", "tstcc") if epilepsy else ("none",),
        "labels": ("paper", "five") if epilepsy else ("paper",),
    }
    for option, value in chosen.items():
        if value not in known[option]:
            options = ", ".join(known[option])
            raise InputError(f"{option} of {name} must be one of {options}, got {value!r}")
    return known


def same_rows(name: str, one: str, other: str) -> bool:
    """Whether two names of splits mean the same rows, as "official" and "paper_table" of FordB."""
    known = COMMON_SPLITS | OWN_SPLITS.get(name, {})
    return one == other or known.get(one) is known[other]


def choose_rows(name: str, arrays: Arrays, *, split: str, scaling: str, labels: str) -> LabelledSet:
    """The set of a file's arrays, with its training and test rows as ``split`` says."""
    train, test = (COMMON_SPLITS | OWN_SPLITS.get(name, {}))[split](arrays)
    x = np.concatenate([arrays["X_train"], arrays["X_test"]])  # (rows, L, C)
    if scaling == "tstcc":
        low, high = (arrays[f"column_{end}"].astype(np.float32)[:, None] for end in ("min", "max"))
        x = (x - low) / (high - low)
    key, classes = "y_{}", tuple(str(c) for c in arrays["classes"])
    if name == "Epilepsy" and labels == "paper":
        key, classes = "y_{}_binary", ("seizure", "other")
    y = np.concatenate([arrays[key.format(part)] for part in ("train", "test")])
    recording, start = _recordings_and_starts(name, arrays)
    x = x.transpose(0, 2, 1)  # (rows, C, L)
    return LabelledSet(
        name, split, x[train], y[train], x[test], y[test], classes,
        *(None if known is None else known[rows]
          for rows in (train, test) for known in (recording, start)),
    )  # fmt: skip


def _recordings_and_starts(
    name: str, arrays: Arrays
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The recording of each row and its first sample in it, where the file has them."""

    def both(key: str) -> np.ndarray:
        return np.concatenate([arrays[f"{key}_train"], arrays[f"{key}_test"]])

    if name == "HAR":
        # in a file made from the official archive, an experiment is a bout of windows that overlap
        pairs = zip(both("subject"), both("experiment"), strict=True)
        return np.array([f"{s}-{e}" for s, e in pairs]), both("start").astype(np.int64)
    if name == "Epilepsy":
        return both("recording"), (both("chunk").astype(np.int64) - 1) * EPILEPSY_CHUNK
    return None, None
