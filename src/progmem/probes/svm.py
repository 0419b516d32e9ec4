"""Support vector machines on frozen features: two kernels, C fixed or cross-validated.

Shapes: n labelled series, D features.
"""

from typing import NamedTuple

import numpy as np
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC

FIXED_C = {"linear": 0.01, "rbf": 10.0}
GRID = tuple(10.0**power for power in range(-4, 5))  # as SoftCLT's probe
FOLDS = 5


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

    C is the fixed one where the smallest class has one label: there is nothing to validate on. Of
    equally good values the smallest is taken.
    """
    smallest = int(np.unique(y, return_counts=True)[1].min())
    machine = SVC(kernel=head.kernel, C=FIXED_C[head.kernel])
    if not head.cross_validated or smallest < 2:
        return machine.fit(x, y)
    folds = StratifiedKFold(min(FOLDS, smallest), shuffle=True, random_state=0)
    search = GridSearchCV(machine, {"C": GRID}, cv=folds).fit(x, y)
    return search.best_estimator_
