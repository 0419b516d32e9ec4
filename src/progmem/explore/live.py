"""A stream beside the recordings of an index: its newest windows and samples.

A window is described as those of the index are (`progmem.explore.windows`), so that it can be
searched for, predicted and compared with them. However long the stream is, no more than the newest
windows and their samples are held. Samples keep their numbers from the beginning of the stream.

Shapes: L samples, C channels, n windows, V numbers of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from progmem.data.recordings import Recording
from progmem.errors import InputError
from progmem.explore.folder import Index
from progmem.explore.place import LEAST_VIEW
from progmem.explore.windows import WindowStream
from progmem.model.pmt import PMT

HELD = 4096  # windows of the stream


class Tail:
    """The newest samples of a stream as an array (L, C); those that are gone are missing values."""

    def __init__(self, held: np.ndarray, gone: int) -> None:
        self.held, self.gone = held, gone
        self.shape = gone + max(len(held), LEAST_VIEW), held.shape[1]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: tuple[slice, int]) -> np.ndarray:
        part, channel = key
        first, last, _ = part.indices(len(self))
        found = np.full(max(0, last - first), np.nan, dtype=np.float32)
        start, stop = max(first, self.gone), min(last, self.gone + len(self.held))
        if start < stop:
            found[start - first : stop - first] = self.held[
                start - self.gone : stop - self.gone, channel
            ]
        return found


class Joined:
    """The rows of two arrays, one below the other; neither is copied as a whole."""

    def __init__(self, first: np.ndarray, second: np.ndarray) -> None:
        self.first, self.second = first, second
        self.shape = len(first) + len(second), *first.shape[1:]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        n = len(self.first)
        if stop <= n:
            return self.first[start:stop]
        if start >= n:
            return self.second[start - n : stop - n]
        return np.concatenate([self.first[start:n], self.second[: stop - n]])


@dataclass(frozen=True)
class LiveIndex(Index):
    """An index whose last recording is a stream: windows of equal length behind what is gone."""

    gone: int  # samples of the stream before the first window that is held
    seen: np.ndarray  # (n,): has each of all windows an observed sample

    def windows(self, recording: str) -> np.ndarray:
        if recording != self.names[-1]:
            return super().windows(recording)
        rows = self.rows(recording)
        first = self.gone + self.window * np.arange(rows.stop - rows.start)
        return np.stack([first, first + self.window], axis=1)

    @cached_property
    def all_observed(self) -> np.ndarray:
        return self.seen

    def covered(self, recording: str, start: int, end: int) -> slice:
        if recording != self.names[-1]:
            return super().covered(recording, start, end)
        first, last = start - self.gone, min(end - self.gone, self.lengths[-1])
        if not 0 <= first < last:
            raise InputError(
                f"of {recording} the samples {self.gone} to {self.gone + self.lengths[-1]} are "
                f"held and described, got the stretch from {start} to {end}"
            )
        return super().covered(recording, first, last)


class Now(NamedTuple):
    """What is known of the stream at one time; nothing of it changes any more."""

    idx: Index  # without the stream as long as no window of it is final
    recording: Recording


class Live:
    """The newest part of a stream whose samples come piece by piece.

    Example:
        >>> import numpy as np, progmem, tempfile
        >>> from progmem import explore
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> x = np.sin(np.arange(900) / 3)[:, None]
        >>> model.feature_stats.set(progmem.pooling.fit_feature_stats(model, [x]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     live = Live(model, explore.index(model, {"before": x}, folder), "sensor")
        ...     for part in np.split(x, 9):
        ...         live.push(part)
        ...     found = explore.search(live.now.idx, "sensor", 160, 320, k=1)
        >>> live.now.idx.names, len(found)
        (['before', 'sensor'], 1)
    """

    def __init__(self, model: PMT, idx: Index, name: str) -> None:
        if model.cfg.normalise == "series":
            raise InputError(
                "this model normalises a series by statistics of all of it, which a stream does "
                "not know; train one with normalise=channel to follow a stream"
            )
        if model.info.has_calendar:
            raise InputError("this model reads the calendar, and a stream has no dates to follow")
        stats = model.feature_stats.values
        if stats is None:
            raise InputError("an untrained model cannot follow a stream; give a run or a model")
        self.base, self.name = idx, name if name not in idx.names else f"{name} (live)"
        self.columns: Sequence[str] = idx.channels.columns
        self.channels = model.cfg.channels
        self.said = ""  # why the stream is followed no more
        self._windows = WindowStream(model, stats)
        self._vectors = np.empty((0, idx.all_vectors.shape[1]), dtype=np.float32)
        self._statistics = np.empty((0, 2, self.channels), dtype=np.float32)
        self._points = np.empty((0, *idx.all_points.shape[1:]), dtype=np.float32)
        self._observed = np.empty(0, dtype=bool)
        self._values = np.empty((0, self.channels), dtype=np.float32)  # from the first window on
        self._gone = 0  # samples before that
        self.now = self._as_it_is()

    def push(self, values: np.ndarray) -> None:
        """Take in samples (L, C), NaN where missing."""
        found = self._windows.push(torch.from_numpy(np.ascontiguousarray(values))[None])
        here = found.observed[0].cpu().numpy()
        groups = [group[0].cpu().float().numpy() for group in found.groups()]
        vectors = np.where(here[:, None], self.base.axes.vectors(groups), 0.0)
        self._vectors = np.concatenate([self._vectors, vectors.astype(np.float32)])
        statistics = groups[0].reshape(-1, 2, self.channels)
        self._statistics = np.concatenate([self._statistics, statistics])
        points = found.points[0].cpu().float().numpy()
        self._points = np.concatenate([self._points, points])
        self._observed = np.append(self._observed, here)
        self._values = np.concatenate([self._values, values.astype(np.float32)])
        old = max(0, len(self._vectors) - HELD)
        self._vectors, self._observed = self._vectors[old:], self._observed[old:]
        self._statistics, self._points = self._statistics[old:], self._points[old:]
        self._values = self._values[old * self.base.window :]
        self._gone += old * self.base.window
        self.now = self._as_it_is()

    def _as_it_is(self) -> Now:
        base, n = self.base, len(self._vectors)
        recording = Recording(
            self.name, Tail(self._values, self._gone), columns=tuple(base.channels.columns),
            units=tuple(base.channels.units), rate=base.channels.rate,
        )  # fmt: skip
        if not n:
            return Now(base, recording)
        own: dict[str, Any] = {field.name: getattr(base, field.name) for field in fields(base)}
        own |= {
            "names": [*base.names, self.name], "lengths": [*base.lengths, n * base.window],
            "starts": np.append(base.starts, base.starts[-1] + n),
            "all_vectors": Joined(base.all_vectors, self._vectors),
            "channel_values": Joined(base.channel_values, self._statistics),
            "all_points": Joined(base.all_points, self._points),
            "calendars": [*base.calendars, None],
        }  # fmt: skip
        seen = np.append(base.all_observed, self._observed)
        return Now(LiveIndex(**own, gone=self._gone, seen=seen), recording)
