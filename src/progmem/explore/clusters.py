"""States: the kinds of stretches that all recordings consist of, and how their signals look.

States are groups of k-means of the mean vector of the windows around each window. If nobody says
how many there are, it is the number with which groups are the most separate (silhouette).

Shapes: n windows, C channels, k states.
"""

from dataclasses import dataclass

import numpy as np

from progmem.errors import InputError
from progmem.explore.folder import Index
from progmem.explore.stretches import means_around
from progmem.series import check_count

MOST_STATES = 12  # that are tried
FITTED, JUDGED = 20_000, 1_500  # windows that states are fitted to, and that say how many


@dataclass(frozen=True)
class States:
    """What `states` returns; how the signals of a state are, in the units of the channels."""

    labels: dict[str, np.ndarray]  # of each recording: the state of its windows, -1 where a gap is
    mean: np.ndarray  # (k, C)
    deviation: np.ndarray  # (k, C): around the mean of a window
    share: np.ndarray  # (k,) of all observed windows


def states(idx: Index, k: int | None = None) -> States:
    """Group the windows of all recordings into ``k`` states, those that occur most come first.

    Example:
        >>> import numpy as np, progmem, tempfile
        >>> from progmem import explore
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> x = np.where(np.arange(2000) % 1000 < 600, 0.0, 5.0)[:, None]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = explore.states(explore.index(model, {"a": x}, folder), 2)
        >>> found.mean.round().ravel().tolist(), found.labels["a"][[0, 50]].tolist()
        ([0.0, 5.0], [0, 1])
    """
    from sklearn.cluster import KMeans

    rows = np.flatnonzero(idx.all_observed)
    if k is not None:
        check_count("k", k)
    if (k or 1) > len(rows):
        raise InputError(f"the index has {len(rows)} observed windows, too few for {k or 1} states")
    around = {name: means_around(idx, name) for name in idx.names}
    every = np.concatenate(list(around.values()))
    some = every[rows[:: -(-len(rows) // FITTED)]]
    if k is None:
        k = _count(some)
    fitted = KMeans(k, n_init=4, random_state=0).fit(some)
    state = np.where(idx.all_observed, fitted.predict(every), -1).astype(np.int64)
    order = np.argsort(-np.bincount(state[rows], minlength=k), kind="stable")
    state[rows] = order.argsort()[state[rows]]
    share = np.bincount(state[rows], minlength=k) / len(rows)
    mean, deviation = (_mean_of(idx.channel_values[rows, i], state[rows], k) for i in (0, 1))
    labels = {name: state[idx.rows(name)] for name in idx.names}
    return States(labels, mean, deviation, share)


def _count(x: np.ndarray) -> int:
    """How many groups are the most separate."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    x = x[:: -(-len(x) // JUDGED)]
    scores = {1: 0.0}
    for k in range(2, min(MOST_STATES, len(np.unique(x, axis=0)) - 1) + 1):
        groups = KMeans(k, n_init=2, random_state=0).fit_predict(x)
        scores[k] = float(silhouette_score(x, groups))
    return max(scores, key=scores.__getitem__)


def _mean_of(values: np.ndarray, state: np.ndarray, k: int) -> np.ndarray:
    """Mean (k, C) over the windows of each state of what is known of values (n, C)."""
    there = ~np.isnan(values)
    found = np.full((k, values.shape[1]), np.nan, dtype=np.float32)
    for i in range(k):
        own = state == i
        count = there[own].sum(0)
        total = np.where(there[own], values[own], 0).sum(0, dtype=np.float64)
        np.divide(total, count, out=found[i], where=count > 0, casting="unsafe")
    return found
