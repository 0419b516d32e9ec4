"""Training windows: whole recordings, or windows cut from those too long to train on at once.

Where all windows of a run fit on its device they are normalised once and kept there. A batch has
one row per window; ``rows`` are the numbers of windows.

Shapes: R windows of a run, B rows of a batch, L samples of the longest, C channels.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from progmem.config import DataConfig, EncoderConfig
from progmem.data.recordings import Recording
from progmem.errors import InputError
from progmem.names import printable
from progmem.progress import Log, progress
from progmem.series import ChannelStats, Moments, Series, normalise

MAX_CACHE_BYTES = 2**30  # of the windows that are kept on the device
CHUNK = 1024  # windows normalised at a time
VALUES = 2**22  # of recordings that are read at a time
ALONE = 8  # windows side by side that one recording is cut into where there is no other
SHORTEST = 16  # samples of such a window


class Batch(NamedTuple):
    """The windows of a batch, normalised."""

    x: Tensor  # (B, L, C), 0 where missing
    observed: Tensor  # (B, L, C)
    lengths: Tensor  # (B,)


def cut_alone(recordings: Sequence[Recording], cfg: DataConfig) -> DataConfig:
    """Settings by which one recording is cut where it would be one row, and is long enough.

    There is nothing that a single row could be told from.
    """
    length = len(recordings[0].values)
    if len(recordings) > 1 or not ALONE * SHORTEST <= length <= cfg.longest:
        return cfg
    window = length // ALONE
    return replace(cfg, longest=window, window=window, hop=window // 2)


class TrainingWindows:
    """The position of each training window.

    ``source`` and ``offset`` say where its samples are stored; ``recording`` and ``start`` say
    where it lies in time: windows of one recording may share samples.
    """

    def __init__(self, recordings: Sequence[Recording], cfg: DataConfig) -> None:
        self.recordings = recordings
        window, hop = cfg.window, cfg.window if cfg.hop is None else cfg.hop
        windows = []
        for i, recording in enumerate(recordings):
            length = len(recording.values)
            if length <= cfg.longest:
                windows.append((i, 0, length))
                continue
            starts = list(range(0, length - window + 1, hop))
            if starts[-1] + window < length:
                starts.append(length - window)  # the tail; windows that overlap are not negatives
            windows += [(i, start, window) for start in starts]
        self.source, self.offset, self.length = torch.tensor(windows).T
        origins = [r.origin if r.origin is not None else i for i, r in enumerate(recordings)]
        numbers = {origin: number for number, origin in enumerate(dict.fromkeys(origins))}
        self.recording = torch.tensor([numbers[origin] for origin in origins])[self.source]
        self.start = torch.tensor([r.start for r in recordings])[self.source] + self.offset
        self.gaps = any(_has_nan(recording.values) for recording in recordings)

    def __len__(self) -> int:
        return len(self.recording)

    @property
    def channels(self) -> int:
        return int(self.recordings[0].values.shape[1])

    @property
    def all_overlap(self) -> bool:
        """Whether all windows share samples: then none is a negative of another."""
        one = bool((self.recording == self.recording[0]).all())
        return one and int(self.start.max()) < int((self.start + self.length).min())

    def set_statistics(self, stats: ChannelStats, *, log: Log | None = None) -> None:
        """Mean and standard deviation of each channel over all recordings, float64.

        Where nothing varies the second is 1: the mean of equal values has a rounding error, which
        is not a scale.
        """
        count, total, square = (np.zeros(self.channels) for _ in range(3))
        low, high = np.full(self.channels, np.inf), np.full(self.channels, -np.inf)
        samples = sum(len(recording.values) for recording in self.recordings)
        # small recordings are gone through before anyone has read a line
        log = log if samples * self.channels > VALUES else None
        with progress("mean and spread of each channel", 2 * samples, log=log) as advance:
            for values in iterate_chunks(self.recordings):
                count += np.isfinite(values).sum(0)
                total += np.nansum(values, 0)
                low = np.fmin(low, np.fmin.reduce(values))
                high = np.fmax(high, np.fmax.reduce(values))
                advance(len(values))
            if not count.any():
                raise InputError(
                    "no recording has an observed value; there is nothing to learn from"
                )
            mean = total / np.maximum(count, 1)
            with np.errstate(over="ignore", invalid="ignore"):
                for values in iterate_chunks(self.recordings):
                    square += np.nansum((values - mean) ** 2, 0)
                    advance(len(values))
        if not np.isfinite(square).all():
            channel = int(np.argmin(np.isfinite(square)))
            raise InputError(
                f"channel {channel} ranges from {low[channel]:g} to {high[channel]:g}, too far "
                "to be squared; scale it down, or mark what is missing by NaN"
            )
        scale = np.sqrt(square / np.maximum(count, 1))
        stats.mean.copy_(torch.from_numpy(mean))
        varies = (low < high) & (scale > 0)
        if not varies.any():
            raise InputError("no channel varies in any recording; there is nothing to learn from")
        stats.scale.copy_(torch.from_numpy(np.where(varies, scale, 1.0)))

    def describe(self, row: int) -> str:
        """The recording that a window is, or was cut from, by name."""
        recording = self.recordings[int(self.source[row])]
        name, length = printable(recording.name), int(self.length[row])
        start = int(self.offset[row])
        whole = length == len(recording.values)
        return name if whole else f"samples {start} to {start + length} of {name}"

    def cut(self, rows: Tensor) -> list[np.ndarray]:
        """The samples of the windows ``rows`` (B,), each (L, C), as they are stored."""
        starts, ends = self.offset[rows].tolist(), (self.offset + self.length)[rows].tolist()
        spans = zip(self.source[rows].tolist(), starts, ends, strict=True)
        return [self.recordings[i].values[start:end] for i, start, end in spans]

    def fetch(self, rows: Tensor, cfg: EncoderConfig, stats: ChannelStats, like: Tensor) -> Batch:
        """The windows ``rows`` (B,), padded to the longest, normalised as the model does."""
        sources, starts = self.source[rows].tolist(), self.offset[rows].tolist()
        places = zip(sources, starts, strict=True)
        names = [f"{self.recordings[i].name} from {start} on" for i, start in places]
        series = Series(self.cut(rows), None, cfg, names)
        all_series = range(len(series))
        moments: Moments = stats.moments
        if cfg.normalise == "series":
            moments = series.own_moments(all_series)
        values = series.cut(all_series, 0, max(series.lengths))
        x, observed = normalise(values, moments, like, names=series.names, start=0)
        return Batch(x, observed, self.length[rows].to(like.device))


class DeviceCache:
    """All windows of a run on the device, as `TrainingWindows.fetch` would return them."""

    def __init__(
        self, rows: TrainingWindows, cfg: EncoderConfig, stats: ChannelStats, like: Tensor
    ) -> None:
        shape = (len(rows), int(rows.length.max()), rows.channels)
        self.length = rows.length
        self.lengths = rows.length.to(like.device)
        self.x = torch.zeros(shape, dtype=like.dtype, device=like.device)  # (R, L, C)
        self.observed = torch.zeros(shape, dtype=torch.bool, device=like.device)
        for first in range(0, len(rows), CHUNK):
            some = torch.arange(first, min(first + CHUNK, len(rows)))
            batch = rows.fetch(some, cfg, stats, like)
            part = slice(first, first + len(some)), slice(0, batch.x.shape[1])
            self.x[part], self.observed[part] = batch.x, batch.observed

    def fetch(self, rows: Tensor) -> Batch:
        """The windows ``rows`` (B,), cut to the longest of them."""
        length = int(self.length[rows].max())
        rows = rows.to(self.x.device)
        return Batch(self.x[rows, :length], self.observed[rows, :length], self.lengths[rows])


def fetch_from(
    rows: TrainingWindows, cfg: EncoderConfig, stats: ChannelStats, like: Tensor
) -> Callable[[Tensor], Batch]:
    """A function that returns the windows of a batch, from a device cache where they fit."""
    if fits_on_device(rows, like):
        return DeviceCache(rows, cfg, stats, like).fetch
    return partial(rows.fetch, cfg=cfg, stats=stats, like=like)


def fits_on_device(rows: TrainingWindows, like: Tensor) -> bool:
    """Whether all windows may be kept on the device of ``like``, beside its other tensors."""
    samples = len(rows) * int(rows.length.max()) * rows.channels
    needed = samples * (like.element_size() + 1)
    if like.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(like.device)
        return needed <= min(MAX_CACHE_BYTES, free // 4)
    return needed <= MAX_CACHE_BYTES


def iterate_chunks(recordings: Iterable[Recording]) -> Iterator[np.ndarray]:
    """All samples in order, float64, in chunks; an infinite one is refused by name."""
    for name, values, *_ in recordings:
        size = max(1, min(2**20, VALUES // values.shape[1]))
        for start in range(0, len(values), size):
            chunk = np.asarray(values[start : start + size], dtype=np.float64)
            if np.isinf(chunk).any():
                sample, channel = np.argwhere(np.isinf(chunk))[0]
                raise InputError(
                    f"{name}, sample {start + sample}, channel {channel} is "
                    f"{chunk[sample, channel]:g}; mark missing values by NaN"
                )
            yield chunk


def refuse_infinite(recordings: Iterable[Recording]) -> None:
    """Refuse recordings with infinite values."""
    for _ in iterate_chunks(recordings):
        pass


def _has_nan(values: np.ndarray) -> bool:
    if values.dtype.kind != "f":
        return False
    size = max(1, VALUES // values.shape[1])
    chunks = (values[start : start + size] for start in range(0, len(values), size))
    return any(bool(np.isnan(chunk).any()) for chunk in chunks)
