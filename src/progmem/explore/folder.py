"""The index of recordings: a folder with the vector of every window, and what lies where.

A stretch of a recording is represented by the mean vector of the windows that it covers.

Shapes: R recordings, n windows of all of them, C channels, V numbers of a vector, P parts of a
window.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import numpy as np

from progmem import artifact
from progmem.artifact import check_tensors, noted, shaped
from progmem.config import ModelConfig
from progmem.data.content_hash import content_hash
from progmem.data.dates import Calendar, has_calendar
from progmem.data.options import BY_RULE, ReadOptions
from progmem.data.reader import read_with
from progmem.data.recordings import ChannelInfo, Recordings, check_order
from progmem.errors import ArtifactError, InputError
from progmem.explore.axes import Axes
from progmem.explore.windows import WindowStream, parts_of, window_length, window_starts
from progmem.features import FeatureStats
from progmem.files import make_folder, new_array, read_whole, sha256_of, unfinished
from progmem.missing import already_told, tell_of_missing
from progmem.model.encode import equal_neighbours
from progmem.model.pmt import PMT, SERIES_AT_ONCE, only_pmt
from progmem.model.saving import load
from progmem.pooling import fit_feature_stats
from progmem.progress import Advance, Log, progress
from progmem.series import Series
from progmem.training.run_folder import read_as_trained, run_of

FILE, ARRAYS = "index.safetensors", ("vectors.npy", "channels.npy", "points.npy")
KIND = "index"
CHUNK = 16_384  # samples that are described at a time
FITTED = 16_384  # windows that axes are fitted to
PIECE = 64  # windows of each piece of a recording that is looked at for that
NOTHING = "no recording has an observed value; there is nothing to index"


@dataclass(frozen=True)
class Index:
    """The windows of recordings, in order, with a vector each; made by `index`.

    Arrays of windows hold those of all recordings one after the other: those of recording number i
    are rows ``starts[i]`` to ``starts[i + 1]``.
    """

    folder: Path
    names: list[str]  # of the recordings
    lengths: list[int]  # samples of each
    window: int  # samples of one; the last window of a recording may be longer
    starts: np.ndarray  # (R + 1,) int64
    all_vectors: np.ndarray  # (n, V) float32 on disk; 0 where nothing is observed
    channel_values: np.ndarray  # (n, 2, C) float32 on disk: mean and deviation, in their units
    all_points: np.ndarray  # (n, P, C) float32 on disk: means of the parts of a window
    channels: ChannelInfo
    calendars: list[Calendar | None]
    axes: Axes  # by which a description becomes a vector
    sha256: str  # of all that the index holds

    def __len__(self) -> int:
        return len(self.all_vectors)

    def number(self, recording: str) -> int:
        """Which of the recordings has this name."""
        try:
            return self.names.index(recording)
        except ValueError:
            some = ", ".join(self.names[:3]) + (", …" if len(self.names) > 3 else "")
            raise InputError(
                f"the index has no recording {recording!r}; its recordings are {some}"
            ) from None

    def rows(self, recording: str) -> slice:
        """Where the windows of a recording are in the arrays of all windows."""
        i = self.number(recording)
        return slice(int(self.starts[i]), int(self.starts[i + 1]))

    def windows(self, recording: str) -> np.ndarray:
        """Samples [start, end) of the windows of a recording, (n, 2) int64."""
        i = self.number(recording)
        first = np.array(window_starts(self.lengths[i], self.window), dtype=np.int64)
        return np.stack([first, np.append(first[1:], self.lengths[i])], axis=1)

    def vectors(self, recording: str) -> np.ndarray:
        """The vectors of the windows of a recording, (n, V), on disk."""
        return self.all_vectors[self.rows(recording)]

    def points(self, recording: str) -> np.ndarray:
        """The means of the parts of the windows of a recording, (n, P, C), on disk."""
        return self.all_points[self.rows(recording)]

    def observed(self, recording: str) -> np.ndarray:
        """Which windows of a recording have an observed sample, (n,)."""
        return self.all_observed[self.rows(recording)]

    @cached_property
    def all_observed(self) -> np.ndarray:
        """Which of all windows have an observed sample, (n,)."""
        return ~np.isnan(self.channel_values[:, 0]).all(1)

    @property
    def recording_of(self) -> np.ndarray:
        """The number of the recording of every window, (n,)."""
        return np.repeat(np.arange(len(self.names)), np.diff(self.starts))

    def covered(self, recording: str, start: int, end: int) -> slice:
        """The windows that a stretch covers by half at least, or else the one it lies in."""
        length = self.lengths[self.number(recording)]
        if not 0 <= start < end <= length:
            raise InputError(
                f"{recording} has samples 0 to {length}, got the stretch from {start} to {end}"
            )
        n = max(1, length // self.window)
        first = min((start + self.window // 2) // self.window, n - 1)
        last = min(max((end + self.window // 2) // self.window, first + 1), n)
        if last == first + 1 and end - start < self.window:
            first = min((start + end - 1) // 2 // self.window, n - 1)
            last = first + 1
        return slice(first, last)

    def dates(self, recording: str, samples: Any) -> np.ndarray:
        """When samples of a recording were taken: dates, else seconds, else the samples."""
        i, samples = self.number(recording), np.asarray(samples)
        calendar = self.calendars[i]
        if calendar is not None:
            return np.asarray(calendar.at(samples.ravel())).reshape(samples.shape)
        return samples if self.channels.rate is None else samples / self.channels.rate


def index(
    model: PMT | str | Path,
    recordings: Any,
    folder: str | Path,
    *,
    options: ReadOptions = BY_RULE,
    log: Log | None = None,
) -> Index:
    """Describe every window of recordings in ``folder``; one that is there is used if it fits.

    Args:
        model: a PMT, or the folder of a saved one or of its run.
        recordings: what `progmem.read` returns or takes; files are read as those of the run were.
        folder: of the index; it is replaced if the model or a recording is another.
        options: how files are read.
        log: is told what is read and how far it is.

    Example:
        >>> import numpy as np, progmem, tempfile
        >>> from progmem import explore
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> x = np.sin(np.arange(600) / 3)[:, None]  # (time, channels)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     idx = explore.index(model, {"a": x, "b": x}, folder + "/index")
        >>> idx.names, idx.window, idx.windows("a")[:2].tolist()
        (['a', 'b'], 16, [[0, 16], [16, 32]])
        >>> idx.vectors("a").shape[0] == len(idx.windows("a"))
        True
    """
    folder = Path(folder)
    if isinstance(model, PMT):
        found = _read(model, recordings, options, log)
    else:
        path = _model_folder(Path(model))
        model = only_pmt(load(path, device="auto"), "an index")
        if isinstance(recordings, str | Path):
            found = read_as_trained(Path(recordings), run_of(path), options, model.info, log=log)
        else:
            found = _read(model, recordings, options, log)
    check_order("the model", model.info.columns, found)
    series = Series(found.values, None, model.cfg, found.names, columns=model.info.columns)
    tell_of_missing(series.arrays, found.names, found.columns or model.info.columns)
    note = _note(model, found)
    if folder.exists():
        try:
            former = _former_note(folder)
            if all(former[key] == value for key, value in note.items()):
                idx = _open(folder)
                if log is not None:
                    log(f"{folder} is of this model and these recordings; it is used as it is")
                return idx
            other = former["model"] != note["model"]
            why = f"{folder} is of {'another model' if other else 'other recordings'}"
        except (ArtifactError, KeyError) as error:
            why = str(error)
        if log is not None:
            log(f"{why}; it is made anew")
    make_folder(folder.parent)
    with unfinished(folder) as new:
        new.mkdir()
        _write(new, model, series, note, log)
    return open_index(folder)


def _model_folder(path: Path) -> Path:
    """The folder of a saved model, or that of a run which holds one."""
    return path / "model" if (path / "model").is_dir() else path


def _read(model: PMT, source: Any, options: ReadOptions, log: Log | None) -> Recordings:
    """Recordings as the model sees them: missing values marked, the calendar in front."""
    options = options.or_missing(model.info.missing)
    found = read_with(source, options, log=log)
    calendar = model.info.has_calendar and not has_calendar(found.columns)
    return found.with_covariates() if calendar else found


def _note(model: PMT, recordings: Recordings) -> dict[str, Any]:
    """What an index is made of, by which it is known whether it is still right."""
    cfg = json.dumps(model.cfg.to_dict(), sort_keys=True).encode()
    digest = hashlib.sha256(cfg)
    for name, tensor in model.state_dict().items():
        digest.update(name.encode() + tensor.detach().cpu().contiguous().view(-1).numpy().tobytes())
    info = ChannelInfo.of(recordings, model.info.missing)
    return {
        "model": digest.hexdigest(),
        "window": window_length(model.cfg),
        "names": recordings.names,
        "lengths": [len(values) for values in recordings.values],
        "contents": [content_hash(values) for values in recordings.values],
        "calendars": [r.calendar and r.calendar.to_note() for r in recordings],
        "columns": list(info.columns or model.info.columns),
        "units": list(info.units or model.info.units),
        "rate": model.info.rate if info.rate is None else info.rate,
    }


def _former_note(folder: Path) -> dict[str, Any]:
    """The note of the index in ``folder``, which holds nothing else."""
    if folder.is_file():
        raise InputError(f"{folder} is a file; give an index a folder of its own")
    if {path.name for path in folder.iterdir()} - {FILE, *ARRAYS}:
        raise InputError(f"{folder} holds other files; give an index a folder of its own")
    return artifact.read(folder / FILE, KIND).note


def _write(folder: Path, model: PMT, series: Series, note: dict[str, Any], log: Log | None) -> None:
    """Fit the axes, and write the vectors of all windows."""
    h, C = note["window"], model.cfg.channels
    starts = _starts(note)
    some = series if starts[-1] <= FITTED else _some(series, starts, h, model.cfg)
    stats = model.feature_stats.values or fit_feature_stats(model, list(some.arrays))
    if stats is None:
        raise InputError(NOTHING)
    total = sum(series.lengths) + (0 if some is series else sum(some.lengths))
    told = f"indexing {len(series)} recordings"
    with already_told(), progress(told, total, log=log) as advance:
        parts: Iterable[Part] = _described(model, some, stats, advance)
        if some is series:
            parts = list(parts)
        axes = _fit(parts)
        if some is not series:
            parts = _described(model, series, stats, advance)
        shape = int(starts[-1]), axes.axes.shape[1]
        shapes = shape, (shape[0], 2, C), (shape[0], parts_of(h), C)
        vectors, channels, points = arrays = [
            new_array(folder / name, "float32", one)
            for name, one in zip(ARRAYS, shapes, strict=True)
        ]
        for part in parts:
            for b, row in enumerate(part.rows):
                at = slice(
                    starts[row] + part.first, starts[row] + part.first + part.observed.shape[1]
                )
                here = part.observed[b]
                vectors[at] = np.where(
                    here[:, None], axes.vectors([g[b] for g in part.groups]), 0.0
                )
                channels[at] = part.groups[0][b].reshape(-1, 2, C)
                points[at] = part.points[b]
    for array in arrays:
        array.flush()
    files = {name: sha256_of(folder / name) for name in ARRAYS}
    artifact.write(folder / FILE, KIND, axes._asdict(), {**note, "files": files})


class Part(NamedTuple):
    """Some windows of some recordings of equal length."""

    rows: Sequence[int]
    first: int  # of the windows
    groups: tuple[np.ndarray, ...]  # (B, n, f) each; of the channels NaN where not observed
    points: np.ndarray  # (B, n, P, C)
    observed: np.ndarray  # (B, n)


def _described(model: PMT, series: Series, stats: FeatureStats, advance: Advance) -> Iterator[Part]:
    """All windows of recordings, some at a time."""
    own = model.cfg.normalise == "series"
    for rows in equal_neighbours(series.lengths, CHUNK, 1 if own else SERIES_AT_ONCE):
        moments = series.own_moments(rows) if own else None
        names = [series.names[row] for row in rows]
        stream = WindowStream(model, stats, batch_size=len(rows), moments=moments, names=names)
        length = series.lengths[rows[0]]
        for start in range(0, length, CHUNK):
            first, stop = stream.windows, min(start + CHUNK, length)
            found = [stream.push(series.cut(rows, start, stop))]
            if stop == length:
                found.append(stream.finish())
            for described in found:
                groups = tuple(group.cpu().float().numpy() for group in described.groups())
                points, observed = described.points.cpu().float(), described.observed.cpu()
                yield Part(rows, first, groups, points.numpy(), observed.numpy())
                first += described.observed.shape[1]
            advance(len(rows) * (stop - start))


def _some(series: Series, starts: np.ndarray, h: int, cfg: ModelConfig) -> Series:
    """Pieces of recordings, evenly spaced over all windows, to fit the axes to."""
    length = max(1, min(PIECE, int(starts[-1]) // len(series)))
    chosen = np.linspace(0, int(starts[-1]) - 1, FITTED // length).astype(int)
    cuts, names = [], []
    for row in np.unique(chosen // length * length):
        i = int(np.searchsorted(starts, row, side="right")) - 1
        first = min(int(row - starts[i]), max(0, int(starts[i + 1] - starts[i]) - length)) * h
        stop = min(first + length * h, series.lengths[i])
        cuts.append(series.cut([i], first, stop)[0])
        names.append(f"{series.names[i]}, from sample {first} on" if first else series.names[i])
    return Series(cuts, None, cfg, names)


def _fit(parts: Iterable[Part]) -> Axes:
    """Axes of the windows in which something is observed."""
    kept = [tuple(group[part.observed] for group in part.groups) for part in parts]
    groups = [np.concatenate(group) for group in zip(*kept, strict=True)]
    if not len(groups[0]):
        raise InputError(NOTHING)
    return Axes.fit(groups)


def _starts(note: Mapping[str, Any]) -> np.ndarray:
    """At which row the windows of each recording begin, and where the last end."""
    counts = [len(window_starts(length, note["window"])) for length in note["lengths"]]
    return np.cumsum([0, *counts])


def open_index(folder: str | Path) -> Index:
    """The index that `index` wrote into ``folder``, every byte checked.

    Example:
        >>> import numpy as np, progmem, tempfile
        >>> from progmem import explore
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = explore.index(model, np.ones((200, 1)).cumsum(0), folder)
        ...     opened = explore.open_index(folder)
        >>> opened.names, len(opened) == len(made)
        (['series 0'], True)
    """
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise InputError(f"there is no index {folder}; `progmem index` makes one")
    try:
        return read_whole(folder, lambda: _open(folder))
    except ArtifactError as error:
        raise InputError(str(error)) from error


def _open(folder: Path) -> Index:
    unread = f"{folder} cannot be read as an index"
    try:
        found = artifact.read(folder / FILE, KIND)
        note = found.note
        names = noted(note, "names", list, unread, of=str)
        lengths = noted(note, "lengths", list, unread, of=int)
        window, rate = noted(note, "window", int, unread), note.get("rate")
        columns, units = (noted(note, n, list, unread, of=str) for n in ("columns", "units"))
        calendars = noted(note, "calendars", list, unread, of=(dict, NoneType))
        files = noted(note, "files", dict, unread, of=str)
        axes = found.tensors["axes"]
        numbers, vector = axes.shape
        expected = {"mean": shaped(numbers), "scale": shaped(numbers)}
        expected |= {"axes": shaped(numbers, vector), "size": shaped()}
        check_tensors(found.tensors, expected, unread)
        for name, digest in files.items():
            if sha256_of(folder / name) != digest:
                raise ArtifactError(f"{folder / name} is damaged: its sha256 is another")
        vectors, channels, points = (np.load(folder / name, mmap_mode="r") for name in ARRAYS)
    except (ArtifactError, OSError, KeyError, ValueError) as error:
        raise ArtifactError(f"{error}; make the index anew") from error
    return Index(
        folder=folder, names=names, lengths=lengths, window=window, starts=_starts(note),
        all_vectors=vectors, channel_values=channels, all_points=points,
        channels=ChannelInfo(tuple(columns), tuple(units), rate),
        calendars=[None if one is None else Calendar.of_note(one) for one in calendars],
        axes=Axes.of_tensors(found.tensors), sha256=found.sha256,
    )  # fmt: skip
