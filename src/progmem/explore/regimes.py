"""Segmentation: where a recording changes from one regime to another, and which regimes recur.

A window is described by the mean and the deviation of each channel and by its vector, which sees
changes that leave these as they are. Boundaries are those of the least squared distance from the
means of the segments, in the feature space of a Gaussian kernel, plus a penalty for each (kernel
change-point detection, ruptures' KernelCPD, which is exact). The kernel is as wide as windows are
usually apart, so that a regime that varies much does not hide the boundaries of others
(docs/LOG.md, 2026-11-19).

Shapes: n windows, F numbers that describe one, V numbers of a vector, C channels.
"""

from typing import Any, NamedTuple

import numpy as np

from progmem.errors import InputError
from progmem.explore.folder import Index
from progmem.series import check_count

PENALTY = 0.35  # of a boundary, times log n; the kernel of a window with itself is 1
STATISTICS = 2.0  # how much farther apart mean and deviation put two windows than vectors do
JUDGED = 1024  # windows by which the width of the kernel is chosen
SHORTEST = 5  # windows of a regime
MOST = 4096  # windows that are segmented as they are; of more, means of neighbours are
AROUND = 256  # windows to each side that say where between two means a boundary is
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
    x = _described(idx, recording, rows)
    if count is not None:
        check_count("count", count)
        if count * SHORTEST > len(x):
            raise InputError(
                f"{recording} has {len(x)} observed windows, too few for {count} segments of at "
                f"least {SHORTEST}"
            )
    ends = _boundaries(x, count, penalty)
    starts = np.append(0, ends[:-1])
    regimes = _alike(idx.vectors(recording)[rows].astype(np.float64), starts, ends)
    return [
        Segment(recording, int(spans[rows[a], 0]), int(spans[rows[b - 1], 1]), int(regime))
        for a, b, regime in zip(starts, ends, regimes, strict=True)
    ]


def _described(idx: Index, recording: str, rows: np.ndarray) -> np.ndarray:
    """What describes some windows of a recording, (n, F), in units of how much they vary."""
    vectors = idx.vectors(recording)[rows].astype(np.float64)
    statistics = idx.channel_values[idx.rows(recording)][rows].reshape(len(rows), -1)
    there = ~np.isnan(statistics)
    known = np.where(there, statistics, 0).astype(np.float64)
    count = there.sum(0).clip(1)
    apart = np.where(there, known - known.sum(0) / count, 0)
    spread = np.sqrt(np.square(apart).sum(0) / count)
    # equal values have a mean with a rounding error, which is not a spread
    varies = spread > 1e-6 * np.abs(known).max(0)
    apart = np.where(varies, apart, 0) / np.where(varies, spread, 1)
    return np.concatenate([STATISTICS * _of_unit(apart), _of_unit(vectors - vectors.mean(0))], 1)


def _of_unit(x: np.ndarray) -> np.ndarray:
    """Rows with a mean of 0, scaled to a mean square of 1."""
    return x / (np.square(x).sum(1).mean() ** 0.5 or 1.0)


def _boundaries(x: np.ndarray, count: int | None, penalty: float) -> np.ndarray:
    """Where segments of x (n, F) end, the last one at n."""
    try:
        import ruptures
    except ImportError as error:
        raise InputError("regimes need ruptures: pip install 'progmem[explore]'") from error

    n = len(x)
    if n < 2 * SHORTEST or count == 1 or (count is None and not x.any()):
        return np.array([n])
    width = -(-n // MOST)
    blocks = x[: n // width * width].reshape(-1, width, x.shape[1]).mean(1)
    shortest = max(min(width, 2), -(-SHORTEST // width))  # a block between two is no segment
    search: Any = ruptures.KernelCPD(
        kernel="rbf", min_size=shortest, params={"gamma": _gamma(blocks)}
    ).fit(blocks)
    least = penalty * PENALTY * np.log(n)  # that a boundary gains
    found = search.predict(pen=least) if count is None else search.predict(n_bkps=count - 1)
    ends = np.append(np.array(found[:-1], dtype=np.int64) * width, n)
    return ends if width == 1 else _refined(x, ends, width)


def _gamma(x: np.ndarray) -> float:
    """That of a Gaussian kernel which is as wide as rows of x are usually apart."""
    apart = _squared_distances(x[:: -(-len(x) // JUDGED)])
    usual = float(np.median(apart[np.triu_indices(len(apart), 1)]))
    return 1 / usual if usual > 0 else 1.0


def _squared_distances(x: np.ndarray) -> np.ndarray:
    """Between rows of x, (n, n)."""
    squares = np.square(x).sum(1)
    return (squares[:, None] + squares - 2 * x @ x.T).clip(0)


def _refined(x: np.ndarray, ends: np.ndarray, width: int) -> np.ndarray:
    """Boundaries to the window, which were found among blocks of ``width`` windows."""
    ends = ends.copy()
    for i in range(len(ends) - 1):
        a = max(0 if i == 0 else ends[i - 1], ends[i] - width - AROUND)
        c = min(ends[i + 1], ends[i] + width + AROUND)
        at = np.arange(max(a + 1, ends[i] - width), min(c, ends[i] + width + 1))
        near = x[a:c]
        kernel = np.exp(-_gamma(near) * _squared_distances(near))
        inside = np.cumsum(np.cumsum(kernel, 0), 1)  # sums over the first rows and columns
        left = inside.diagonal()[at - a - 1]
        right = inside[-1, -1] - 2 * inside[at - a - 1, -1] + left
        ends[i] = at[(left / (at - a) + right / (c - at)).argmax()]
    return ends


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
