"""Surprise: how unlike everything before it a window is, with the windows just before it.

The distance of a stretch from the nearest of all stretches before it, in earlier recordings of the
index and in its own. Where these are many, evenly spaced ones stand for them.

Shapes: n windows, m stretches before, V numbers of a vector.
"""

import numpy as np

from progmem.explore.folder import Index
from progmem.explore.stretches import STRETCH, sums

KEPT = 4096  # stretches of the recording that later ones are compared with
EARLIER = 2048  # of the recordings before it
AT_ONCE = 256  # windows


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
        ...     most = np.nanargmax(explore.surprise(idx, "a"))
        >>> start, _ = idx.windows("a")[most]
        >>> bool(2000 <= start < 2100 + explore.STRETCH * idx.window)
        True
    """
    observed = idx.observed(recording)
    found = np.full(len(observed), np.nan)
    if len(observed) < STRETCH:
        return found
    own, whole = _stretches(idx.vectors(recording), observed)
    before = _earlier(idx, recording)
    for start in range(0, len(own), AT_ONCE):
        stop = min(start + AT_ONCE, len(own))
        apart = np.full((stop - start, 1), np.inf)
        last = start - STRETCH + 1  # stretches that begin before it overlap none of these
        known = _thinned(np.flatnonzero(whole[: max(0, last)]), KEPT)
        ahead = np.flatnonzero(whole[max(0, last) : stop]) + max(0, last)
        late = ahead[None] > np.arange(start, stop)[:, None] - STRETCH
        apart = np.concatenate([
            _distances(own[start:stop], before),
            _distances(own[start:stop], own[known]),
            np.where(late, np.inf, _distances(own[start:stop], own[ahead])),
            np.full((stop - start, 1), np.inf),
        ], axis=1)  # fmt: skip
        found[start + STRETCH - 1 : stop + STRETCH - 1] = apart.min(1)
    found[STRETCH - 1 :][~whole] = np.nan
    found[np.isinf(found)] = np.nan
    usual = np.nanmedian(found) if np.isfinite(found).any() else 0.0
    return found / usual if usual > 0 else found


def _stretches(vectors: np.ndarray, observed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean vector of every stretch, and whether most of it is observed."""
    there = sums(observed.astype(np.int64), STRETCH)
    return sums(vectors, STRETCH) / there.clip(1)[:, None], 2 * there > STRETCH


def _earlier(idx: Index, recording: str) -> np.ndarray:
    """Some stretches of the recordings before it."""
    rows = _thinned(np.arange(idx.rows(recording).start), EARLIER)
    parts = [np.empty((0, idx.all_vectors.shape[1]), dtype=np.float32)]
    for i in np.unique(np.searchsorted(idx.starts, rows, side="right") - 1):
        begin, end = idx.starts[i], idx.starts[i + 1]
        if end - begin < STRETCH:
            continue
        means, whole = _stretches(idx.all_vectors[begin:end], idx.all_observed[begin:end])
        chosen = rows[(rows >= begin) & (rows < begin + len(means))] - begin
        parts.append(means[chosen[whole[chosen]]])
    return np.concatenate(parts)


def _thinned(rows: np.ndarray, most: int) -> np.ndarray:
    """Evenly spaced ones of ``rows``, the last one with them."""
    return rows[::-1][:: -(-len(rows) // most) or 1][::-1]


def _distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance of each row of a (n, V) from each of b (m, V)."""
    squared = np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2 * a @ b.T
    return np.sqrt(squared.clip(0))
