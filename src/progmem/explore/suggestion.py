"""Which stretch to label next: a typical one of the largest group that has no label yet.

Groups are those of k-means of stretches, one more than there are labels. With few labels this is
better than asking where the prediction is least sure, since that is sure of nothing yet.

Shapes: n stretches, V numbers of a vector.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from progmem.errors import InputError
from progmem.explore.folder import Index
from progmem.explore.labelling import Label, check_labels, width_of
from progmem.explore.stretches import means_around

WIDTH = 10  # windows of a stretch, as long as nothing is labelled: a row the model was trained on
MOST, MOST_GROUPS = 4096, 64


class Suggestion(NamedTuple):
    """A stretch to label, in samples, and why."""

    recording: str
    start: int
    end: int
    why: str


def suggest(idx: Index, labels: Iterable[Sequence[object]] = ()) -> Suggestion:
    """The stretch whose label would tell the most, beside ``labels`` as `classify` takes them.

    Example:
        >>> import numpy as np, progmem, tempfile
        >>> from progmem import explore
        >>> model = progmem.PMT(progmem.ModelConfig(channels=1, size="tiny"))
        >>> time = np.arange(2000)
        >>> x = np.where(time < 1200, np.sin(time / 2), np.sin(time / 8))[:, None]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     idx = explore.index(model, {"a": x}, folder)
        ...     first = explore.suggest(idx)
        ...     second = explore.suggest(idx, [(*first[:3], "fast")])
        >>> first.end <= 1216, second.start >= 1184
        (True, True)
    """
    from sklearn.cluster import KMeans

    given = list(labels)
    known = check_labels(idx, given) if given else []
    m = width_of([idx.covered(*one[:3]) for one in known]) if known else WIDTH
    candidates, x = _candidates(idx, m)
    labelled = np.array([any(_overlaps(c, one) for one in known) for c in candidates], dtype=bool)
    if labelled.all():
        raise InputError("every stretch that is observed has a label; nothing is left to suggest")
    k = min(len(known) + 1, len(np.unique(x, axis=0)), MOST_GROUPS)
    fitted = KMeans(k, n_init=2, random_state=0).fit(x)
    group = fitted.labels_
    size = np.bincount(group, minlength=k)
    labels_in = np.bincount(group[labelled], minlength=k)
    free = np.bincount(group[~labelled], minlength=k) > 0
    # of the groups with the fewest labels the largest
    chosen = min(np.flatnonzero(free), key=lambda i: (labels_in[i], -size[i]))
    apart = np.linalg.norm(x - fitted.cluster_centers_[chosen], axis=1)
    apart[labelled | (group != chosen)] = np.inf
    share = 100 * size[chosen] / len(x)
    rest = "without a label" if not labels_in[chosen] else "with few labels"
    why = f"typical of a group {rest}, {share:.0f} % of all"
    return Suggestion(*candidates[int(apart.argmin())], why)


def _candidates(idx: Index, m: int) -> tuple[list[tuple[str, int, int]], np.ndarray]:
    """Stretches of m windows side by side, with their mean vectors (n, V)."""
    step = max(1, -(-len(idx) // (MOST * m)))  # of so many stretches one
    found, vectors = [], []
    for name in idx.names:
        spans, observed = idx.windows(name), idx.observed(name)
        means = means_around(idx, name, m)
        width = min(m, len(spans))
        for first in range(0, len(spans) - width + 1, width * step):
            if 2 * observed[first : first + width].sum() > width:
                found.append((name, int(spans[first, 0]), int(spans[first + width - 1, 1])))
                vectors.append(means[first + (width - 1) // 2])
    if not found:
        raise InputError("nothing is observed; there is no stretch to label")
    return found, np.stack(vectors)


def _overlaps(stretch: tuple[str, int, int], label: Label) -> bool:
    name, start, end = stretch
    return name == label.recording and start < label.end and label.start < end
