"""Series with labels to train on and, where there are some, others to be scored on.

Shapes: R series, L samples, C channels.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from progmem.data.label_files import labels_for
from progmem.data.labels import check_labels, draw_labels, known_labels, parse_amount
from progmem.data.recordings import Recording, read_recordings
from progmem.data.registry import FILES, LABELLED, check_name, load_labelled
from progmem.data.sets import LabelledSet
from progmem.errors import InputError


class Labelled(NamedTuple):
    """Training series and test series; a label is the number of its class."""

    recordings: Sequence[Recording]
    y: np.ndarray  # (R,)
    classes: tuple[str, ...]
    test: Sequence[np.ndarray] = ()  # each (L, C)
    test_y: np.ndarray = np.empty(0, dtype=np.int64)
    noted: Mapping[str, str] = MappingProxyType({})  # name and split, where there are some

    @classmethod
    def of_set(cls, data: LabelledSet) -> "Labelled":
        return cls(
            data.training_recordings(), data.y_train, data.classes,
            list(data.X_test.transpose(0, 2, 1)), data.y_test,
            {"name": data.name, "split": data.split},
        )  # fmt: skip

    def everything(self) -> list[Recording]:
        """Training series, then test series."""
        tests = (Recording(f"test series {i}", values) for i, values in enumerate(self.test))
        return [*self.recordings, *tests]


class Parts(NamedTuple):
    """Which of the training series are for what."""

    known: np.ndarray  # all but those held out: they tell the channels' statistics
    learnt: np.ndarray  # those of them whose labels are learnt from
    held_out: np.ndarray  # those that are scored in place of a test


def open_labelled(
    source: str | Path,
    y: Path | None,
    data_dir: Path | None,
    split: str,
    *,
    covariates: bool = True,
) -> Labelled:
    """A data set by name with its split, or own series with the file of their labels."""
    if str(source) in FILES:
        if y is not None and str(source) in LABELLED:
            raise InputError(f"--y is for own series; {source} has labels of its own")
        return Labelled.of_set(load_labelled(str(source), data_dir, split=split))
    path = Path(source)
    if not path.exists() and not path.suffix:
        try:
            check_name(str(source), data_dir)
        except InputError as error:
            raise InputError(f"there is no file or folder {path}; {error}") from error
    recordings = read_recordings(path, covariates=covariates)
    if y is None:
        raise InputError(f"{path} has no labels; give them with --y, or a data set's name")
    if split != "official":
        raise InputError(f"split is for data sets by name; {path} is trained on whole")
    there, labels = known_labels(labels_for(recordings, path, y))
    check_labels(labels, len(labels))
    classes, numbers = np.unique(labels, return_inverse=True)
    chosen = [r for r, known in zip(recordings, there, strict=True) if known]
    return Labelled(chosen, numbers, tuple(map(str, classes)), noted={"name": path.name})


def choose_parts(data: Labelled, *, labels: str, label_seed: int, validation: float) -> Parts:
    """Rows held out by recording, or by class where every series is its own; then the labels."""
    check_labels(data.y, len(data.recordings))
    rows = np.arange(len(data.y))
    held = np.zeros(len(rows), dtype=bool)
    if validation:
        held[_hold_out(data, validation, label_seed)] = True
    known = rows[~held]
    lost = np.setdiff1d(data.y, data.y[known])
    if len(lost):
        name, count = data.classes[lost[0]], int((data.y == lost[0]).sum())
        raise InputError(
            f"with {validation:g} of the rows held out none of class {name}, which has {count}, is "
            "left to learn from; "
            + ("leave the class out" if count == 1 else "set a smaller finetune.validation")
        )
    learnt = known
    if labels != "all":
        drawn = draw_labels(data.y[known], parse_amount(labels), label_seed, classes=data.classes)
        learnt = known[drawn]
    return Parts(known, learnt, rows[held])


def _hold_out(data: Labelled, share: float, seed: int) -> np.ndarray:
    if any(recording.origin is None for recording in data.recordings):
        return draw_labels(data.y, share, seed)
    origins = np.array([str(recording.origin) for recording in data.recordings])
    names, number, count = np.unique(origins, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    enough = int(np.searchsorted(np.cumsum(count[order]), share * len(origins))) + 1
    return np.flatnonzero(np.isin(number, order[:enough]))
