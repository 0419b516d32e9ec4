"""Search: the stretches of recordings that are most like one.

A stretch of m windows is represented by the mean of their vectors, and compared with all stretches
of m windows of all recordings. The search is exact.

Shapes: n windows, V numbers of a vector.
"""

from typing import NamedTuple

import numpy as np

from progmem.errors import InputError
from progmem.explore.folder import Index
from progmem.explore.stretches import sums
from progmem.series import check_count

AT_ONCE = 2**12  # windows that are looked at together


class Match(NamedTuple):
    """A stretch that a search has found, in samples."""

    recording: str
    start: int
    end: int
    distance: float  # 0 if it is the same


def search(idx: Index, recording: str, start: int, end: int, *, k: int = 10) -> list[Match]:
    """The ``k`` stretches nearest to one of a recording, in samples, from the nearest on.

    None of them overlaps another or the stretch itself; where there is too little left, there are
    fewer. A stretch of which less than half is observed is not looked at.

    Example:
        >>> import numpy as np, progmem, tempfile
        >>> from progmem import explore
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> x = np.random.default_rng(0).normal(size=(800, 1))
        >>> x[480:640] = x[160:320]  # the same again
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     idx = explore.index(model, {"a": x}, folder)
        ...     found = explore.search(idx, "a", 160, 320, k=2)
        >>> [(match.start, match.end) for match in found][0]
        (480, 640)
    """
    check_count("k", k)
    covered, first = idx.covered(recording, start, end), idx.rows(recording).start
    if not idx.observed(recording)[covered].any():
        raise InputError(f"nothing is observed in {recording} from {start} to {end}")
    m = covered.stop - covered.start
    distance = _distances(idx, idx.vectors(recording)[covered].mean(0), m)
    at, found = first + covered.start, list[Match]()
    while True:
        distance[max(0, at - m + 1) : at + m] = np.inf  # what overlaps it
        at = int(distance.argmin())
        if len(found) == k or not distance[at] < np.inf:
            return found
        found.append(_match(idx, at, m, float(distance[at]) ** 0.5))


def _distances(idx: Index, query: np.ndarray, m: int) -> np.ndarray:
    """Squared distance of the stretch from each window on, (n,); infinite where there is none."""
    n = len(idx)
    distance = np.full(n, np.inf, dtype=np.float32)
    for begin in range(0, n - m + 1, AT_ONCE):
        stop = min(begin + AT_ONCE, n - m + 1)
        apart = sums(idx.all_vectors[begin : stop + m - 1], m) / m - query
        distance[begin:stop] = np.einsum("nv,nv->n", apart, apart)
    observed = np.append(0, np.cumsum(idx.all_observed))
    row = np.arange(n)
    inside = row + m <= np.repeat(idx.starts[1:], np.diff(idx.starts))  # of one recording
    end = np.minimum(row + m, n)
    distance[~inside | (2 * (observed[end] - observed[row]) < m)] = np.inf
    return distance


def _match(idx: Index, row: int, m: int, distance: float) -> Match:
    i = int(np.searchsorted(idx.starts, row, side="right")) - 1
    name = idx.names[i]
    spans = idx.windows(name)[row - idx.starts[i] :][:m]
    return Match(name, int(spans[0, 0]), int(spans[-1, 1]), distance)
