"""What is wrong or odd in recordings: gaps, constant channels, copies, numbers that mean missing.

Recordings are read in chunks, so that they may be larger than memory.

Shapes: L samples, C channels.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from progmem.data.recordings import Recording, columns_of
from progmem.progress import Advance, Log, progress

CHUNK = 2**21  # numbers looked at together
SAMPLED = 50_000  # values of a channel that show what is usual
SENTINELS = (-99999.0, -9999.0, -999.0, -99.0, 99.0, 999.0, 9999.0, 99999.0, -32768.0, 32767.0,
             65535.0, 1e20)  # fmt: skip
FAR = 3  # so many times the usual range beside it
ZEROS = 20  # equal zeros in a row that are no measurement


class Oddity(NamedTuple):
    """A value of a channel that may stand for a missing one."""

    value: float
    samples: int  # that have it
    longest: int  # so many in a row
    far: bool  # from all other values


class ChannelQuality(NamedTuple):
    """One channel in all recordings."""

    name: str
    unit: str
    low: float | None  # None: nothing was observed
    high: float | None
    missing: float  # share of the samples
    odd: tuple[Oddity, ...]

    @property
    def constant(self) -> bool:
        return self.low == self.high


class Quality(NamedTuple):
    """What was found in recordings."""

    channels: list[ChannelQuality]
    missing: list[int]  # samples of each recording of which no channel was observed
    longest_gap: list[int]  # of each recording
    constant: list[tuple[str, ...]]  # channels of each recording that do not vary there
    infinite: list[int]  # infinite values of each recording
    copies: list[list[str]]  # names of recordings that hold the same samples


class _Seen(NamedTuple):
    """What one pass over a recording shows."""

    low: np.ndarray  # (C,)
    high: np.ndarray  # (C,)
    observed: np.ndarray  # (C,)
    missing: int
    longest_gap: int
    infinite: int
    digest: str


def inspect(recordings: Sequence[Recording], *, log: Log | None = None) -> Quality:
    """Look at every sample of the recordings, twice."""
    samples = sum(len(recording.values) for recording in recordings)
    with progress(f"looking at {samples} samples", 2 * samples, log=log) as advance:
        return _inspect(recordings, advance)


def _inspect(recordings: Sequence[Recording], advance: Advance) -> Quality:
    columns = columns_of(recordings)
    C = recordings[0].values.shape[1]
    names = list(columns) or [f"channel {c}" for c in range(C)]
    units = next((r.units for r in recordings if r.units), ("",) * C)
    seen = [_look_at(recording.values, advance) for recording in recordings]
    low, high = np.fmin.reduce([s.low for s in seen]), np.fmax.reduce([s.high for s in seen])
    total = sum(len(recording.values) for recording in recordings)
    observed = np.sum([s.observed for s in seen], axis=0)
    odd = _find_odd(recordings, low, high, total, advance)
    channels = [
        ChannelQuality(
            names[c], units[c], _finite(low[c]), _finite(high[c]), float(1 - observed[c] / total),
            odd[c],
        )
        for c in range(C)
    ]  # fmt: skip
    same: dict[str, list[str]] = {}
    for recording, one in zip(recordings, seen, strict=True):
        same.setdefault(one.digest, []).append(recording.name)
    still = [tuple(names[c] for c in np.flatnonzero(~(s.low < s.high))) for s in seen]
    return Quality(
        channels, [s.missing for s in seen], [s.longest_gap for s in seen], still,
        [s.infinite for s in seen], [group for group in same.values() if len(group) > 1],
    )  # fmt: skip


def _finite(number: float) -> float | None:
    return float(number) if np.isfinite(number) else None


def _chunks(values: Any) -> Iterator[np.ndarray]:
    size = max(1, CHUNK // values.shape[1])
    for start in range(0, len(values), size):
        yield np.asarray(values[start : start + size], dtype=np.float64)


def _look_at(values: Any, advance: Advance) -> _Seen:
    C = values.shape[1]
    low, high, observed = np.full(C, np.inf), np.full(C, -np.inf), np.zeros(C, dtype=np.int64)
    missing = infinite = 0
    gap = _Runs()
    digest = hashlib.blake2b(str(values.shape).encode(), digest_size=16)
    for chunk in _chunks(values):
        digest.update(np.ascontiguousarray(chunk).data)
        bad = ~np.isfinite(chunk)
        infinite += int(np.isinf(chunk).sum())
        low = np.minimum(low, np.where(bad, np.inf, chunk).min(0))
        high = np.maximum(high, np.where(bad, -np.inf, chunk).max(0))
        observed += (~np.isnan(chunk)).sum(0)
        empty = np.isnan(chunk).all(1)
        missing += int(empty.sum())
        gap.add(empty[:, None])
        advance(len(chunk))
    longest = int(gap.longest[0]) if len(values) else 0
    return _Seen(low, high, observed, missing, longest, infinite, digest.hexdigest())


class _Runs:
    """The longest run of True in each column of arrays that come one after the other."""

    def __init__(self) -> None:
        self.longest: np.ndarray = np.zeros(1, dtype=np.int64)
        self.open: np.ndarray = np.zeros(1, dtype=np.int64)  # of the run that goes on

    def add(self, flags: np.ndarray) -> None:
        L = len(flags)
        place = np.arange(1, L + 1)[:, None]
        last_false = np.maximum.accumulate(np.where(flags, 0, place), axis=0)  # 0: none so far
        runs = np.where(flags, place - last_false, 0) + np.where(last_false == 0, self.open, 0)
        runs = np.where(flags, runs, 0)
        self.longest = np.maximum(self.longest, runs.max(0))
        self.open = runs[-1]


def _find_odd(
    recordings: Sequence[Recording],
    low: np.ndarray,
    high: np.ndarray,
    total: int,
    advance: Advance,
) -> list[tuple[Oddity, ...]]:
    """Values of each channel that occur often, or in long runs, and lie far from all others."""
    C, step = len(low), max(1, total // SAMPLED)
    candidates = np.stack([low, high, np.zeros(C), *(np.full(C, s) for s in SENTINELS)])  # (V, C)
    counts = np.zeros(candidates.shape, dtype=np.int64)
    runs = [_Runs() for _ in candidates]
    sampled: list[np.ndarray] = []
    offset = 0
    for recording in recordings:
        for run in runs:
            run.open = np.zeros(C, dtype=np.int64)
        for chunk in _chunks(recording.values):
            sampled.append(chunk[(-offset) % step :: step].copy())  # a view would keep the chunk
            offset += len(chunk)
            for v, value in enumerate(candidates):
                equal = chunk == value
                if equal.any():
                    counts[v] += equal.sum(0)
                    runs[v].add(equal)
                else:
                    runs[v].open = np.zeros(C, dtype=np.int64)
            advance(len(chunk))
    usual = np.concatenate(sampled)  # (about SAMPLED, C)
    longest = np.stack([np.broadcast_to(run.longest, (C,)) for run in runs])  # (V, C)
    return [
        _odd_values(candidates[:, c], counts[:, c], longest[:, c], usual[:, c]) for c in range(C)
    ]


def _odd_values(
    values: np.ndarray, counts: np.ndarray, longest: np.ndarray, usual: np.ndarray
) -> tuple[Oddity, ...]:
    usual = usual[np.isfinite(usual)]
    if not len(usual):
        return ()
    middle = float(np.median(usual))
    found: dict[float, Oddity] = {}
    for v in np.argsort(-np.abs(values - middle), kind="stable"):  # the farthest first
        value, count = float(values[v]), int(counts[v])
        rest = usual[(usual != value) & ~np.isin(usual, list(found))]
        if value in found or count == 0 or len(rest) < 10:
            continue
        least, most = np.percentile(rest, [1, 99])
        far = FAR * (most - least)
        outside = (value < least - far or value > most + far) and most > least
        often = count >= 3 or (value in SENTINELS and count >= 1)
        measured = len(np.unique(rest)) > ZEROS and np.mean(usual == value) < 0.5
        flat = value == 0 and longest[v] >= ZEROS and measured  # a switch may be 0 for long
        if (outside and often) or flat:
            found[value] = Oddity(value, count, int(longest[v]), bool(outside))
    return tuple(found.values())
