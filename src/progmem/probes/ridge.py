"""A head for few labels: ridge regression onto the classes, in closed form.

Each class has a target of +1 for its own series and -1 for all others. A label has the less weight
the more there are of its class, by the square root of their number: with equal weights few labels
of a small class count for little, and with classes of equal weight they count for too much
(docs/LOG.md).

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

    Of the penalties that tell the labelled series apart, the one with the fewest errors of
    leave-one-out is taken, by their weight; of equally good ones the nearest to `FIXED_PENALTY`,
    then the one with the least squared error. The sharpness of the probabilities is fitted to the
    same predictions.
    """
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y)
    check_labels(y, len(x))
    if x.ndim != 2 or not np.isfinite(x).all():
        raise InputError(f"features must be finite numbers (series, features), got {x.shape}")
    classes, number, count = np.unique(y, return_inverse=True, return_counts=True)
    path = RidgePath(x, number)
    smoothing = 1 / (len(y) + 1)
    usable = [one for one in PENALTIES if tells_apart(path, one)]
    if count.min() == 1:
        usable = [one for one in usable if one <= FIXED_PENALTY]
        penalty, sharpness = max(usable, default=PENALTIES[0]), FIXED_SHARPNESS
    else:
        penalty = min(usable or PENALTIES[:1], key=lambda one: _badness(path, one))
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
        weight = 1 / np.sqrt(count)[number]
        self.weight = weight / weight.mean()  # (n,)
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

    def fitted(self, penalty: float) -> np.ndarray:
        """Decision values (n, Y) of the labelled series themselves."""
        values = self._scores / (self._values + penalty) @ (self._scores.T @ self._y)
        return values / np.sqrt(self.weight)[:, None] + self._mean_target

    def leave_one_out(self, penalty: float) -> np.ndarray:
        """Decision values (n, Y) of each series by the ridge of all others, weighted as before."""
        shrunk = self._scores / (self._values + penalty)  # (n, m)
        hat = self.weight / len(self.weight) + (shrunk * self._scores).sum(1)  # diagonal (n,)
        residual = self._y - shrunk @ (self._scores.T @ self._y)
        return self.target - residual / (np.sqrt(self.weight) * (1 - hat))[:, None]


def tells_apart(path: RidgePath, penalty: float) -> bool:
    """Whether the ridge gives the labelled series more than one class.

    A large penalty leaves little but the intercept, which is highest for the largest class.
    """
    return len(set(path.fitted(penalty).argmax(1))) > 1


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
