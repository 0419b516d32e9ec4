"""Segmentation: where a recording changes from one regime to another, and which regimes recur.

Kernel change-point detection: boundaries are those of the least squared distance from the means of
the segments, in the feature space of a kernel, plus a penalty for each. The search is exact. The
kernel has two parts (docs/LOG.md, 2026-11-19):

- a Gaussian one of the mean and the deviation of each channel and of the vector, which sees changes
  that leave these as they are. It is as wide as windows are usually apart, so that a regime that
  varies much does not hide the boundaries of others;
- which windows are nearest to which by the shapes around them, in any phase, as in ClaSP
  (Schaefer, Ermshaus and Leser, 2021): where one shape recurs, its neighbours are in its regime.

Shapes: n windows, P parts of one, F numbers that describe one, V numbers of a vector, C channels.
"""

from typing import NamedTuple

import numpy as np

from progmem.errors import InputError
from progmem.explore.folder import Index
from progmem.explore.shapes import shapes
from progmem.explore.stretches import STRETCH
from progmem.series import check_count

PENALTY = 3.0  # of a boundary; the Gaussian kernel of a window with itself is 1
STATISTICS = 2.0  # how much farther apart mean and deviation put two windows than vectors do
JUDGED = 1024  # windows by which the width of the kernel is chosen
NEIGHBOURS = 3  # of a window by shape
SHAPE = 4.0  # what they add to the kernel together
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
    windows = Windows(_described(idx, recording, rows), rows, _standardised(idx.points(recording)))
    if count is not None:
        check_count("count", count)
        if count * SHORTEST > len(rows):
            raise InputError(
                f"{recording} has {len(rows)} observed windows, too few for {count} segments of at "
                f"least {SHORTEST}"
            )
    ends = _boundaries(windows, count, penalty)
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


class Windows(NamedTuple):
    """What the kernel compares: some windows of a recording, or blocks of them."""

    x: np.ndarray  # (n, F)
    rows: np.ndarray  # (n,): their numbers; of a block that of one in it
    points: np.ndarray  # of all windows of the recording


def _standardised(points: np.ndarray) -> np.ndarray:
    """Points (n, P, C) in units of how much each channel varies."""
    there = ~np.isnan(points)
    known, count = np.where(there, points, 0).astype(np.float64), there.sum((0, 1)).clip(1)
    mean = known.sum((0, 1)) / count
    spread = np.sqrt(np.square(np.where(there, known - mean, 0)).sum((0, 1)) / count)
    # equal values have a mean with a rounding error, which is not a spread
    varies = spread > 1e-6 * np.abs(known).max((0, 1))
    return ((points - mean) * varies / np.where(varies, spread, 1)).astype(np.float32)


def _boundaries(windows: Windows, count: int | None, penalty: float) -> np.ndarray:
    """Where segments of n windows end, the last one at n."""
    x, n = windows.x, len(windows.x)
    constant = not x.any() and not np.nan_to_num(windows.points).any()
    if n < 2 * SHORTEST or count == 1 or (count is None and constant):
        return np.array([n])
    width = -(-n // MOST)
    m = n // width
    blocks = windows._replace(
        x=x[: m * width].reshape(m, width, -1).mean(1),
        rows=windows.rows[width // 2 : m * width : width],
    )
    shortest = max(min(width, 2), -(-SHORTEST // width))  # a block between two is no segment
    if count is not None and count * shortest > m:
        raise InputError(
            f"at most {m // shortest} segments are looked for in {n} windows, got count={count}"
        )
    found = best_ends(_kernel(blocks), shortest, count, penalty * PENALTY)
    ends = np.append(found[:-1] * width, n)
    return ends if width == 1 else _refined(windows, ends, width)


def _kernel(windows: Windows) -> np.ndarray:
    """How alike windows are, (n, n)."""
    kernel = _squared_distances(windows.x)
    kernel *= -_gamma(windows.x)
    np.exp(kernel, out=kernel)  # in place: with as many windows as there may be, it is large
    kernel += SHAPE * _neighbours(windows.points, windows.rows)
    return kernel


def _gamma(x: np.ndarray) -> float:
    """That of a Gaussian kernel which is as wide as rows of x are usually apart."""
    apart = _squared_distances(x[:: -(-len(x) // JUDGED)])
    usual = float(np.median(apart[np.triu_indices(len(apart), 1)]))
    return 1 / usual if usual > 0 else 1.0


def _squared_distances(x: np.ndarray) -> np.ndarray:
    """Between rows of x, (n, n)."""
    squares, apart = np.square(x).sum(1), x @ x.T
    apart *= -2
    apart += squares
    apart += squares[:, None]
    return apart.clip(0, out=apart)


def _neighbours(points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The share of its neighbours that a window is of another or of itself, (n, n), symmetric.

    Neighbours are nearest by the shape of the stretch around a window: from its beginning for the
    one that asks, and for the others from any place in the window, so that phases can agree.
    """
    P, share = points.shape[1], np.zeros((len(rows), len(rows)))
    first = rows - STRETCH // 2
    asked = np.flatnonzero((first >= 0) & (first < len(points) - STRETCH))
    first, unit = first[asked], np.ones(points.shape[2], dtype=np.float32)
    if len(asked) <= NEIGHBOURS:
        return share
    own = shapes(points, first * P, unit)
    product = np.full((len(own), len(own)), -np.inf, dtype=np.float32)
    for part in range(P):
        other = shapes(points, first * P + part, unit)
        # shapes are of nearly one length, so that the nearest has the largest product
        apart = own @ other.T - np.square(other).sum(1) / 2
        product = np.maximum(product, apart)
    product[np.abs(first[:, None] - first) < STRETCH] = -np.inf  # they overlap
    nearest = np.argpartition(-product, NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS]
    here, there = np.repeat(asked, NEIGHBOURS), asked[nearest.ravel()]
    known = np.isfinite(np.take_along_axis(product, nearest, 1)).ravel()
    np.add.at(share, (here[known], there[known]), 0.5 / NEIGHBOURS)
    return share + share.T


def best_ends(
    kernel: np.ndarray, shortest: int, count: int | None, penalty: float = 0.0
) -> np.ndarray:
    """Where segments of n windows end that are most alike inside, the last one at n.

    A segment's worth is the sum of its kernel over its length; without a count, a boundary costs
    ``penalty``. Dynamic programming over all boundaries, in the order of time.

    Example:
        >>> kernel = np.kron(np.eye(2), np.ones((3, 3)))  # three windows of each of two kinds
        >>> best_ends(kernel, 1, 2).tolist(), best_ends(kernel, 1, None, 9.0).tolist()
        ([3, 6], [6])
    """
    n, layers = len(kernel), 1 if count is None else count
    worth = np.full((layers, n + 1), -np.inf)  # of the best segments of the first windows
    begin = np.zeros((layers, n + 1), dtype=np.int64)  # where the last of them begins
    inside = np.zeros(n)  # the sum of the kernel over the windows from each one up to now
    before = np.full((layers, n + 1), -np.inf)  # worth of what goes before the last segment
    before[0, 0] = 0
    for t in range(1, n + 1):
        row = kernel[t - 1, :t]
        inside[:t] += 2 * row[::-1].cumsum()[::-1] - row[-1]
        starts = np.arange(t - shortest + 1)
        if not len(starts):
            continue
        found = before[:, starts] + inside[starts] / (t - starts)
        begin[:, t] = found.argmax(1)
        worth[:, t] = found.max(1)
        if count is None:
            before[0, t] = worth[0, t] - penalty
        else:
            before[1:, t] = worth[:-1, t]
    ends = [n]
    layer = layers - 1
    while (at := int(begin[layer, ends[-1]])) > 0:
        ends.append(at)
        layer -= count is not None
    return np.array(ends[::-1])


def _refined(windows: Windows, ends: np.ndarray, width: int) -> np.ndarray:
    """Boundaries to the window, which were found among blocks of ``width`` windows."""
    ends = ends.copy()
    for i in range(len(ends) - 1):
        a = max(0 if i == 0 else ends[i - 1], ends[i] - width - AROUND)
        c = min(ends[i + 1], ends[i] + width + AROUND)
        at = np.arange(max(a + 1, ends[i] - width), min(c, ends[i] + width + 1))
        kernel = _kernel(windows._replace(x=windows.x[a:c], rows=windows.rows[a:c]))
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
