"""Classes of windows from a few labelled stretches: a ridge regression that is fitted at once.

A window is described by the mean vector of as many windows around it as a labelled stretch has.
The penalty and the sharpness of probabilities are those with which stretches that are left out,
one by one, are predicted best.

Shapes: n windows, V numbers of a vector, K classes, m windows to learn from.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from progmem.data.labels import label_series
from progmem.data.recordings import Recording
from progmem.errors import InputError
from progmem.explore.folder import Index
from progmem.explore.stretches import moving_means

WIDEST = 15  # windows that describe one
OF_EACH = 20  # windows of a stretch that are learnt from
PENALTIES = 10.0 ** np.arange(-3, 3)  # in units of the mean variance of a feature, a window
SHARPNESS = 2.0 ** np.arange(0, 6)  # of probabilities


class Label(NamedTuple):
    """A stretch of a recording, in samples, and the name of its class."""

    recording: str
    start: int
    end: int
    label: str


@dataclass(frozen=True)
class Predictions:
    """What `classify` returns, for the windows of each recording."""

    classes: tuple[str, ...]
    probabilities: dict[str, np.ndarray]  # (n, K) of each recording; NaN in gaps

    def labels(self, recording: str) -> np.ndarray:
        """The most probable class of each window, "" in gaps."""
        found = self.probabilities[recording]
        known = ~np.isnan(found[:, 0])
        return np.where(known, np.array(self.classes)[found.argmax(1)], "")

    def probability(self, recording: str) -> np.ndarray:
        """That of the most probable class of each window; NaN in gaps."""
        return self.probabilities[recording].max(1)


def classify(idx: Index, labels: Iterable[Sequence[object]]) -> Predictions:
    """Predict the class of every window from stretches (recording, start, end, label).

    Example:
        >>> import numpy as np, progmem, tempfile
        >>> from progmem import explore
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> time = np.arange(1600)
        >>> x = np.where(time % 800 < 400, np.sin(time / 2), np.sin(time / 8))[:, None]
        >>> known = [("a", 100, 200, "fast"), ("a", 500, 600, "slow")]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = explore.classify(explore.index(model, {"a": x}, folder), known)
        >>> found.labels("a")[[60, 85]].tolist()
        ['fast', 'slow']
    """
    known = check_labels(idx, labels)
    classes, number = np.unique([one.label for one in known], return_inverse=True)
    if len(classes) < 2:
        raise InputError(
            f"predictions need stretches of at least two classes, got only {str(classes[0])!r}"
        )
    covered = [idx.covered(*one[:3]) for one in known]
    m = width_of(covered)
    x, group = _examples(idx, known, covered, m)
    y = np.eye(len(classes))[number][group]
    weight = 1 / np.bincount(group)[group]  # a stretch counts once, however long it is
    head = _fit(x, y, group, weight)
    found = {}
    for name in idx.names:
        observed = idx.observed(name)
        # the mean of what windows score is what their mean scores, with far fewer numbers
        scores = moving_means(idx.vectors(name) @ head.weight.astype(np.float32), observed, m)
        probability = head.probabilities(scores)
        probability[~observed] = np.nan
        found[name] = probability
    return Predictions(tuple(map(str, classes)), found)


def labels_of_file(
    recordings: Sequence[Recording], source: Path, path: Path, *, limit: Any = None
) -> list[Label]:
    """The labels in a file, which names pieces of recordings of ``source`` or whole ones."""
    series = label_series(recordings, source, path, limit=limit)
    return [
        Label(piece.origin or piece.name, piece.start, piece.start + len(piece.values), str(label))
        for piece, label in zip(series.recordings, series.labels, strict=True)
        if label
    ]


def check_labels(idx: Index, labels: Iterable[Sequence[object]]) -> list[Label]:
    """Labels as such, refused if there are none or one has no place in the index."""
    known = []
    for one in labels:
        if len(one) != 4 or not all(isinstance(value, int | np.integer) for value in one[1:3]):
            raise InputError(f"a label is (recording, start, end, label), got {one!r}")
        recording, start, end, label = one
        stretch = Label(str(recording), int(start), int(end), str(label))  # type: ignore[call-overload]
        if idx.observed(stretch.recording)[idx.covered(*stretch[:3])].any():
            known.append(stretch)
    if not known:
        raise InputError("no observed stretch has a label; name one first")
    return known


def width_of(covered: Sequence[slice]) -> int:
    """As many windows as a labelled stretch has, but not too many."""
    usual = int(np.median([one.stop - one.start for one in covered]))
    return min(max(1, usual), WIDEST)


def _examples(
    idx: Index, known: Sequence[Label], covered: Sequence[slice], m: int
) -> tuple[np.ndarray, np.ndarray]:
    """Mean vectors (m, V) inside the labelled stretches, and the number of the stretch of each."""
    parts, group = [], []
    for i, (one, windows) in enumerate(zip(known, covered, strict=True)):
        there = idx.observed(one.recording)[windows]
        vectors = idx.vectors(one.recording)[windows][there]
        n = len(vectors)
        total = np.concatenate([np.zeros((1, vectors.shape[1])), np.cumsum(vectors, 0, np.float64)])
        at = np.unique(np.linspace(0, n - 1, min(n, OF_EACH)).astype(int))
        first, end = (at - (m - 1) // 2).clip(0), (at + m // 2 + 1).clip(max=n)
        parts.append((total[end] - total[first]) / (end - first)[:, None])
        group.append(np.full(len(at), i))
    return np.concatenate(parts), np.concatenate(group)


class _Head(NamedTuple):
    """A linear map to one number a class, and how sharp the probabilities are."""

    weight: np.ndarray  # (V, K)
    intercept: np.ndarray  # (K,)
    sharpness: float

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Those of classes, from what vectors score without the intercept, (n, K) both."""
        return _softmax(self.sharpness * (scores + self.intercept))


def _fit(x: np.ndarray, y: np.ndarray, group: np.ndarray, weight: np.ndarray) -> _Head:
    """The head of features (m, V) and classes (m, K), each window counting ``weight`` (m,)."""
    weight = weight / weight.sum()
    mean, target = weight @ x, weight @ y
    root = np.sqrt(weight)[:, None]
    z, r = (x - mean) * root, (y - target) * root
    unit = np.square(z).sum() / z.shape[1] or 1.0
    u, s, vt = np.linalg.svd(z, full_matrices=False)
    alone = np.unique(np.argmax(y, 1)[np.unique(group, return_index=True)[1]], return_counts=True)[
        1
    ]
    can_leave = len(alone) > 0 and alone.min() > 1  # a class of one stretch cannot be left out
    best = (np.inf, 0.1 * unit, 4.0)
    for penalty in PENALTIES * unit if can_leave else ():
        left = _left_out(u, s, r, penalty, group)
        scores = left / root + target
        for sharpness in SHARPNESS:
            p = (_softmax(sharpness * scores) * y).sum(1)
            loss = float(-(weight * np.log(p.clip(1e-9))).sum())
            best = min(best, (loss, penalty, sharpness))
    _, penalty, sharpness = best
    coefficients = vt.T @ ((s / (s**2 + penalty))[:, None] * (u.T @ r))
    return _Head(coefficients, target - mean @ coefficients, float(sharpness))


def _left_out(
    u: np.ndarray, s: np.ndarray, r: np.ndarray, penalty: float, group: np.ndarray
) -> np.ndarray:
    """What is predicted of the windows of each stretch without it; the intercept stays."""
    hat = u * (s**2 / (s**2 + penalty))
    fitted = hat @ (u.T @ r)
    left = np.empty_like(fitted)
    for i in np.unique(group):
        own = group == i
        inside = hat[own] @ u[own].T
        error = np.linalg.solve(np.eye(own.sum()) - inside, r[own] - fitted[own])
        left[own] = r[own] - error
    return left


def _softmax(scores: np.ndarray) -> np.ndarray:
    power = np.exp(scores - scores.max(1, keepdims=True))
    return power / power.sum(1, keepdims=True)
