"""Surprise: how unlike everything before it a window is, with the windows just before it.

A stretch is compared with all stretches before it, in earlier recordings of the index and in its
own, in two ways: by the vectors of its windows in order, and by its shape. The distance from the
nearest is in units of how far vectors, and shapes, are from their mean, and the two are added
(docs/LOG.md, 2026-11-19). Where there are many stretches before, evenly spaced ones stand for them.

Shapes: n windows, P parts of one, m places where stretches begin, V numbers of a vector.
"""

from collections.abc import Callable

import numpy as np

from progmem.explore.folder import Index
from progmem.explore.shapes import shapes
from progmem.explore.stretches import STRETCH, sums

TOGETHER = 3  # windows whose mean vector is one of those in order
SHAPE = 0.5  # how much the shape counts beside the vectors
KEPT = 4096  # stretches of the recording that later ones are compared with
EARLIER = 2048  # of the recordings before it
AT_ONCE = 256  # windows
ROUNDING = 1e-6  # of squares in float32

Describe = Callable[[np.ndarray], np.ndarray]  # what describes the stretches from places (m,) on


def surprise(idx: Index, recording: str) -> np.ndarray:
    """The surprise of each window of a recording, (n,), in units of its median.

    It is NaN in gaps, and where there is nothing before.

    Example:
        >>> import numpy as np, progmem, tempfile
        >>> from progmem import explore
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> x = np.sin(np.arange(3200) / 5)[:, None]
        >>> x[2000:2100] = 0  # it stops for a while
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     idx = explore.index(model, {"a": x}, folder)
        ...     found = explore.surprise(idx, "a")
        >>> most = 20 + np.argmax(found[20:])  # in the beginning everything is new
        >>> start, _ = idx.windows("a")[most]
        >>> bool(2000 <= start < 2100 + explore.STRETCH * idx.window)
        True
    """
    n, parts = len(idx.windows(recording)), idx.all_points.shape[1]
    found = np.full(n, np.nan)
    if n < STRETCH:
        return found
    size = float(idx.axes.size) or 1.0
    ordered = _from_before(idx, recording, 1, _vectors_in_order) / size
    found[STRETCH - 1 :] = ordered + SHAPE * _from_before(idx, recording, parts, _shapes)
    found[np.isinf(found)] = np.nan
    usual = np.nanmedian(found) if np.isfinite(found).any() else 0.0
    return found / usual if usual > 0 else found


def _vectors_in_order(idx: Index, recording: str) -> Describe:
    """Of a stretch the means of every few windows, one after the other."""
    means = sums(idx.vectors(recording), TOGETHER) / TOGETHER
    steps = range(STRETCH - TOGETHER + 1)
    return lambda at: np.concatenate([means[at + i] for i in steps], 1) / len(steps) ** 0.5


def _shapes(idx: Index, recording: str) -> Describe:
    C = idx.all_points.shape[2]
    mean, deviation = idx.axes.scale.numpy()[:C], idx.axes.mean.numpy()[C : 2 * C]
    unit = np.sqrt(mean**2 + deviation**2).astype(np.float32)
    return lambda at: shapes(idx.points(recording), at, unit)


def _from_before(
    idx: Index, recording: str, parts: int, describing: Callable[[Index, str], Describe]
) -> np.ndarray:
    """Distance of the stretch from each window on from the nearest before it, (n - STRETCH + 1,).

    It is infinite where nothing is before, and NaN where most of the stretch is not observed. The
    stretches before begin at any of the ``parts`` of a window.
    """
    describe, whole = describing(idx, recording), _whole(idx.observed(recording), parts)
    before = _earlier(idx, recording, parts, describing)
    n = len(whole[::parts])
    found = np.full(n, np.nan)
    for start in range(0, n, AT_ONCE):
        rows = np.arange(start, min(start + AT_ONCE, n))
        rows = rows[whole[rows * parts]]
        if not len(rows):
            continue
        own = describe(rows * parts)
        last = max(0, (start - STRETCH) * parts + 1)  # what begins before it overlaps none of these
        known = _thinned(np.flatnonzero(whole[:last]), KEPT)
        ahead = np.flatnonzero(whole[last : rows[-1] * parts]) + last
        late = ahead > (rows[:, None] - STRETCH) * parts
        apart = np.concatenate([
            _distances(own, before),
            _distances(own, describe(known)) if len(known) else np.empty((len(own), 0)),
            np.where(late, np.inf, _distances(own, describe(ahead)) if len(ahead) else late),
            np.full((len(own), 1), np.inf),
        ], axis=1)  # fmt: skip
        found[rows] = apart.min(1)
    return found


def _whole(observed: np.ndarray, parts: int) -> np.ndarray:
    """Is most of the stretch from each place on observed, for as many as there are."""
    whole = 2 * sums(observed.astype(np.int64), STRETCH) > STRETCH
    return np.repeat(whole, parts)[: (len(whole) - 1) * parts + 1]


def _earlier(
    idx: Index, recording: str, parts: int, describing: Callable[[Index, str], Describe]
) -> np.ndarray:
    """What describes some stretches of the recordings before it."""
    places = _thinned(np.arange(idx.rows(recording).start * parts), EARLIER)
    found = [describing(idx, recording)(np.zeros(1, dtype=np.int64))[:0]]
    for i in np.unique(np.searchsorted(idx.starts, places // parts, side="right") - 1):
        begin, end = idx.starts[i : i + 2]
        if end - begin < STRETCH:
            continue
        own = places[(places >= begin * parts) & (places < end * parts)] - begin * parts
        whole = _whole(idx.all_observed[begin:end], parts)
        own = own[own < len(whole)]
        own = own[whole[own]]
        if len(own):
            found.append(describing(idx, idx.names[i])(own))
    return np.concatenate(found)


def _thinned(rows: np.ndarray, most: int) -> np.ndarray:
    """Evenly spaced ones of ``rows``, the last one with them."""
    return rows[::-1][:: -(-len(rows) // most) or 1][::-1]


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance of each row of a (n, V) from each of b (m, V); 0 where it is a rounding error."""
    sizes = np.square(a).sum(1)[:, None] + np.square(b).sum(1)
    squared = sizes - 2 * a @ b.T
    return np.sqrt(np.where(squared > ROUNDING * sizes, squared, 0))
