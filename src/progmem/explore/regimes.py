"""Segmentation: where a recording changes from one regime to another, and which regimes recur.

The vectors of windows are taken to vary around a mean that changes at boundaries. Boundaries are
those of the least squared distance from the means plus a penalty for each (kernel change-point
detection with a linear kernel, ruptures' KernelCPD, which is exact). The penalty is as large as
what noise gains by one more boundary, and the noise is seen in how much neighbours differ.

Shapes: n windows, V numbers of a vector.
"""

from typing import Any, NamedTuple

import numpy as np

from progmem.errors import InputError
from progmem.explore.folder import Index
from progmem.series import check_count

PENALTY = 0.5  # in units of the noise times log n; chosen on splices of subjects 3 to 7
SHORTEST = 5  # windows of a regime
MOST = 4096  # windows that are segmented as they are; of more, means of neighbours are
ALIKE = 0.6  # distance of the means of one regime, in units of the spread inside a segment


class Segment(NamedTuple):
    """A part of a recording in one regime, in samples; segments with one number are alike."""

    recording: str
    start: int
    end: int
    regime: int


def segment(
    idx: Index, recording: str, *, count: int | None = None, penalty: float = 1.0
) -> list[Segment]:
    """The regimes of a recording in order.

    A gap between two regimes belongs to none.

    Args:
        idx: the index that has the recording.
        recording: its name.
        count: how many segments there are, if that is known.
        penalty: larger than 1 gives fewer segments, smaller more.

    Example:
        >>> import numpy as np, progmem, tempfile
        >>> from progmem import explore
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> time = np.arange(1600)
        >>> x = np.where(time < 800, np.sin(time / 2), np.sin(time / 8))[:, None]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     idx = explore.index(model, {"a": x}, folder)
        ...     found = explore.segment(idx, "a", count=2)
        >>> found[0].end == found[1].start, abs(found[0].end - 800) <= 2 * idx.window
        (True, True)
    """
    if not penalty > 0:
        raise InputError(f"penalty must be a number above 0, got {penalty!r}")
    spans, observed = idx.windows(recording), idx.observed(recording)
    rows = np.flatnonzero(observed)
    if not len(rows):
        raise InputError(f"nothing is observed in {recording}; it has no regimes")
    x = idx.vectors(recording)[rows].astype(np.float64)
    if count is not None:
        check_count("count", count)
        if count * SHORTEST > len(x):
            raise InputError(
                f"{recording} has {len(x)} observed windows, too few for {count} segments of at "
                f"least {SHORTEST}"
            )
    ends = _boundaries(x, count, penalty)
    starts = np.append(0, ends[:-1])
    regimes = _alike(x, starts, ends)
    return [
        Segment(recording, int(spans[rows[a], 0]), int(spans[rows[b - 1], 1]), int(regime))
        for a, b, regime in zip(starts, ends, regimes, strict=True)
    ]


def _boundaries(x: np.ndarray, count: int | None, penalty: float) -> np.ndarray:
    """Where segments of x (n, V) end, the last one at n."""
    import ruptures

    n = len(x)
    noise = _noise(x)
    if n < 2 * SHORTEST or count == 1 or (count is None and noise == 0):
        return np.array([n])
    width = -(-n // MOST)
    whole = n // width * width
    blocks = x[:whole].reshape(-1, width, x.shape[1]).mean(1) * width**0.5
    shortest = max(1, -(-SHORTEST // width))
    search: Any = ruptures.KernelCPD(kernel="linear", min_size=shortest).fit(blocks)
    least = penalty * PENALTY * noise * np.log(n)  # that a boundary gains
    found = search.predict(pen=least) if count is None else search.predict(n_bkps=count - 1)
    ends = np.append(np.array(found[:-1], dtype=np.int64) * width, n)
    if width == 1:
        return ends
    return _refined(x, ends, width, least if count is None else 0.0)


def _noise(x: np.ndarray) -> float:
    """Variance of a vector around the mean of its regime, if neighbours vary independently."""
    apart = np.square(np.diff(x, axis=0)).sum(1)
    return float(np.median(apart)) / 2 if len(apart) else 0.0


def _refined(x: np.ndarray, ends: np.ndarray, width: int, least: float) -> np.ndarray:
    """Boundaries to the window, which were found among blocks of ``width`` windows.

    A block with a boundary inside is unlike both its neighbours, so some boundaries gain too
    little now; they are taken away.
    """
    sums, ends = np.concatenate([np.zeros((1, x.shape[1])), np.cumsum(x, axis=0)]), ends.copy()
    while True:
        gains = np.empty(len(ends) - 1)
        for i in range(len(gains)):
            a, c = (0 if i == 0 else ends[i - 1]), ends[i + 1]
            at = np.arange(max(a + 1, ends[i] - width), min(c, ends[i] + width + 1))
            left, right = sums[at] - sums[a], sums[c] - sums[at]
            inside = np.square(left).sum(1) / (at - a) + np.square(right).sum(1) / (c - at)
            ends[i], gains[i] = at[inside.argmax()], inside.max()
            gains[i] -= np.square(sums[c] - sums[a]).sum() / (c - a)
        if not len(gains) or gains.min() >= least:
            return ends
        ends = np.delete(ends, gains.argmin())


def _alike(x: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Numbers of regimes, from 0 in order of time: segments whose means are near share one."""
    from sklearn.cluster import AgglomerativeClustering

    if len(ends) == 1:
        return np.zeros(1, dtype=np.int64)
    pairs = list(zip(starts, ends, strict=True))
    means = np.stack([x[a:b].mean(0) for a, b in pairs])
    spread = [np.square(x[a:b] - m).sum(1) for (a, b), m in zip(pairs, means, strict=True)]
    inside = max(np.concatenate(spread).mean(), np.finfo(np.float64).tiny)
    grouping = AgglomerativeClustering(
        n_clusters=None, distance_threshold=ALIKE * inside**0.5, linkage="average"
    )
    groups = grouping.fit_predict(means)
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    return first.argsort().argsort()[number]
