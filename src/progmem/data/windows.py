"""Training rows: whole recordings, or windows cut from those too long to train on at once.

Where all rows of a run fit on its device they are normalised once and kept there.

Shapes: R rows of a run, B rows of a batch, L samples of the longest, C channels.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from progmem.config import DataConfig, ModelConfig
from progmem.data.reader import Recording
from progmem.errors import InputError
from progmem.series import ChannelStats, Moments, Series, normalise

LARGEST_CACHE = 2**30  # bytes of rows that are kept on the device
PIECE = 1024  # rows normalised at a time


class Batch(NamedTuple):
    """Rows of a batch, normalised."""

    x: Tensor  # (B, L, C), 0 where missing
    observed: Tensor  # (B, L, C)
    lengths: Tensor  # (B,)


class TrainingWindows:
    """Where each training row lies.

    ``source`` and ``offset`` say where its samples are; ``recording`` and ``start`` say what it is
    a piece of: rows cut from one recording may share samples.
    """

    def __init__(self, recordings: Sequence[Recording], cfg: DataConfig) -> None:
        self.recordings = recordings
        window, hop = cfg.window, cfg.window if cfg.hop is None else cfg.hop
        places = []
        for i, recording in enumerate(recordings):
            length = len(recording.values)
            if length <= cfg.longest:
                places.append((i, 0, length))
                continue
            starts = list(range(0, length - window + 1, hop))
            if starts[-1] + window < length:
                starts.append(length - window)  # the tail; rows that overlap never repel
            places += [(i, start, window) for start in starts]
        self.source, self.offset, self.length = torch.tensor(places).T
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
        """Whether every two rows share samples: then none of them may repel another."""
        one = bool((self.recording == self.recording[0]).all())
        return one and int(self.start.max()) < int((self.start + self.length).min())

    def set_statistics(self, stats: ChannelStats) -> None:
        """Mean and standard deviation of each channel over all recordings, float64.

        Where nothing varies the second is 1: of equal values a mean is off by a rounding, and their
        distance from it is no scale.
        """
        count, total, square = (np.zeros(self.channels) for _ in range(3))
        low, high = np.full(self.channels, np.inf), np.full(self.channels, -np.inf)
        for values in pieces(self.recordings):
            count += np.isfinite(values).sum(0)
            total += np.nansum(values, 0)
            low, high = np.fmin(low, np.fmin.reduce(values)), np.fmax(high, np.fmax.reduce(values))
        if not count.any():
            raise InputError("no recording has an observed value; there is nothing to learn from")
        mean = total / np.maximum(count, 1)
        with np.errstate(over="ignore", invalid="ignore"):
            for values in pieces(self.recordings):
                square += np.nansum((values - mean) ** 2, 0)
        if not np.isfinite(square).all():
            channel = int(np.argmin(np.isfinite(square)))
            raise InputError(
                f"channel {channel} reaches from {low[channel]:g} to {high[channel]:g}, too far "
                "to be squared; scale it down, or mark what is missing by NaN"
            )
        scale = np.sqrt(square / np.maximum(count, 1))
        stats.mean.copy_(torch.from_numpy(mean))
        varies = (low < high) & (scale > 0)
        stats.scale.copy_(torch.from_numpy(np.where(varies, scale, 1.0)))

    def fetch(self, rows: Tensor, cfg: ModelConfig, stats: ChannelStats, like: Tensor) -> Batch:
        """The rows, padded to the longest, normalised as the model does."""
        sources = [self.recordings[i] for i in self.source[rows].tolist()]
        starts, ends = self.offset[rows].tolist(), (self.offset + self.length)[rows].tolist()
        spans = list(zip(sources, starts, ends, strict=True))
        arrays = [recording.values[start:end] for recording, start, end in spans]
        names = [f"{recording.name} from {start} on" for recording, start, _ in spans]
        series = Series(arrays, None, cfg, names)
        everyone = range(len(series))
        moments: Moments = stats.moments
        if cfg.normalise == "series":
            moments = series.own_moments(everyone)
        values = series.cut(everyone, 0, max(series.lengths))
        x, observed = normalise(values, moments, like, names=series.names, start=0)
        return Batch(x, observed, self.length[rows].to(like.device))


class DeviceCache:
    """All rows of a run on the device, as `TrainingWindows.fetch` would give them."""

    def __init__(
        self, rows: TrainingWindows, cfg: ModelConfig, stats: ChannelStats, like: Tensor
    ) -> None:
        shape = (len(rows), int(rows.length.max()), rows.channels)
        self.length = rows.length
        self.lengths = rows.length.to(like.device)
        self.x = torch.zeros(shape, dtype=like.dtype, device=like.device)  # (R, L, C)
        self.observed = torch.zeros(shape, dtype=torch.bool, device=like.device)
        for first in range(0, len(rows), PIECE):
            some = torch.arange(first, min(first + PIECE, len(rows)))
            batch = rows.fetch(some, cfg, stats, like)
            part = slice(first, first + len(some)), slice(0, batch.x.shape[1])
            self.x[part], self.observed[part] = batch.x, batch.observed

    def fetch(self, rows: Tensor) -> Batch:
        """The rows (B,), cut to the longest of them."""
        length = int(self.length[rows].max())
        rows = rows.to(self.x.device)
        return Batch(self.x[rows, :length], self.observed[rows, :length], self.lengths[rows])


def fetch_from(
    rows: TrainingWindows, cfg: ModelConfig, stats: ChannelStats, like: Tensor
) -> Callable[[Tensor], Batch]:
    """A function that gives the rows of a batch: from a cache on the device where they fit."""
    if fits_on_device(rows, like):
        return DeviceCache(rows, cfg, stats, like).fetch
    return partial(rows.fetch, cfg=cfg, stats=stats, like=like)


def fits_on_device(rows: TrainingWindows, like: Tensor) -> bool:
    """Whether all rows may be kept on the device of ``like``, beside what else it has to hold."""
    samples = len(rows) * int(rows.length.max()) * rows.channels
    needed = samples * (like.element_size() + 1)
    if like.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(like.device)
        return needed <= min(LARGEST_CACHE, free // 4)
    return needed <= LARGEST_CACHE


def pieces(recordings: Iterable[Recording], size: int = 2**20) -> Iterator[np.ndarray]:
    """All samples in order, float64, some at a time; one that is infinite is refused by name."""
    for name, values, *_ in recordings:
        for start in range(0, len(values), size):
            piece = np.asarray(values[start : start + size], dtype=np.float64)
            if np.isinf(piece).any():
                sample, channel = np.argwhere(np.isinf(piece))[0]
                raise InputError(
                    f"{name}, sample {start + sample}, channel {channel} is "
                    f"{piece[sample, channel]:g}; mark missing values by NaN"
                )
            yield piece


def check_finite(recordings: Iterable[Recording]) -> None:
    """Refuse recordings with infinite values."""
    for _ in pieces(recordings):
        pass


def _has_nan(values: np.ndarray, size: int = 2**20) -> bool:
    if values.dtype.kind != "f":
        return False
    pieces = (values[start : start + size] for start in range(0, len(values), size))
    return any(bool(np.isnan(piece).any()) for piece in pieces)
