"""Support vector machines on frozen features: two kernels, C fixed or cross-validated.

Shapes: n labelled series, D features.
"""

from typing import NamedTuple

import numpy as np
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import SVC

FIXED_C = {"linear": 0.01, "rbf": 10.0}
GRID = tuple(10.0**power for power in range(-4, 5))  # as SoftCLT's probe
FOLDS = 5
MOST_IN_GRAM = 4_000  # labelled series whose products are kept: 128 MB


class Head(NamedTuple):
    """A kernel, and whether its C is chosen by cross-validation inside the labelled series."""

    kernel: str
    cross_validated: bool


HEADS = {
    "linear": Head("linear", True),  # the headline
    "linear, fixed C": Head("linear", False),
    "rbf": Head("rbf", True),
    "rbf, fixed C": Head("rbf", False),
}


def fit_svm(x: np.ndarray, y: np.ndarray, head: Head) -> SVC:
    """A fitted machine on standardised features (n, D).

    C is the fixed one where the smallest class has one label: there is nothing to validate on.
    """
    smallest = int(np.unique(y, return_counts=True)[1].min())
    c = FIXED_C[head.kernel]
    if head.cross_validated and smallest > 1:
        c = _validated_c(x, y, head.kernel, folds=min(FOLDS, smallest))
    return SVC(kernel=head.kernel, C=c).fit(x, y)


def _validated_c(x: np.ndarray, y: np.ndarray, kernel: str, *, folds: int) -> float:
    """The C that ``GridSearchCV`` finds, in a third of its time: kernels are worked out once a
    fold, not once a C. Of equally good values the smallest is taken.
    """
    x = x.astype(np.float64)
    accuracy = np.zeros((len(GRID), folds))
    split = StratifiedKFold(folds, shuffle=True, random_state=0).split(x, y)
    for fold, (train, held_out) in enumerate(split):
        machine, seen, unseen = SVC(kernel=kernel), x[train], x[held_out]
        if len(train) <= MOST_IN_GRAM:
            machine = SVC(kernel="precomputed")
            scale = {"gamma": 1 / (seen.shape[1] * (seen.var() or 1.0)), "filter_params": True}
            unseen = pairwise_kernels(unseen, seen, metric=kernel, **scale)  # (m, n)
            seen = pairwise_kernels(seen, metric=kernel, **scale)  # (n, n)
        for place, c in enumerate(GRID):
            predicted = machine.set_params(C=c).fit(seen, y[train]).predict(unseen)
            accuracy[place, fold] = (predicted == y[held_out]).mean()
    return GRID[int(accuracy.mean(1).argmax())]
