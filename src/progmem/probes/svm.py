"""Support vector machines on frozen features: two kernels, C fixed or cross-validated.

Shapes: n labelled series, D features.
"""

from typing import NamedTuple

import numpy as np
from sklearn.metrics.pairwise import linear_kernel, rbf_kernel
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.svm import SVC

FIXED_C = {"linear": 0.01, "rbf": 10.0}
GRID = tuple(10.0**power for power in range(-4, 5))  # as SoftCLT's; of a tie the first is taken
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
    """The best C of the grid by accuracy; of equally good values the smallest.

    A kernel given as a function is worked out by one product of matrices, which libsvm's own are
    not: the same C in a half to a quarter of the time.
    """
    machine = SVC(kernel=KERNELS[kernel] if len(x) <= MOST_IN_GRAM else kernel)
    split = StratifiedKFold(folds, shuffle=True, random_state=0)
    search = GridSearchCV(machine, {"C": GRID}, cv=split, refit=False)
    return float(search.fit(x.astype(np.float64), y).best_params_["C"])


def _rbf(x: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """The kernel of ``SVC(kernel="rbf")``, whose width is that of the series it is fitted on."""
    return rbf_kernel(x, seen, gamma=1 / (seen.shape[1] * (seen.var() or 1.0)))  # (m, n)


KERNELS = {"linear": linear_kernel, "rbf": _rbf}
