"""A head for few labels: ridge regression onto the classes, in closed form.

Each class has a target of +1 for its own series and -1 for all others. Classes have equal weight
together, however many labels they have: the mean decision value is then the same for all of them,
so that no penalty, however large, makes the head answer with the larger class for everything.

The penalty is chosen by exact leave-one-out, whose predictions follow from the hat matrix H without
fitting again: the residual of series i, were it left out, is its residual divided by 1 - H_ii.

Shapes: n labelled series, D features, Y classes, m up to min(n, D), B series to classify.
"""

from typing import NamedTuple

import numpy as np
from sklearn.utils.extmath import softmax

from progmem.data.labels import check_labels
from progmem.errors import InputError

PENALTIES = tuple(10.0**power for power in range(6))
# Where a class has one label: the class is not there when that label is left out, so that
# leave-one-out judges nothing.
FIXED_PENALTY = 100.0
FIXED_SHARPNESS = 3.0
MAX_SHARPNESS = 100.0  # decision values are of the order of 1


class FittedRidge(NamedTuple):
    """A fitted ridge: all that prediction needs. It takes features scaled as in the fit."""

    weights: np.ndarray  # (D, Y)
    intercept: np.ndarray  # (Y,)
    sharpness: float  # what decision values are multiplied by before the softmax
    smoothing: float  # the share of probability that all classes get, whatever the decision values
    penalty: float
    classes: np.ndarray  # (Y,), in order

    def decision_function(self, x: np.ndarray) -> np.ndarray:
        """(B, Y): near 1 for the class of a series, near -1 for the others."""
        return np.asarray(x, dtype=np.float64) @ self.weights + self.intercept

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The class with the highest decision value (B,); the first wins a tie."""
        return self.classes[self.decision_function(x).argmax(1)]

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """How likely each class is (B, Y); never certain, least of all with few labels."""
        likely = softmax(self.sharpness * self.decision_function(x))
        return (1 - self.smoothing) * likely + self.smoothing / len(self.classes)

    def log_loss(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Negative logarithm (B,) of the probability of each series' own label (B,)."""
        likely = (self.predict_proba(x) * (y[:, None] == self.classes)).sum(1)
        return -np.log(likely.clip(np.finfo(float).eps))  # 36 for a class it has never seen


def fit_ridge(x: np.ndarray, y: np.ndarray) -> FittedRidge:
    """A ridge fitted on standardised features (n, D) and their labels (n,).

    Of the penalties, the one with the fewest errors of leave-one-out is taken, where classes count
    alike; of equally good ones the nearest to `FIXED_PENALTY`, then the one with the least squared
    error. The sharpness of the probabilities is fitted to the same predictions.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y)
    check_labels(y, len(x))
    if x.ndim != 2 or not np.isfinite(x).all():
        raise InputError(f"features must be finite numbers (series, features), got {x.shape}")
    classes, number, count = np.unique(y, return_inverse=True, return_counts=True)
    path = RidgePath(x, number)
    smoothing = 1 / (len(y) + 1)
    if count.min() == 1:
        penalty, sharpness = FIXED_PENALTY, FIXED_SHARPNESS
    else:
        penalty = min(PENALTIES, key=lambda one: _badness(path, one))
        sharpness = _fit_sharpness(path.leave_one_out(penalty), number, smoothing)
    weights, intercept = path.solve(penalty)
    return FittedRidge(weights, intercept, sharpness, smoothing, penalty, classes)


class RidgePath:
    """The ridges of all penalties, by one eigendecomposition of the smaller Gram matrix.

    ``number`` (n,) is the class of each series, of 0 to Y - 1.
    """

    def __init__(self, x: np.ndarray, number: np.ndarray) -> None:
        n, D = x.shape
        count = np.bincount(number)
        self.number = number
        self.weight = (n / len(count) / count)[number]  # (n,), 1 on average
        self.target = np.where(number[:, None] == np.arange(len(count)), 1.0, -1.0)  # (n, Y)
        # the intercept is not penalised, so it leaves the problem with the weighted means
        self._mean_x, self._mean_target = (self.weight @ part / n for part in (x, self.target))
        root = np.sqrt(self.weight)[:, None]
        centred = root * (x - self._mean_x)
        self._y = root * (self.target - self._mean_target)
        if n <= D:
            values, left = np.linalg.eigh(centred @ centred.T)
            kept = values > n * np.finfo(float).eps * values[-1]  # the others are rounding errors
            values, left = values[kept], left[:, kept]
            axes = centred.T @ left / np.sqrt(values)
        else:
            values, axes = np.linalg.eigh(centred.T @ centred)
        self._values, self._axes = values, axes  # (m,), (D, m)
        self._scores = centred @ axes  # (n, m)

    def solve(self, penalty: float) -> tuple[np.ndarray, np.ndarray]:
        """Weights (D, Y) and intercept (Y,)."""
        weights = self._axes / (self._values + penalty) @ (self._scores.T @ self._y)
        return weights, self._mean_target - self._mean_x @ weights

    def leave_one_out(self, penalty: float) -> np.ndarray:
        """Decision values (n, Y) of each series by the ridge of all others, weighted as before."""
        shrunk = self._scores / (self._values + penalty)  # (n, m)
        hat = self.weight / len(self.weight) + (shrunk * self._scores).sum(1)  # diagonal (n,)
        residual = self._y - shrunk @ (self._scores.T @ self._y)
        return self.target - residual / (np.sqrt(self.weight) * (1 - hat))[:, None]


def _badness(path: RidgePath, penalty: float) -> tuple[float, float, float]:
    """To be least, in this order: errors, distance to `FIXED_PENALTY`, squared error."""
    values = path.leave_one_out(penalty)
    wrong = values.argmax(1) != path.number
    errors = float(path.weight @ wrong)
    square = float(path.weight @ ((path.target - values) ** 2).sum(1))
    return round(errors, 6), abs(np.log10(penalty / FIXED_PENALTY)), square


def _fit_sharpness(values: np.ndarray, number: np.ndarray, smoothing: float) -> float:
    """The sharpness with the least log loss on decision values (n, Y) of leave-one-out.

    The targets give a share ``smoothing`` to all classes, as Platt does: labels that are all told
    right would ask for certainty otherwise. The loss is convex, so its slope is bisected.
    """
    Y = values.shape[1]
    target = (1 - smoothing) * np.eye(Y)[number] + smoothing / Y
    low, high = 1 / MAX_SHARPNESS, MAX_SHARPNESS
    for _ in range(50):
        middle = np.sqrt(low * high)
        slope = ((softmax(middle * values) - target) * values).sum()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return float(np.sqrt(low * high))
