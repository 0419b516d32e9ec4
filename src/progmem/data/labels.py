"""Labels of series: read from files, matched to their series, and drawn for few-label training.

The draw does not depend on the encoder.

Shapes: B, R series, L samples, C channels.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from progmem import guard
from progmem.config import Amount, parse_amount
from progmem.data.csv_files import read_csv
from progmem.data.datasets import FILES, LABELLED, check_name, load_labelled
from progmem.data.dates import read_dates
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.recordings import Recording, Recordings
from progmem.data.sets import LabelledSet
from progmem.data.source import open_files
from progmem.errors import InputError
from progmem.names import printable, printable_labels
from progmem.progress import Log


def draw_labels(
    y: np.ndarray, amount: Amount, seed: int, *, classes: Sequence[str] = ()
) -> np.ndarray:
    """Rows whose labels are used, class by class.

    ``amount`` is a share of each class (a float up to 1.0), at least one series, or a number per
    class (an int). The draws of one seed are nested: a larger one contains a smaller one.
    ``classes`` are the names of the numbers in ``y``.
    """
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        count = amount if isinstance(amount, int) else max(1, round(amount * len(rows)))
        if not 1 <= count <= len(rows):
            name = classes[label] if classes else label
            raise InputError(f"class {name} has {len(rows)} series, {count} labels were asked")
        chosen.append(rows[:count])
    return np.concatenate(chosen)


def amount_name(amount: Amount) -> str:
    return f"{amount} a class" if isinstance(amount, int) else f"{100 * amount:g}%"


def check_labels(y: np.ndarray, count: int, *, classes: int = 2) -> None:
    """Refuse labels that do not fit their series or have fewer than ``classes`` classes."""
    if y.shape != (count,):
        raise InputError(f"y must have one label for each of the {count} series, got {y.shape}")
    if len(np.unique(y)) < classes:
        found = ", ".join(map(str, np.unique(y))) or "none"
        raise InputError(f"classification needs at least two classes in y, got {found}")
    if len(np.unique(y)) == count and any(map(_fraction, y)):
        raise InputError(
            f"each of the {count} labels occurs once, such as {y[0]}: measured numbers are not "
            "classes"
        )
    if y.dtype.kind == "f" and any(map(_fraction, y)):
        number = next(label for label in y if _fraction(label))
        raise InputError(f"classes are whole numbers or texts, got the label {number:g}")


def drop_missing_labels(y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Which series have a label (B,), and these labels: whole numbers, numbers or texts."""
    if isinstance(y, np.ma.MaskedArray):
        y = y.tolist()  # None where it is masked
    # numpy would turn a list with texts into texts, its NaN too
    y = np.asarray(y) if hasattr(y, "dtype") else np.array(y, dtype=object)
    if y.ndim != 1:
        raise InputError(f"y must hold one label per series, got shape {y.shape}")
    labelled = np.array([not _missing(value) for value in y.tolist()], dtype=bool)
    labels = y[labelled]
    if y.dtype.kind == "O":
        labels = np.asarray(labels.tolist())
    if labels.dtype.kind == "O":
        labels = np.array([str(value) for value in labels])
    if labels.dtype.kind not in "biufU":
        raise InputError(f"labels must be numbers or texts, got dtype {y.dtype}")
    if labels.dtype.kind == "U":
        return labelled, labels
    if np.isinf(labels).any():
        raise InputError("a label is infinite; mark a series without a label by NaN")
    return labelled, labels.astype(np.int64) if (labels == np.round(labels)).all() else labels


def _fraction(label: Any) -> bool:
    try:
        return not float(label).is_integer()
    except ValueError:
        return False


def _missing(label: Any) -> bool:
    """Whether ``label`` stands for no label: None, NaN, pandas' NA or an empty text."""
    import pandas as pd

    return label is None or label is pd.NA or label != label or label == ""


class LabelledSeries(NamedTuple):
    """Series, which are recordings or pieces of them, and the label of each as a text."""

    recordings: Sequence[Recording]
    labels: np.ndarray  # (R,), "" where it is not known


def label_series(
    recordings: Sequence[Recording], x: Path, y: Path, *, limit: Any = None
) -> LabelledSeries:
    """The recordings of ``x`` with their labels in ``y``, or the pieces of them that it names.

    ``limit`` is how much memory the labels may take, as in `progmem.read`.
    """
    found = read_labels(y, limit)
    if found.spans is None:
        return LabelledSeries(recordings, labels_for(recordings, x, y, found))
    by_name = {recording.name: recording for recording in recordings}
    pieces = []
    assert found.names is not None
    for row, (name, (start, end)) in enumerate(zip(found.names, found.spans, strict=True)):
        _check_names([name], recordings, x, y)
        whole, where = by_name[name], f"{y}, row {row + 1}"
        first = sample_of(start, whole, where, 0)
        stop = sample_of(end, whole, where, len(whole.values))
        if not 0 <= first < stop <= len(whole.values):
            raise InputError(
                f"{where}: {name} has samples 0 to {len(whole.values)}, got the piece from "
                f"{start or first} to {end or stop}"
            )
        pieces.append(cut(whole, first, stop))
    twice = [name for name, count in Counter(r.name for r in pieces).items() if count > 1]
    if twice:
        raise InputError(f"{y} names {twice[0]} more than once")
    return LabelledSeries(pieces, found.labels)


def labelled_series(
    recordings: Recordings, x: Path, y: Path | None, *, limit: Any = None
) -> LabelledSeries:
    """`label_series`; without a file ``y`` the recordings have the labels that ``x`` itself holds.

    They are then numbers or texts, as they are there.
    """
    if y is not None:
        return label_series(recordings, x, y, limit=limit)
    if recordings.labels is None:
        raise InputError(
            f"{x} has no labels; give them with --labels, or by --label where a column holds them"
        )
    return LabelledSeries(recordings, recordings.labels)


def cut(recording: Recording, start: int, end: int) -> Recording:
    """A piece of a recording, which remembers where it was cut."""
    calendar = recording.calendar
    return recording._replace(
        name=f"{recording.name}[{start}:{end}]", values=recording.values[start:end],
        origin=recording.origin or recording.name, start=recording.start + start,
        whole=recording.values if recording.whole is None else recording.whole,
        calendar=calendar.moved(start) if calendar is not None else None,
    )  # fmt: skip


def sample_of(text: str, recording: Recording, where: str, default: int) -> int:
    """The sample that a cell names by its number or by a date."""
    if not text:
        return default
    if text.isdecimal():
        return int(text)
    if recording.calendar is None:
        raise InputError(
            f"{where}: {text!r} is no number of a sample, and {recording.name} has no dates"
        )
    dates = recording.calendar.at(np.arange(len(recording.values)))
    try:
        when = read_dates([text])[0]
        if dates.tz is not None and when.tz is None:
            when = when.tz_localize(dates.tz)
        return int(dates.searchsorted(when))
    except (InputError, TypeError) as error:
        raise InputError(
            f"{where}: {text!r} is neither a number of a sample nor a date such as "
            f"{dates[0]} of {recording.name}"
        ) from error


def _check_names(names: Sequence[str], recordings: Sequence[Recording], x: Path, y: Path) -> None:
    unknown = sorted(set(names) - {r.name for r in recordings})
    if unknown:
        available = ", ".join(r.name for r in recordings[:3])
        raise InputError(f"{y} names {unknown[0]!r}, which is not in {x}: {available}, …")


def labels_for(
    recordings: Sequence[Recording], x: Path, y: Path, found: "LabelTable"
) -> np.ndarray:
    """The label of each recording of ``x``: by name where ``y`` has names, else in order.

    ``found`` is what the file ``y`` holds.
    """
    labels, names, _ = found
    if names is not None:
        _check_names(names, recordings, x, y)
        duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
        if duplicates:
            raise InputError(f"{y} names {duplicates[0]!r} more than once")
        by_name = dict(zip(names, labels, strict=True))
        return np.array([str(by_name.get(r.name, "")) for r in recordings])
    if x.is_dir():
        available = ", ".join(r.name for r in recordings[:3])
        raise InputError(
            f"which label belongs to which file of {x}? Give {y} as a .csv with the columns series "
            f"and label; series are {available}, …"
        )
    if len(recordings) != len(labels):
        hint = ""
        if len(recordings) == 1 and len(recordings[0].values) == len(labels):
            shape = recordings[0].values.shape
            hint = f"; an array {shape} is one recording (time, channels), more are 3-D"
        raise InputError(
            f"{y} has {len(labels)} labels, {x} holds {len(recordings)} series; "
            f"give one label per series{hint}"
        )
    return labels


class LabelTable(NamedTuple):
    """What a file of labels holds."""

    labels: np.ndarray
    names: list[str] | None = None  # of the series
    spans: list[tuple[str, str]] | None = None  # where a piece starts and ends, as it is written


def read_labels(path: Path, limit: Any = None) -> LabelTable:
    """The labels of a file, with the names of their series and pieces where the file has them.

    A .npy or .npz file holds one array of labels. A .csv file has a column ``label`` and may have a
    column ``series``; without it the labels are in order. Columns ``start`` and ``end`` name a
    piece of a series by its samples or dates.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}; --labels names a .csv, .npy or .npz file")
    try:
        if path.suffix in (".npy", ".npz"):
            labels = printable_labels(_read_array(path, limit))
            if labels.ndim != 1:
                raise InputError(f"{path} must hold one label per series, got shape {labels.shape}")
            return LabelTable(labels)
        if path.suffix == ".csv":
            # as text: 001 is not 1, and NA may be a class; only an empty cell is missing
            guard.check_text(path, ",", limit)
            table = read_csv(path, dtype=str, keep_default_na=False, skip_blank_lines=False)
            if "label" not in table.columns:
                found = ", ".join(map(str, table.columns))
                raise InputError(f"{path} has no column 'label'; it has {found}")
            table = table.fillna("")
            names = list(map(printable, table["series"])) if "series" in table.columns else None
            spans = None
            if "start" in table.columns or "end" in table.columns:
                if names is None:
                    raise InputError(f"{path} has pieces, but no column 'series' to say of which")
                nothing = [""] * len(table)
                spans = [
                    (str(start).strip(), str(end).strip())
                    for start, end in zip(
                        table.get("start", nothing), table.get("end", nothing), strict=True
                    )
                ]
            labels = np.array([printable(one.strip()) for one in table["label"]], dtype=str)
            return LabelTable(labels, names, spans)
    except guard.UNREADABLE as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {guard.first_line(error)}") from error
    raise InputError(f"{path} must end in .csv, .npy or .npz")


def _read_array(path: Path, limit: Any) -> np.ndarray:
    """The array of a .npy file, or the only one of a .npz file."""
    if path.suffix == ".npy":
        with path.open("rb") as stream:
            guard.check_npy(stream, path.stat().st_size)
            stream.seek(0)
            return np.asarray(np.load(stream, allow_pickle=False))
    arrays = guard.load_npz(path, limit)
    if len(arrays) != 1:
        found = ", ".join(arrays) or "none"
        raise InputError(f"{path} must hold one array, the labels; it has {found}")
    return next(iter(arrays.values()))


class LabelledRecordings(NamedTuple):
    """Training series and test series; a label is the number of its class."""

    recordings: Sequence[Recording]
    y: np.ndarray  # (R,)
    classes: tuple[str, ...]
    test: Sequence[np.ndarray] = ()  # each (L, C)
    test_y: np.ndarray = np.empty(0, dtype=np.int64)
    source: Mapping[str, str] = MappingProxyType({})  # name and split of the data, if any

    @classmethod
    def of_set(cls, data: LabelledSet) -> "LabelledRecordings":
        return cls(
            data.training_recordings(), data.y_train, data.classes,
            list(data.X_test.transpose(0, 2, 1)), data.y_test,
            {"name": data.name, "split": data.split},
        )  # fmt: skip

    def all_recordings(self) -> list[Recording]:
        """Training series, then test series."""
        tests = (Recording(f"test series {i}", values) for i, values in enumerate(self.test))
        return [*self.recordings, *tests]


class RowSplit(NamedTuple):
    """How the training series are used, by their numbers."""

    train: np.ndarray  # all but those held out: the channels' statistics come from them
    labelled: np.ndarray  # those of them whose labels are trained on
    held_out: np.ndarray  # those that are scored in place of the test series


def open_labelled(
    source: str | Path,
    y: Path | None,
    data_dir: Path | None,
    split: str,
    *,
    covariates: bool | None = None,
    options: ReadOptions = BY_RULE,
    log: Log | None = None,
) -> LabelledRecordings:
    """A data set by name with its split, or own series with the file of their labels."""
    if str(source) in FILES:
        if y is not None and str(source) in LABELLED:
            raise InputError(f"--labels is for own series; {source} has labels of its own")
        return LabelledRecordings.of_set(load_labelled(str(source), data_dir, split=split))
    path = Path(source)
    if not path.exists() and not path.suffix:
        try:
            check_name(str(source), data_dir)
        except InputError as error:
            raise InputError(f"there is no file or folder {path}; {error}") from error
    if split != "official":
        raise InputError(f"split is for data sets by name; {path} is trained on whole")
    recordings = open_files(path, options, covariates=bool(covariates), log=log)
    if log is not None:
        log("\n".join(recordings.lines()))
    series = labelled_series(recordings, path, y, limit=options.limit)
    labelled, labels = drop_missing_labels(series.labels)
    check_labels(labels, len(labels))
    classes, numbers = np.unique(labels, return_inverse=True)
    chosen = [r for r, has_label in zip(series.recordings, labelled, strict=True) if has_label]
    return LabelledRecordings(chosen, numbers, tuple(map(str, classes)), source={"name": path.name})


def split_rows(
    data: LabelledRecordings, *, label_share: str, label_seed: int, validation: float
) -> RowSplit:
    """Hold out recordings, or a share of each class where these are unknown; draw labels."""
    check_labels(data.y, len(data.recordings))
    rows = np.arange(len(data.y))
    held = np.zeros(len(rows), dtype=bool)
    if validation:
        held[_hold_out(data, validation, label_seed)] = True
    train = rows[~held]
    missing = np.setdiff1d(data.y, data.y[train])
    if len(missing):
        name, count = data.classes[missing[0]], int((data.y == missing[0]).sum())
        raise InputError(
            f"with {validation:g} of the rows held out, none of class {name}, which has {count}, "
            "is left to train on; "
            + ("leave the class out" if count == 1 else "set a smaller finetune.validation")
        )
    labelled = train
    if label_share != "all":
        amount = parse_amount(label_share)
        drawn = draw_labels(data.y[train], amount, label_seed, classes=data.classes)
        labelled = train[drawn]
    return RowSplit(train, labelled, rows[held])


def origins_of(recordings: Sequence[Recording]) -> np.ndarray | None:
    """The recording that each piece was cut from (R,), if that is known of all."""
    if any(recording.origin is None for recording in recordings):
        return None
    return np.array([str(recording.origin) for recording in recordings])


def _hold_out(data: LabelledRecordings, share: float, seed: int) -> np.ndarray:
    origins = origins_of(data.recordings)
    if origins is None:
        return draw_labels(data.y, share, seed)
    names, number, count = np.unique(origins, return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    enough = int(np.searchsorted(np.cumsum(count[order]), share * len(origins))) + 1
    return np.flatnonzero(np.isin(number, order[:enough]))
