"""A head for few labels: scikit-learn's logistic regression, with one penalty for all.

A penalty on the weights is a prior, and its influence fades as labels grow: one value serves from
one label a class to thousands, and nothing has to be chosen where there is little to choose by.

Shapes: n labelled series, D features, Y classes, m up to min(n, D), B series to classify.
"""

from typing import NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.utils.extmath import softmax

from progmem.data.labels import check_labels
from progmem.errors import InputError

C = 0.1  # scikit-learn's: one over the weight of the penalty; chosen on held-out rows (docs/LOG.md)
TOLERANCE, MAX_ITERATIONS = 1e-6, 10_000


class FittedLogistic(NamedTuple):
    """A fitted head: all that prediction needs. It takes features scaled as in the fit."""

    weights: np.ndarray  # (D, Y)
    intercept: np.ndarray  # (Y,)
    smoothing: float  # the share of probability that all classes get, whatever the features say
    classes: np.ndarray  # (Y,), in order

    def decision_function(self, x: np.ndarray) -> np.ndarray:
        """(B, Y), the logarithms of what the classes' probabilities are in proportion to."""
        return np.asarray(x, dtype=np.float64) @ self.weights + self.intercept

    def predict(self, x: np.ndarray) -> np.ndarray:
        """The class with the highest decision value (B,); the first wins a tie."""
        return self.classes[self.decision_function(x).argmax(1)]

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """How likely each class is (B, Y); never certain, least of all with few labels."""
        likely = softmax(self.decision_function(x))
        return (1 - self.smoothing) * likely + self.smoothing / len(self.classes)

    def log_loss(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Negative logarithm (B,) of the probability of each series' own label (B,)."""
        likely = (self.predict_proba(x) * (y[:, None] == self.classes)).sum(1)
        return -np.log(likely.clip(np.finfo(float).eps))  # 36 for a class it has never seen


def fit_logistic(x: np.ndarray, y: np.ndarray) -> FittedLogistic:
    """A head fitted on standardised features (n, D) and their labels (n,)."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y)
    check_labels(y, len(x))
    if x.ndim != 2 or not np.isfinite(x).all():
        raise InputError(f"features must be finite numbers (series, features), got {x.shape}")
    classes, number = np.unique(y, return_inverse=True)
    mean = x.mean(0)  # the intercept is free, so that this changes nothing but the numbers' size
    coordinates, axes = coordinates_of(x - mean)
    # series that stand twice at half of C are the same problem; where most classes have one label,
    # scikit-learn would take it for a regression and warn
    times = 2 if 2 * len(classes) > len(y) else 1
    regression = LogisticRegression(C=C / times, tol=TOLERANCE, max_iter=MAX_ITERATIONS)
    regression.fit(np.tile(coordinates, (times, 1)), np.tile(number, times))
    weights, intercept = regression.coef_.T, regression.intercept_  # of one column for two classes
    if len(classes) == 2:
        weights, intercept = (np.concatenate([-v, v], axis=-1) / 2 for v in (weights, intercept))
    weights = axes @ weights
    return FittedLogistic(weights, intercept - mean @ weights, 1 / (len(y) + 1), classes)


def coordinates_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, D) as coordinates (n, m) on axes (D, m) that are orthogonal, of length 1.

    A penalised linear map depends on nothing but inner products, so it predicts the same from the
    coordinates, and thousands of features of few series are no burden.
    """
    n, D = x.shape
    if n >= D:
        return x, np.eye(D)
    values, vectors = np.linalg.eigh(x @ x.T)
    kept = values > n * np.finfo(float).eps * max(values[-1], np.finfo(float).tiny)
    root = np.sqrt(values[kept])
    if not kept.any():
        return np.zeros((n, 1)), np.zeros((D, 1))
    return vectors[:, kept] * root, x.T @ vectors[:, kept] / root
